"""What the published PipeMorph runs ran: the planner of the artifact, in its own arithmetic.

It differs from the paper's Algorithms 2–4 (:mod:`.pipemorph`) in what it calls the budget of a
link, and in when a warm-up ends. The operator timelines of the published runs have its orders, to
the letter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.scenario import Kind, Scenario
from pipesim.schedule import Assumptions, Schedule
from planners.greedy import ListScheduler
from planners.registry import planner

__all__ = ["artifact_warmup", "pipemorph_artifact"]


@planner("pipemorph-artifact", chunks=None)
def pipemorph_artifact(scenario: Scenario) -> Schedule:
    """The plan of PipeMorph's public artifact: times in whole milliseconds, no activation limit.

    Operator times are means over the micro-batches, rounded to whole milliseconds, at least one;
    a message arrives at the first whole millisecond after its delay. Unlike those of other
    planners, such a plan depends on the unit of time.

    Raises
    ------
    ScheduleError
        A device holds more than one stage.

    Examples
    --------
    >>> slow = Scenario().with_delay(20, links=[0])
    >>> pipemorph_artifact(slow).assumed.warmup
    (9, 5, 3, 1)
    """
    if not scenario.is_plain:
        raise ScheduleError("pipemorph-artifact needs one stage on each device, in order")
    profiled = _in_whole_ms(scenario)
    warmup = artifact_warmup(profiled)
    orders, _ = _Artifact(profiled, warmup).run()
    assumed = Assumptions(
        delay_ms=scenario.delay_ms.tolist(),
        activation_limit=scenario.activation_limit.tolist(),
        host_limit=scenario.host_limit.tolist(),
        warmup=warmup,
    )
    return Schedule(
        orders, scenario.placement, scenario.microbatches, "pipemorph-artifact", assumed
    )


def artifact_warmup(scenario: Scenario) -> list[int]:
    """Forwards of each stage before its first backward, shape [S]: x_i = x_{i+1} + ⌈c_i/t_F⌉ + 2.

    c_i is the longer delay of link i and t_F the time of a forward on stage i. No x_i is over N:
    the published code has no such cap, and waits for ever where it would be needed.

    Examples
    --------
    >>> artifact_warmup(Scenario().with_delay(25, links=[2]))
    [10, 8, 6, 1]
    """
    forward_ms = scenario.forward_ms.mean(axis=1)
    warmup = [1]
    for link in reversed(range(scenario.stages - 1)):
        needed = math.ceil(scenario.delay_ms[link].max() / forward_ms[link]) + 2
        warmup.append(min(warmup[-1] + needed, scenario.microbatches))
    return warmup[::-1]


def _in_whole_ms(scenario: Scenario) -> Scenario:
    times = {
        f"{name}_ms": np.maximum(np.rint(getattr(scenario, f"{name}_ms").mean(axis=1)), 1.0)
        for name in ("forward", "backward", "weight")
    }
    delays = np.ceil(scenario.delay_ms)
    return scenario.replaced(**times, latency_ms=delays, occupancy_ms=0.0)


class _Artifact(ListScheduler):
    """A list scheduler whose stages run exactly their warm-up, and sometimes more.

    A stage runs nothing but forwards until it has run its warm-up, and no further one before its
    first backward. But one that has nothing to run while its first gradient is under way stops
    counting: forwards that come before the gradient then run.
    """

    def __init__(self, scenario: Scenario, warmup: Sequence[int]) -> None:
        super().__init__(scenario, [math.inf] * scenario.devices, warmup)
        self.least = tuple(warmup)

    def may_start(self, kind: Kind, s: int) -> bool:
        """Whether an operator of a kind may start on a stage."""
        if kind != "F" and self.forwards[s] < self.least[s]:
            return False
        return super().may_start(kind, s)

    def _happen(self, what: int, s: int, now: float, events: list[tuple[float, int, int]]) -> None:
        # What a stage found when it had nothing to run matters once it has a forward again.
        if what == self._ACTIVATION and self._waits_for_gradient(s):
            self.warmup[s] = self.n
        super()._happen(what, s, now, events)

    def _waits_for_gradient(self, s: int) -> bool:
        """Whether a stage has run all its forwards, and a gradient has left the next one."""
        waits = self.idle[s] and self.forwards[s] == self.activations[s] >= self.least[s]
        return waits and s + 1 < len(self.least) and self.b_ended[s + 1] > 0
