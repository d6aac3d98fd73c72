"""Bounds against every order that there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from pipesim import analysis
from pipesim.analysis.bounds import fits_limits, horizon_bound_ms
from pipesim.scenario import Scenario
from tests.every_order import shortest_ms
from tests.strategies import examples
from tests.tiny import tiny_scenarios

ROUNDING = 1 + 1e-9


@examples(4 / 3)
@given(tiny_scenarios())
def test_no_order_is_below_a_bound(scenario: Scenario) -> None:
    limited = shortest_ms(scenario)
    free = shortest_ms(scenario, within_limits=False)
    assert fits_limits(scenario) == math.isfinite(limited)
    assert analysis.lower_bound_ms(scenario) <= free * ROUNDING
    assert horizon_bound_ms(scenario, within_limits=False) <= free * ROUNDING
    for known_ms in (math.inf, limited, limited * 1.01):
        assert horizon_bound_ms(scenario, incumbent_ms=known_ms) <= limited * ROUNDING
    assert horizon_bound_ms(scenario, over=lambda: True) <= limited * ROUNDING


@pytest.mark.parametrize(
    ("scenario", "optimum"),
    [
        # By hand: stage 1 waits for the first F, then has 3 · 30 + 1.4 to do.
        (
            Scenario(
                stages=2,
                microbatches=3,
                forward_ms=[[15.7, 10, 10], [10, 10, 10]],
                backward_ms=[[10, 10, 10], [10, 10, 11.4]],
            ),
            101.4,
        ),
        # Micro-batch 1 first: its F 1 ms, then the device has 1 + 20 + 4 · 1 to do.
        (
            Scenario(
                stages=2, microbatches=2, forward_ms=[[20, 1], [1, 20]], backward_ms=1, weight_ms=1
            ),
            26,
        ),
        # F 10; stage 1: F F BW B, the second split so that it goes up sooner; stage 0: BW.
        (Scenario(stages=2, microbatches=2, fused_backward_ms=12), 64),
        (Scenario(stages=1, microbatches=3, weight_ms=0), 60),
    ],
)
def test_the_enumeration_by_hand(scenario: Scenario, optimum: float) -> None:
    assert shortest_ms(scenario) == pytest.approx(optimum, rel=1e-12)


def test_a_bound_is_not_rounded_up_to_the_grain_of_the_shortest_times() -> None:
    """All shortest times are multiples of 10 ms, the optimum of 101.4 ms is none."""
    scenario = Scenario(
        stages=2,
        microbatches=3,
        forward_ms=[[15.7, 10, 10], [10, 10, 10]],
        backward_ms=[[10, 10, 10], [10, 10, 11.4]],
    )
    assert horizon_bound_ms(scenario, incumbent_ms=107.1) == pytest.approx(101.4, rel=1e-12)
