"""Measurements on a scale on which their jitter is one: a test has no times built in then."""

from __future__ import annotations

import math

from pipesim.adapt.detectors.decision import Decision, over

__all__ = ["Deviations"]


class Deviations:
    """Logarithms of measurements, in standard deviations of a healthy link.

    Each measurement is taken ``least_ms`` longer than it is, because links without a cost of their
    own measure 0, and because differences far below that do not matter.

    Parameters
    ----------
    decision : Decision
        Its ``least_ms`` is used.
    jitter : float
        Standard deviation of a healthy link's measurements, as a part of them.

    Examples
    --------
    >>> scale = Deviations(Decision(least_ms=1), jitter=0.05)
    >>> round(scale.between(21, 10), 1), scale.between(0, 0), round(scale.of(3), 1), scale.of(3)
    (13.9, 0.0, 0.0, 0.0)
    """

    def __init__(self, decision: Decision, jitter: float) -> None:
        over("jitter", jitter, 0)
        self._least, self._jitter = decision.least_ms, jitter
        self._first: float | None = None

    def between(self, measured_ms: float, level_ms: float) -> float:
        """Return how far a measurement is over a level."""
        return math.log((measured_ms + self._least) / (level_ms + self._least)) / self._jitter

    def of(self, measured_ms: float) -> float:
        """Return how far a measurement is over the first one."""
        if self._first is None:
            self._first = measured_ms
        return self.between(measured_ms, self._first)

    def ms(self, deviation: float) -> float:
        """Return the measurement that is so far over the first one."""
        first = 0.0 if self._first is None else self._first
        return max((first + self._least) * math.exp(deviation * self._jitter) - self._least, 0.0)
