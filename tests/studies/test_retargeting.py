"""What a plan costs in a runtime that it was not made for: every figure is the engine's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given

from pipesim.engine import deadlocked, evaluate
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Schedule
from pipesim.studies.retargeting import assumed_delays, retargeted
from pipesim.target import TARGETS, target
from pipesim.transport import Ideal, Nccl, Transport
from planners import plan
from tests.strategies import communicating, examples, transports

TORCH = target("torch")
EXAMPLE = Scenario().with_delay(20, links=[0], kind="latency")


def test_the_worked_example() -> None:
    found = retargeted(EXAMPLE, plan(EXAMPLE, "zerobubble"), TORCH, Ideal())
    assert found is not None
    assert (found.meant_ms, found.there_ms, found.planned_ms) == (440, 470, 410)
    assert (found.meant_peak, found.there_peak) == (9.5, 12)
    assert found.planned == plan(EXAMPLE, "zerobubble", runtime=TORCH)


def test_nothing_where_the_runtime_does_what_was_planned() -> None:
    for name, runtime in TARGETS.items():
        made = plan(EXAMPLE, "zerobubble", runtime=runtime)
        assert retargeted(EXAMPLE, made, runtime, Ideal()) is None
        assert retargeted(EXAMPLE, plan(EXAMPLE, "1f1b"), runtime, Ideal()) is None
        assert (retargeted(EXAMPLE, made, TORCH, Ideal()) is None) == (name == "torch")


def test_pipemorph_plans_where_nobody_knows_the_plans_planner() -> None:
    bare = plan(EXAMPLE, "zerobubble")
    unknown = Schedule(bare.orders, bare.placement, bare.microbatches, "mine")
    found = retargeted(EXAMPLE, unknown, TORCH, Ideal())
    assert found is not None
    assert found.planned.planner == "pipemorph"


@given(communicating(), transports)
@examples(1 / 2)
def test_times_are_the_engines_over_what_runs(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    """An order of its own that hangs over the transport is timed where nothing blocks."""
    scenario, schedule = case
    found = retargeted(scenario, schedule, TORCH, over)
    if found is None:
        assert schedule.is_fused[0].all()
        return
    assert found.over == (over.unblocked if deadlocked(schedule, over) else over)
    there = TORCH.adapted(scenario)
    assert found.meant_ms == evaluate(scenario, schedule, found.over)
    assert found.there_ms == evaluate(there, schedule, found.over)
    assert found.planned_ms == evaluate(there, found.planned, found.over)


def test_the_delays_that_a_plan_was_made_for() -> None:
    slow = Scenario().with_delay(5, links=[1], directions=["up"])
    assert assumed_delays(plan(slow, "zerobubble"), slow) == Scenario()
    there = assumed_delays(plan(slow, "pipemorph"), Scenario().with_delay(70, links=[2]))
    assert np.array_equal(there.occupancy_ms, slow.delay_ms)
    assert not there.latency_ms.any()
    costly = plan(slow, "pipemorph", over=Nccl(base_ms=2))
    assert assumed_delays(costly, slow).occupancy_ms.tolist() == [[2, 2], [2, 7], [2, 2]]
    v = Scenario(stages=4, placement=Scenario.place("v", 2, 2))
    everywhere = Assumptions(delay_ms=3)
    told = replace(plan(v, "zerobubble"), assumed=everywhere)
    assert assumed_delays(told, v).occupancy_ms.tolist() == [[3, 3], [0, 0], [3, 3]]
    alone = Scenario(stages=1)
    assert assumed_delays(plan(alone, "pipemorph"), alone) == alone
