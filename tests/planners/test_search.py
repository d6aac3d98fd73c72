"""The search planner stays within limits, never loses what it has, and finds what rules miss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.analysis import lower_bound_ms
from pipesim.schedule import Schedule
from pipesim.transport import Delegated
from planners.search import list_schedules, search
from tests.strategies import examples, scenarios

LIMITED = Scenario(
    forward_ms=[9, 10, 10, 12],
    backward_ms=[11, 12, 12, 13],
    weight_ms=[7, 8, 8, 9],
    activation_limit=5,
).with_delay(25, [1])


def best_list_schedule(scenario: Scenario) -> float:
    return min(
        simulate(scenario, Schedule(o, scenario.placement, scenario.microbatches)).iteration_ms
        for o in list_schedules(scenario)
    )


@examples(2 / 5)
@given(scenarios(limited=True), st.integers(0, 3))
def test_it_is_within_the_limits_and_never_worse_than_its_start(
    scenario: Scenario, seed: int
) -> None:
    schedule = search(scenario, moves=400, seed=seed)
    timeline = simulate(scenario, schedule)
    assert (timeline.peak_activations <= scenario.activation_limit + 1e-9).all()
    assert timeline.iteration_ms <= best_list_schedule(scenario) * (1 + 1e-9)
    assert timeline.iteration_ms >= lower_bound_ms(scenario) * (1 - 1e-9)


def test_it_beats_list_scheduling_under_limits() -> None:
    found = simulate(LIMITED, search(LIMITED)).iteration_ms
    assert found < best_list_schedule(LIMITED)
    assert found < simulate(LIMITED, plan(LIMITED, "zerobubble")).iteration_ms


def test_the_same_seed_gives_the_same_plan() -> None:
    first, second = (search(LIMITED, moves=2000, seed=5) for _ in range(2))
    assert first == second


def test_it_stops_where_its_plan_meets_the_bound() -> None:
    scenario = Scenario().with_delay(20, [0])
    schedule = search(scenario, seconds=60.0)  # returns at once
    assert simulate(scenario, schedule).iteration_ms == 410
    assert schedule.assumed.transport == "ideal"


def test_it_may_plan_for_nccl() -> None:
    for_nccl = simulate(LIMITED, search(LIMITED, over="nccl"), "nccl").iteration_ms
    assert for_nccl <= simulate(LIMITED, search(LIMITED), "nccl").iteration_ms


@examples(1 / 5)
@given(scenarios(limited=True), st.sampled_from([0.5, 3.0, 20.0]))
def test_to_know_what_messages_cost_never_hurts(scenario: Scenario, cost_ms: float) -> None:
    untold = search(scenario, moves=200)
    for over in (Delegated(base_ms=cost_ms), Delegated(copy_base_ms=cost_ms, copy_on_demand=True)):
        told = search(scenario, over=over, moves=200)
        own, other = (simulate(scenario, one, over).iteration_ms for one in (told, untold))
        assert own <= other * (1 + 1e-9)


def test_several_stages_on_a_device() -> None:
    v = Scenario(
        stages=6, placement=Scenario.place("v", 3, 2), microbatches=6, activation_limit=6
    ).with_delay(15, [0])
    timeline = simulate(v, search(v))
    assert timeline.iteration_ms <= best_list_schedule(v)
    assert np.all(timeline.peak_activations <= 6)


@pytest.mark.parametrize("moves", [0, 1])
def test_few_moves_are_few(moves: int) -> None:
    assert simulate(LIMITED, search(LIMITED, moves=moves)).iteration_ms <= best_list_schedule(
        LIMITED
    )
