"""Bayesian online detection of change points: how long ago the level last changed, in odds.

Source: R. P. Adams and D. J. C. MacKay, Bayesian Online Changepoint Detection,
arXiv 0710.3742 (2007).
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from pipesim.adapt.detectors.decision import Decision, at_least, over, under
from pipesim.adapt.detectors.deviations import Deviations
from pipesim.adapt.detectors.watch import Changes
from pipesim.scenario import Array

__all__ = ["Bayesian"]

_SPREAD = 20.0
"""Standard deviation of levels around each other, in those of the jitter: a factor of e at 5 %."""

_CERTAINTY = 5.0
"""α of the prior: how sure the jitter is, in pairs of measurements."""


class Bayesian(Changes):
    """A level ends where the most probable run of measurements without a change is a shorter one.

    Within a run, the logarithms of measurements are normal with an unknown mean and variance
    (normal-inverse-gamma, so that the next one has Student's t distribution). The level is the
    posterior mean of the most probable run.

    Parameters
    ----------
    decision : Decision
        When a level counts as slow.
    jitter : float
        Standard deviation of a healthy link's measurements, as a part of them: the prior's.
    hazard : float
        Probability that a level ends with any one measurement.
    runs : int
        Longest run that is told from a longer one. Its older measurements are gradually forgotten.
    """

    def __init__(
        self,
        decision: Decision,
        *,
        jitter: float = 0.05,
        hazard: float = 0.004,
        runs: int = 100,
    ) -> None:
        over("hazard", hazard, 0)
        under("hazard", hazard, 1)
        at_least("runs", runs, 2, most=10_000)
        self._scale = Deviations(decision, jitter)
        self._ends, self._goes_on = math.log(hazard), math.log1p(-hazard)
        # By length of the run, 0 to `runs`: the parameters that are alike for all series.
        length = np.arange(runs + 1)
        self._kappa = _SPREAD**-2 + length
        self._alpha = _CERTAINTY + length / 2
        self._norm = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in self._alpha])
        self._norm -= np.log(2 * np.pi * self._alpha) / 2
        self._widening = (self._kappa + 1) / (self._alpha * self._kappa)
        # And those of this series, with how probable each length is.
        self._log_odds, self._mean, self._beta = np.zeros(1), np.zeros(1), np.full(1, _CERTAINTY)
        self._run = 0

    def odds(self) -> Array:
        """Return how probable it is that the current run has 1, 2, … measurements; shape [runs]."""
        probable: Array = np.exp(self._log_odds[1:] - self._goes_on)
        return probable

    def begun(self, measured_ms: float, level_ms: float) -> int:
        """Return how many measurements ago a new level began."""
        self._learn(self._scale.of(measured_ms))
        before, self._run = self._run, int(self._log_odds[1:].argmax()) + 1
        return self._run if self._run <= before < len(self._kappa) - 1 or self._run < before else 0

    def level_ms(self, recent_ms: Collection[float]) -> float:
        """Return the posterior mean of the most probable run; see :class:`Changes`."""
        return self._scale.ms(float(self._mean[self._run]))

    def _learn(self, value: float) -> None:
        """Make the odds, means and variances of all runs one measurement longer."""
        count, longest = len(self._mean), len(self._kappa) - 1
        kappa, alpha = self._kappa[:count], self._alpha[:count]
        away = value - self._mean
        width = self._beta * self._widening[:count]
        grown = (
            self._log_odds
            + self._norm[:count]
            - np.log(width) / 2
            - (alpha + 0.5) * np.log1p(away * away / (2 * alpha * width))
        )
        grown -= grown.max()
        grown -= math.log(np.exp(grown).sum())
        mean = self._mean + away / (kappa + 1)
        beta = self._beta + kappa * away * away / (2 * (kappa + 1))
        if count > longest:  # the two longest become one, which is what the likelier is
            if grown[-1] > grown[-2]:
                mean[-2] = mean[-1]
                beta[-2] = beta[-1] * self._alpha[-1] / (self._alpha[-1] + 0.5)
            grown[-2] = np.logaddexp(grown[-2], grown[-1])
            grown, mean, beta = grown[:-1], mean[:-1], beta[:-1]
        self._log_odds = _after(self._ends, grown + self._goes_on)
        self._mean, self._beta = _after(0.0, mean), _after(_CERTAINTY, beta)


def _after(first: float, rest: Array) -> Array:
    longer = np.empty(len(rest) + 1)
    longer[0], longer[1:] = first, rest
    return longer
