"""Planners with a fused backward, as Megatron-LM and torch run them: GPipe and 1F1B."""

from __future__ import annotations

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from planners.registry import planner

__all__ = ["ASSUMED", "alternating", "gpipe", "one_f_one_b"]

ASSUMED = Assumptions(delay_ms=0.0)
"""Their orders are fixed by the shape: they know of no delay and no limit."""


@planner("gpipe")
def gpipe(scenario: Scenario) -> Schedule:
    """All forwards, then all backwards (GPipe); with several stages per device, stage by stage."""
    microbatches = range(scenario.microbatches)
    orders = [
        [Op("F", s, m) for s in stages for m in microbatches]
        + [Op("BW", s, m) for s in reversed(stages) for m in microbatches]
        for stages in scenario.stages_of
    ]
    return Schedule(orders, scenario.placement, scenario.microbatches, "gpipe", ASSUMED)


@planner("1f1b", chunks=None)
def one_f_one_b(scenario: Scenario) -> Schedule:
    """A warm-up of D − d forwards on device d, then one forward and one backward in turn.

    Raises
    ------
    ScheduleError
        A device holds more than one stage.
    """
    if not scenario.is_plain:
        raise ScheduleError("1f1b needs one stage on each device, in order")
    n = scenario.microbatches
    orders = []
    for d in range(scenario.devices):
        warmup = min(scenario.devices - d, n)
        forwards = [Op("F", d, m) for m in range(n)]
        backwards = [Op("BW", d, m) for m in range(n)]
        orders.append(alternating(forwards, backwards, warmup))
    return Schedule(orders, scenario.placement, n, "1f1b", ASSUMED)


def alternating(forwards: list[Op], backwards: list[Op], warmup: int) -> list[Op]:
    """``warmup`` forwards, then backward and forward in turn, then the other backwards."""
    steady = len(forwards) - warmup
    pairs = zip(backwards, forwards[warmup:], strict=False)
    return [*forwards[:warmup], *(op for pair in pairs for op in pair), *backwards[steady:]]
