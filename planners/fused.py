"""Planners with a fused backward, as Megatron-LM and torch run them: GPipe and 1F1B."""

from __future__ import annotations

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from planners.registry import planner

__all__ = ["gpipe", "interleaved_1f1b", "one_f_one_b"]

_ASSUMED = Assumptions(delay_ms=0.0)
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
    return Schedule(orders, scenario.placement, scenario.microbatches, "gpipe", _ASSUMED)


@planner("1f1b")
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
        orders.append(_alternate(forwards, backwards, warmup))
    return Schedule(orders, scenario.placement, n, "1f1b", _ASSUMED)


@planner("interleaved-1f1b")
def interleaved_1f1b(scenario: Scenario) -> Schedule:
    """Megatron-LM's 1F1B over v chunks per device, in groups of D micro-batches.

    Device d runs 2·(D − d − 1) + (v − 1)·D forwards before it first alternates.

    Raises
    ------
    ScheduleError
        The placement is not interleaved, or N is not a multiple of D.
    """
    devices, n = scenario.devices, scenario.microbatches
    chunks = scenario.stages // devices
    if scenario.placement != scenario.place("interleaved", devices, chunks):
        raise ScheduleError(
            "interleaved-1f1b needs stage s on device s mod D, and v stages on each"
        )
    if n % devices:
        raise ScheduleError(
            f"interleaved-1f1b needs a multiple of {devices} micro-batches (one group is "
            f"{devices}), not {n}"
        )
    groups = [range(first, first + devices) for first in range(0, n, devices)]
    orders = []
    for d in range(devices):
        stages = scenario.stages_of[d]
        forwards = [Op("F", s, m) for group in groups for s in stages for m in group]
        backwards = [Op("BW", s, m) for group in groups for s in reversed(stages) for m in group]
        ahead = 2 * (devices - d - 1) + (chunks - 1) * devices
        orders.append(_alternate(forwards, backwards, min(ahead + 1, len(forwards))))
    return Schedule(orders, scenario.placement, n, "interleaved-1f1b", _ASSUMED)


def _alternate(forwards: list[Op], backwards: list[Op], warmup: int) -> list[Op]:
    """``warmup`` forwards, then backward and forward in turn, then the other backwards."""
    steady = len(forwards) - warmup
    pairs = zip(backwards, forwards[warmup:], strict=False)
    return [*forwards[:warmup], *(op for pair in pairs for op in pair), *backwards[steady:]]
