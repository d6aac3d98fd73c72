"""A search over another transport than ideal chooses among orders within the limits only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.scenario import Array
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Nccl, Transport
from planners.search import list_schedules, search
from tests.strategies import scenarios

OTHERS = (Nccl(), Nccl(base_ms=1.0), Exchange(), Delegated(base_ms=4.0), Delegated(delegates=1))
CAPPED = Scenario(activation_limit=3, host_limit=100).with_delay(40, [0])
"""With room on the hosts PipeMorph's plan would be much faster."""


def most_held(schedule: Schedule, released_by_b: Array) -> list[float]:
    """Most activations of each device, which the order alone decides."""
    whole = np.ones_like(released_by_b)
    given_back = {"F": -whole, "B": released_by_b, "W": 1 - released_by_b, "BW": whole}
    peaks = []
    for order in schedule.orders:
        held = peak = 0.0
        for op in order:
            held -= given_back[op.kind][op.stage]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


@given(scenarios(limited=True), st.sampled_from(OTHERS), st.integers(0, 3))
def test_its_plan_is_within_the_limits_over_any_transport(
    scenario: Scenario, over: Transport, seed: int
) -> None:
    schedule = search(scenario, over=over, moves=100, seed=seed)
    held = most_held(schedule, scenario.released_by_b)
    for peak, limit in zip(held, scenario.activation_limit, strict=True):
        assert peak <= limit + 1e-9


@given(scenarios(limited=True), st.sampled_from(OTHERS))
@example(
    Scenario(stages=3, microbatches=5, forward_ms=0, backward_ms=0, weight_ms=0,
             latency_ms=[[5, 0], [0, 0]], activation_limit=[4, math.inf, math.inf],
             released_by_b=0),
    Nccl(base_ms=1.0),
)  # fmt: skip
def test_no_list_schedule_within_the_limits_is_faster_over_that_transport(
    scenario: Scenario, over: Transport
) -> None:
    found = simulate(scenario, search(scenario, over=over, moves=100), over).iteration_ms
    for orders in list_schedules(scenario):
        other = Schedule(orders, scenario.placement, scenario.microbatches)
        assert found <= simulate(scenario, other, over).iteration_ms * (1 + 1e-9)


@pytest.mark.parametrize("over", OTHERS, ids=str)
def test_a_faster_plan_that_needs_host_memory_is_not_chosen(over: Transport) -> None:
    schedule = search(CAPPED, over=over, moves=300)
    timeline = simulate(CAPPED, schedule, over)
    assert timeline.peak_activations.max() <= 3
    assert not timeline.peak_host_activations.any()
    hosted = simulate(CAPPED, plan(CAPPED, "pipemorph"), over)
    assert hosted.peak_activations.max() > 3


def test_what_it_leaves_out_would_have_been_faster() -> None:
    """So the limits decide in the test above, at least where nothing blocks."""
    over = Delegated(base_ms=4.0)
    within = simulate(CAPPED, search(CAPPED, over=over, moves=300), over).iteration_ms
    assert simulate(CAPPED, plan(CAPPED, "pipemorph"), over).iteration_ms < within
