"""Where single tests for changes say that one began: against sums and odds worked out apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.detectors.bayesian import Bayesian
from pipesim.adapt.detectors.cusum import Cusum
from pipesim.adapt.detectors.decision import Decision
from pipesim.adapt.detectors.drift import PageHinkley

LEVEL, JITTER = 10.0, 0.05


def deviating(deviation: float) -> float:
    """Return a measurement that is so many standard deviations over the level."""
    return (LEVEL + 1) * math.exp(deviation * JITTER) - 1


@pytest.mark.parametrize("sign", [1, -1])
def test_cumulative_sums_by_hand(sign: int) -> None:
    """After 2, −3: S = 1, 0. Then 1, 2, 3, 4, which is over 3.5, and all four were above 0."""
    cusum = Cusum(Decision(), allowance=1.0, limit=3.5)
    deviations = [2.0, -3.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    told = [cusum.begun(deviating(sign * z), LEVEL) for z in deviations]
    assert told == [0, 0, 0, 0, 0, 4, 0]


@pytest.mark.parametrize("sign", [1, -1])
def test_page_hinkley_by_hand(sign: int) -> None:
    """Means 0, 0, 2, 3: deviations 4 and 3 from them, less 1 each, are 5, over 4.5."""
    test = PageHinkley(Decision(), allowance=1.0, limit=4.5)
    told = [test.begun(deviating(sign * z), LEVEL) for z in (0.0, 0.0, 6.0, 6.0, 6.0)]
    assert told == [0, 0, 0, 1, 0]


def _evidence(values: np.ndarray, kappa: float, alpha: float, beta: float) -> float:
    """Log of the density of values with an unknown mean and variance, in closed form."""
    n, mean = len(values), values.mean()
    end = alpha + n / 2
    spread = ((values - mean) ** 2).sum() / 2 + kappa * n * mean**2 / (2 * (kappa + n))
    return float(
        math.lgamma(end)
        - math.lgamma(alpha)
        + alpha * math.log(beta)
        - end * math.log(beta + spread)
        + math.log(kappa / (kappa + n)) / 2
        - n / 2 * math.log(2 * math.pi)
    )


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=10), st.floats(0.001, 0.5))
def test_odds_of_runs_are_those_of_all_ways_to_cut_the_series(
    values: list[float], hazard: float
) -> None:
    series = np.array([0.0, *values])
    bayesian = Bayesian(Decision(), hazard=hazard)
    for value in series:
        bayesian.begun(deviating(value), LEVEL)
    cut = [0.0]  # log odds that a run ends after so many values, and what they are
    for end in range(1, len(series) + 1):
        runs = [
            cut[begin]
            + _evidence(series[begin:end], 1 / 400, 5.0, 5.0)
            + (end - begin - 1) * math.log1p(-hazard)
            for begin in range(end)
        ]
        cut.append(float(np.logaddexp.reduce(runs)) + math.log(hazard))
    expected = np.exp(np.array(runs) - np.logaddexp.reduce(runs))[::-1]
    assert bayesian.odds() == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_run_as_long_as_any_that_is_told_apart_goes_on() -> None:
    random = np.random.default_rng(3)
    bayesian = Bayesian(Decision(), runs=20)
    told = [bayesian.begun(deviating(z), LEVEL) for z in random.standard_normal(500)]
    assert not any(told)
    assert bayesian.odds().sum() == pytest.approx(1)
    assert len(bayesian.odds()) == 20
    assert bayesian.level_ms([]) == pytest.approx(LEVEL, rel=0.05)
    assert bayesian.begun(deviating(30), LEVEL) == 1
    told = [bayesian.begun(deviating(30 + z), LEVEL) for z in random.standard_normal(500)]
    assert not any(told)
    assert bayesian.level_ms([]) == pytest.approx(deviating(30), rel=0.05)


def test_an_outlier_is_taken_back() -> None:
    bayesian = Bayesian(Decision())
    for z in np.random.default_rng(3).standard_normal(50):
        bayesian.begun(deviating(z), LEVEL)
    bayesian.begun(deviating(20), LEVEL)
    assert bayesian.level_ms([]) > 20
    for _ in range(3):
        bayesian.begun(LEVEL, LEVEL)
    assert bayesian.level_ms([]) == pytest.approx(LEVEL, rel=0.05)
