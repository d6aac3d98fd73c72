"""Times in whole numbers: nothing is lost, and the unit of the input is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.scenario import Array, Scenario
from pipesim.units import in_whole_units
from tests.strategies import scenarios

FINEST = 2.0**-36


def all_times(scenario: Scenario) -> Array:
    kinds = (scenario.forward_ms, scenario.backward_ms, scenario.weight_ms, scenario.delay_ms)
    return np.concatenate([np.ravel(kind) for kind in kinds])


@given(scenarios())
def test_they_are_whole_and_stand_for_the_same_times(scenario: Scenario) -> None:
    whole, unit_ms = in_whole_units(scenario)
    times = all_times(scenario)
    assert (all_times(whole) == np.rint(all_times(whole))).all()
    assert all_times(whole) * unit_ms == pytest.approx(times, abs=times.max() * FINEST)


@given(st.lists(st.integers(1, 10_000), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_the_unit_is_the_largest_that_all_times_are_multiples_of(
    counts: list[int], unit_ms: float
) -> None:
    forward, backward, weight = (count * unit_ms for count in counts)
    scenario = Scenario(forward_ms=forward, backward_ms=backward, weight_ms=weight)
    whole, found_ms = in_whole_units(scenario)
    divisor = np.gcd.reduce(counts)
    assert found_ms == pytest.approx(divisor * unit_ms, rel=1e-12)
    assert float(whole.forward_ms[0, 0]) == counts[0] // divisor


def test_thirds_have_a_unit_that_no_decimal_has() -> None:
    scenario = Scenario(forward_ms=1 / 3, backward_ms=2 / 3, weight_ms=1)
    whole, _ = in_whole_units(scenario)
    assert [float(whole.durations_ms(kind)[0, 0]) for kind in ("F", "B", "W")] == [1, 2, 3]


def test_times_without_a_common_unit_are_rounded_to_a_fine_one() -> None:
    scenario = Scenario(forward_ms=1.0, backward_ms=2**0.5, weight_ms=3**0.5)
    whole, _ = in_whole_units(scenario)
    assert float(whole.weight_ms[0, 0]) == 2**36


def test_nothing_takes_time() -> None:
    scenario = Scenario(forward_ms=0, backward_ms=0, weight_ms=0)
    assert in_whole_units(scenario) == (scenario, 1.0)
