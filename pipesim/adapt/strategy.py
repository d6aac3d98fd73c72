"""Strategies: what a job does about slow links, and the plans that this leads to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipesim.delays import DelayTrace
from pipesim.engine import Injection, Iterations
from pipesim.lowering import lower
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Transport
from planners import plan

__all__ = ["Knows", "Plan", "Planning", "Strategy"]

Knows: TypeAlias = Literal["measurements", "delays"]
"""What tells a job that a link is slow: past transfer times, or an oracle."""

_SAME = 1e-9


@dataclass(frozen=True)
class Strategy:
    """What a job does about slow links.

    Parameters
    ----------
    name, title : str
        For machines and for people.
    planner : str
        Who plans. Whether slow links lead to other plans is up to it.
    direct : Transport
        How messages travel over links that are not known to be slow.
    delegated : Delegated, optional
        How those of slow links do. Default: as all others.
    knows : {"measurements", "delays"}
        What it learns of links.
    """

    name: str
    title: str
    planner: str
    direct: Transport
    delegated: Delegated | None = None
    knows: Knows = "measurements"


@dataclass(frozen=True, eq=False)
class Plan:
    """What runs from one swap to the next.

    Attributes
    ----------
    delay_ms : array, shape [S−1, 2]
        The delays that it was made for.
    schedule : Schedule
        The order of operators.
    runs : Iterations
        The same over the transport that it was made for, to be run.
    delegates : array of bool, shape [S−1, 2]
        Which messages go through delegates.
    delegation_ms : float
        What the latencies and copies of these cost an iteration under the delays.
    """

    delay_ms: Array
    schedule: Schedule
    runs: Iterations
    delegates: NDArray[np.bool_]
    delegation_ms: float = 0.0


class Planning:
    """The plans of one strategy; none is made twice.

    Parameters
    ----------
    scenario : Scenario
        The job, with no delays.
    strategy : Strategy
        What it does about them.
    """

    def __init__(self, scenario: Scenario, strategy: Strategy) -> None:
        self.scenario = scenario
        self.strategy = strategy
        self._made: dict[bytes, Plan] = {}
        self._lowered: dict[Hashable, Iterations] = {}

    @cached_property
    def healthy(self) -> Plan:
        """The plan for healthy links; everything travels directly.

        Raises
        ------
        ScheduleError
            The planner has none.
        """
        return self._direct(np.zeros((self.scenario.stages - 1, 2)))

    @cached_property
    def adapts(self) -> bool:
        """Whether slow links lead to anything else than the plan for healthy ones."""
        blind = self.healthy.schedule.assumed.blind_to_delays
        return self.strategy.delegated is not None or not blind

    def plan(self, delay_ms: Array) -> Plan:
        """Return the plan for some delays, shape [S−1, 2].

        The messages of slow links are delegated where that is shorter, under these delays, than to
        go on with the plan for healthy links.
        """
        if not self.adapts or not delay_ms.any():
            return self.healthy
        key = delay_ms.tobytes()
        if key not in self._made:
            self._made[key] = self._for(delay_ms)
        return self._made[key]

    def _direct(self, delay_ms: Array) -> Plan:
        told, over = self.scenario.replaced(occupancy_ms=delay_ms), self.strategy.direct
        schedule = plan(told, self.strategy.planner, over=over)
        nowhere = np.zeros(delay_ms.shape, dtype=bool)
        return Plan(delay_ms, schedule, self._runs(schedule, told, over), nowhere)

    def _runs(self, schedule: Schedule, told: Scenario, over: Transport) -> Iterations:
        """Lower a schedule; the same orders with the same delegates are the same program."""
        key = over.name, schedule.codes.tobytes(), (told.delay_ms > 0).tobytes()
        if key not in self._lowered:
            self._lowered[key] = Iterations(lower(schedule, told, over))
        return self._lowered[key]

    def _for(self, delay_ms: Array) -> Plan:
        if self.strategy.delegated is None:
            made = self._direct(delay_ms)
        else:
            made = self._delegating(delay_ms, self.strategy.delegated)
        kept_ms, made_ms = (self._iteration_ms(one.runs, delay_ms) for one in (self.healthy, made))
        if kept_ms <= made_ms * (1 + _SAME):
            return replace(self.healthy, delay_ms=delay_ms)
        return made

    def _delegating(self, delay_ms: Array, delegated: Delegated) -> Plan:
        told, over = (
            self.scenario.replaced(occupancy_ms=delay_ms),
            replace(delegated, only_slow=True),
        )
        schedule = plan(told, self.strategy.planner, over=over)
        runs, cost_ms = self._runs(schedule, told, over), 0.0
        if (free := _free(over)) != over:
            cheaper = Iterations(lower(schedule, told, free))
            cost_ms = self._iteration_ms(runs, delay_ms) - self._iteration_ms(cheaper, delay_ms)
        return Plan(delay_ms, schedule, runs, delay_ms > 0, max(0.0, cost_ms))

    def _iteration_ms(self, runs: Iterations, delay_ms: Array) -> float:
        """An iteration whose links have these delays."""
        injection = Injection(DelayTrace([0.0], [delay_ms]))
        return runs.run(self.scenario, injection).iteration_ms


def _free(over: Delegated) -> Delegated:
    """The same delegates, whose messages cost nothing besides delays."""
    unlimited = float("inf")
    return replace(
        over,
        base_ms=0.0,
        bytes_per_ms=unlimited,
        copy_base_ms=0.0,
        copy_bytes_per_ms=unlimited,
    )
