"""Strategies: what a job does about slow links, and the plans that this leads to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from pipesim.delays import DelayTrace
from pipesim.engine import Injection, Iterations
from pipesim.lowering import lower
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Transport
from planners import plan

__all__ = ["Knows", "Plan", "Planning", "Prepared", "Strategy"]

Knows: TypeAlias = Literal["measurements", "delays"]
"""What tells a job that a link is slow: past transfer times, or an oracle."""

KEPT = 32
"""Plans that are kept: those of a large pipeline take megabytes each, and there may be thousands of
them in a day."""

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
    """What can be said of a plan, however large the pipeline.

    Attributes
    ----------
    delay_ms : array, shape [S−1, 2]
        The delays that it was made for.
    delegates : array of bool, shape [S−1, 2]
        Which messages go through delegates.
    delegation_ms : float
        What the latencies and copies of these cost an iteration under the delays.
    """

    delay_ms: Array
    delegates: NDArray[np.bool_]
    delegation_ms: float = 0.0


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan that can be run, from one swap to the next.

    Attributes
    ----------
    plan : Plan
        What was planned for.
    schedule : Schedule
        The order of operators.
    runs : Iterations
        The same over the transport that it was made for.
    """

    plan: Plan
    schedule: Schedule
    runs: Iterations


class Planning:
    """The plans of one strategy; those last used are not made again.

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
        self._made: dict[bytes, Prepared] = {}  # the last used is last
        self._lowered: WeakValueDictionary[Hashable, Iterations] = WeakValueDictionary()

    @cached_property
    def healthy(self) -> Prepared:
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

    def plan(self, delay_ms: Array) -> Prepared:
        """Return the plan for some delays, shape [S−1, 2].

        The messages of slow links are delegated where that is shorter, under these delays, than to
        go on with the plan for healthy links.
        """
        if not self.adapts or not delay_ms.any():
            return self.healthy
        key = delay_ms.tobytes()
        made = self._made.pop(key, None) or self._for(delay_ms)
        self._made[key] = made
        if len(self._made) > KEPT:
            del self._made[next(iter(self._made))]
        return made

    def _direct(self, delay_ms: Array) -> Prepared:
        told, over = self.scenario.replaced(occupancy_ms=delay_ms), self.strategy.direct
        schedule = plan(told, self.strategy.planner, over=over)
        nowhere = np.zeros(delay_ms.shape, dtype=bool)
        return Prepared(Plan(delay_ms, nowhere), schedule, self._runs(schedule, told, over))

    def _runs(self, schedule: Schedule, told: Scenario, over: Transport) -> Iterations:
        """Lower a schedule; the same orders with the same delegates are the same program."""
        key = over.name, schedule.codes.tobytes(), (told.delay_ms > 0).tobytes()
        runs = self._lowered.get(key) or Iterations(lower(schedule, told, over))
        self._lowered[key] = runs
        return runs

    def _for(self, delay_ms: Array) -> Prepared:
        if self.strategy.delegated is None:
            made = self._direct(delay_ms)
        else:
            made = self._delegating(delay_ms, self.strategy.delegated)
        kept_ms, made_ms = (self.iteration_ms(one.runs, delay_ms) for one in (self.healthy, made))
        if kept_ms <= made_ms * (1 + _SAME):
            plan = replace(self.healthy.plan, delay_ms=delay_ms)
            return replace(self.healthy, plan=plan)
        return made

    def _delegating(self, delay_ms: Array, delegated: Delegated) -> Prepared:
        told = self.scenario.replaced(occupancy_ms=delay_ms)
        over = replace(delegated, only_slow=True)
        schedule = plan(told, self.strategy.planner, over=over)
        runs, cost_ms = self._runs(schedule, told, over), 0.0
        if (free := _free(over)) != over:
            cheaper = Iterations(lower(schedule, told, free))
            cost_ms = self.iteration_ms(runs, delay_ms) - self.iteration_ms(cheaper, delay_ms)
        return Prepared(Plan(delay_ms, delay_ms > 0, max(0.0, cost_ms)), schedule, runs)

    def iteration_ms(self, runs: Iterations, delay_ms: Array) -> float:
        """Return how long an iteration takes whose links have these delays, shape [S−1, 2]."""
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
