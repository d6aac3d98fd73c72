"""What holds for every detector, and what the default does measurement by measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.detectors import DETECTORS, Detector, detector
from pipesim.errors import ScenarioError
from tests.strategies import examples

every = pytest.mark.parametrize("name", DETECTORS)

transfers = st.floats(1e-6, 1000) | st.sampled_from([0.0, 1.0, 10.0, 20.0, 30.0])
series = st.lists(transfers | st.just(math.nan), max_size=60)
levels = st.lists(st.tuples(transfers, st.integers(1, 12)), max_size=8).map(
    lambda parts: [value for value, count in parts for _ in range(count)]
)


def said(one: Detector, measured_ms: Iterable[float]) -> list[tuple[bool, float, float | None]]:
    states = []
    for measured in measured_ms:
        one.update(measured)
        states.append((one.slow, one.delay_ms, one.baseline_ms))
    return states


def delays(one: Detector, measured_ms: Iterable[float]) -> list[float]:
    return [delay for _, delay, _ in said(one, measured_ms)]


def noisy(level_ms: float, count: int, *, seed: int = 0, jitter: float = 0.05) -> list[float]:
    random = np.random.default_rng(seed)
    values: list[float] = (level_ms * np.exp(jitter * random.standard_normal(count))).tolist()
    return values


# -- every detector ----------------------------------------------------------------------


@every
@examples(0.5)
@given(series | levels, st.integers(-6, 6))
def test_only_ratios_count(name: str, measured: list[float], power: int) -> None:
    scale = 2.0**power
    plain = said(detector(name)(), measured)
    scaled = said(detector(name, least_ms=scale)(), [scale * value for value in measured])
    assert scaled == [
        (slow, scale * delay, None if base is None else scale * base) for slow, delay, base in plain
    ]


@every
@examples(0.5)
@given(series | levels)
def test_there_is_a_delay_exactly_while_the_link_is_slow(name: str, measured: list[float]) -> None:
    for slow, delay, baseline in said(detector(name)(), measured):
        assert (delay > 0) == slow
        assert not slow or baseline is not None


@every
@examples(0.5)
@given(levels, st.lists(st.integers(0, 60), max_size=10))
def test_iterations_without_messages_change_nothing(
    name: str, measured: list[float], gaps: list[int]
) -> None:
    with_gaps = list(measured)
    for gap in gaps:
        with_gaps.insert(gap, math.nan)
    told = said(detector(name)(), with_gaps)
    kept = [state for state, value in zip(told, with_gaps, strict=True) if value == value]
    assert kept == said(detector(name)(), measured)


@every
@examples(0.5)
@given(transfers, st.integers(1, 100))
def test_what_stays_the_same_is_healthy(name: str, level: float, count: int) -> None:
    assert not any(slow for slow, _, _ in said(detector(name)(), [level] * count))


@every
@examples(0.5)
@given(st.floats(0, 500), st.integers(8, 60), st.integers(3, 40), st.floats(3, 40))
def test_a_jump_to_three_times_is_found_at_once_and_so_is_its_end(
    name: str, base: float, before: int, during: int, ratio: float
) -> None:
    """ADWIN takes more than one measurement: of all, but for its name, at most as many as named."""
    slow = max(ratio * base, base + 10)
    at_most = 8 if name == "adwin" else 1
    one = detector(name)()
    assert not any(delays(one, [base] * before))
    found = delays(one, [slow] * during)
    if during >= at_most:
        assert found[at_most - 1 :] == pytest.approx(
            [slow - base] * (during - at_most + 1), rel=0.02
        )
    assert not any(delays(one, [base] * 12)[at_most - 1 :])


@every
@given(st.integers(0, 2**32), st.floats(1.6, 30))
def test_an_estimate_is_near_the_delay_and_stays(name: str, seed: int, ratio: float) -> None:
    """Noise within 4 % is within the tolerance of any first measurement, so it moves nothing."""
    noise = np.random.default_rng(seed).uniform(0.96, 1.04, 60)
    one = detector(name)()
    delays(one, 20 * noise[:20])
    told = delays(one, 20 * ratio * noise[20:])
    assert len(set(told) - {0.0}) == 1
    assert told[-1] + 20 == pytest.approx(20 * ratio, rel=0.09)


@every
def test_many_measurements_correct_an_unlucky_first_one(name: str) -> None:
    one = detector(name)()
    delays(one, [10.0] * 20)
    assert delays(one, [30.0] * 2)[-1] == pytest.approx(20, rel=0.01)
    assert delays(one, noisy(35.0, 40))[-1] == pytest.approx(25, rel=0.12)


@every
def test_an_hour_of_jitter_is_no_reason_for_alarm(name: str) -> None:
    for way in range(3 if name == "bayesian" else 14):
        assert not any(delays(detector(name)(), noisy(10.0, 4500, seed=way)))


@every
def test_a_slow_link_follows_changes_up_and_down(name: str) -> None:
    one = detector(name)()
    delays(one, noisy(10.0, 20))
    for number, level in enumerate((30.0, 60.0, 40.0, 20.0, 90.0)):
        assert delays(one, noisy(level, 15, seed=number))[-1] == pytest.approx(level - 10, rel=0.25)


@every
def test_the_baseline_follows_a_drift_but_no_straggler(name: str) -> None:
    one = detector(name)()
    delays(one, [10.0] * 20)
    assert not any(delays(one, np.linspace(10, 20, 4000).tolist()))
    assert one.baseline_ms == pytest.approx(20, rel=0.05)
    drifted = one.baseline_ms
    delays(one, [60.0] * 500)
    assert one.baseline_ms == drifted


@every
def test_a_baseline_from_a_slow_warm_up_is_corrected_when_the_link_recovers(name: str) -> None:
    one = detector(name)()
    delays(one, [30.0] * 20)
    assert one.baseline_ms == 30
    delays(one, [10.0] * 20)
    assert one.baseline_ms == pytest.approx(10, rel=0.01)
    assert delays(one, [30.0] * 10)[-1] == pytest.approx(20, rel=0.01)


@every
def test_a_baseline_that_was_told_counts_from_the_first_measurement(name: str) -> None:
    one = detector(name, baseline_ms=10)()
    assert one.baseline_ms == 10
    assert delays(one, [30.0]) == pytest.approx([20])


@every
@pytest.mark.parametrize("value", [-1.0, math.inf])
def test_what_cannot_be_measured_is_refused(name: str, value: float) -> None:
    with pytest.raises(ScenarioError, match="is not a transfer time"):
        detector(name)().update(value)


# -- the default, step by step --------------------------------------------------------------


def test_the_median_of_the_warm_up_is_the_baseline() -> None:
    one = detector(warm_up=3)()
    bases = [base for _, _, base in said(one, [10, 50, 11])]
    assert bases == [None, None, 11]


def test_one_measurement_of_the_threshold_makes_a_link_slow_and_one_makes_it_healthy() -> None:
    one = detector(baseline_ms=10)()
    assert delays(one, [10, 13.4, 10, 13.5, 10]) == pytest.approx([0, 0, 0, 3.5, 0], rel=0.01)


def test_small_steps_count_once_they_are_confirmed() -> None:
    one = detector(baseline_ms=10)()
    assert delays(one, [30, 35, 30, 35, 35, 35]) == pytest.approx([20, 20, 20, 20, 25, 25])
    one = detector(baseline_ms=10, confirm=3)()
    assert delays(one, [30] * 9 + [35, 35, 30, 35, 35, 35]) == pytest.approx([20] * 14 + [25])


def test_between_the_ratios_a_link_stays_what_it_is() -> None:
    one = detector(baseline_ms=10, follow=0)()
    assert delays(one, [12] * 3) == [0] * 3
    assert delays(one, [14, 14, 12, 12]) == pytest.approx([0, 4, 4, 2])
    one = detector(baseline_ms=10, follow=0)()
    assert delays(one, [14, 12, 12, 12]) == pytest.approx([4, 4, 2, 2])
    assert delays(one, [11] * 6)[-1] == 0


def test_next_to_nothing_does_not_become_a_straggler_by_ratio_alone() -> None:
    make = detector(baseline_ms=0.01)
    assert delays(make(), [0.9]) == [0]
    assert delays(make(), [1.1]) == pytest.approx([1.09])
    assert delays(detector(baseline_ms=0, least_ms=0.1)(), [0.2]) == [0.2]


def test_an_outlier_is_no_alarm_if_two_must_agree() -> None:
    one = detector(baseline_ms=10, enter=2, leave=3)()
    assert delays(one, [30, 10, 30, 30]) == pytest.approx([0, 0, 0, 20])
    assert delays(one, [10, 10, 30, 10, 10, 10])[-3:] == pytest.approx([20, 20, 0], abs=20)
    assert not one.slow
