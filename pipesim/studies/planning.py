"""What a planner is given to plan for a transport: the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Ideal, Transport
from planners import chunks as chunks_of
from planners import plan, takes_group_size

__all__ = ["Plans", "in_chunks", "plan_over"]


def in_chunks(scenario: Scenario, planner: str, chunks: int | None = None) -> Scenario:
    """Return the scenario with its stages cut into chunks.

    Parameters
    ----------
    scenario : Scenario
        What to plan for.
    planner : str
        Who plans.
    chunks : int, optional
        How many. Default: as many as the planner wants (:func:`planners.chunks`), if the
        scenario is plain; else its stages stay as they are.

    Raises
    ------
    ScenarioError, ScheduleError
        The scenario is not plain, or the planner takes no chunks.

    Examples
    --------
    >>> [in_chunks(Scenario(), name).stages for name in ("interleaved-1f1b", "gpipe")]
    [8, 4]
    """
    wanted = chunks_of(planner)
    if chunks is None:
        chunks = (wanted or 1) if scenario.is_plain else 1
    elif chunks > 1 and wanted is None:
        raise ScheduleError(f"{planner} runs one stage on each device, and no chunks")
    return scenario.interleaved(chunks) if chunks > 1 else scenario


def plan_over(
    scenario: Scenario,
    planner: str,
    over: Transport,
    *,
    group_size: int | None = None,
    planned: Callable[..., Schedule] = plan,
) -> Schedule:
    """Plan a scenario for a transport, and for what every message costs there.

    Parameters
    ----------
    scenario : Scenario
        What to plan for.
    planner : str
        Who plans.
    over : Transport
        The planner is told its ``base_ms`` as a part of every link's delay, and the rest of it as
        the transport.
    group_size : int, optional
        See :func:`planners.plan`.
    planned : callable
        What to call instead of :func:`planners.plan`.

    Examples
    --------
    >>> plan_over(Scenario(), "pipemorph", Delegated(base_ms=2.0)).assumed.delay_ms
    ((2.0, 2.0), (2.0, 2.0), (2.0, 2.0))
    """
    told = {} if group_size is None else {"group_size": group_size}
    return planned(scenario.with_message_cost(over.base_ms), planner, over=_known_of(over), **told)


def _known_of(over: Transport) -> Transport:
    """What a plan for a transport has to know of it, besides what every message costs.

    Delegates that are always free block nothing.
    """
    free = replace(over, base_ms=0.0)
    return Ideal() if free == Delegated() else free


class Plans:
    """Plans and how long they took to make; none is made twice.

    Parameters
    ----------
    planned : callable
        See :func:`plan_over`.
    """

    def __init__(self, planned: Callable[..., Schedule] = plan) -> None:
        self._planned = planned
        self._made: dict[tuple[object, ...], tuple[Schedule, float]] = {}

    def takes_group_size(self, planner: str) -> bool:
        """Whether a planner can be told its ``group_size``."""
        return self._planned is plan and takes_group_size(planner)

    def of(
        self,
        scenario: Scenario,
        planner: str,
        over: Transport,
        *,
        group_size: int | None = None,
        healthy: bool,
    ) -> tuple[Schedule, float]:
        """Return the plan for a scenario, or for the same on healthy links, and its seconds.

        It is the same for both where the planner says that it knows of no delay, and the same
        for all transports where it names none and messages cost as much.
        """
        slow = bool(scenario.slow_links)
        known = _known_of(over)
        one = (planner, scenario.placement, group_size, over.base_ms)

        def made(slow: bool) -> tuple[Schedule, float] | None:
            keys = ((*one, slow, way) for way in (None, known))
            return next((self._made[key] for key in keys if key in self._made), None)

        if (kept := made(slow)) and kept[0].assumed.blind_to_delays:
            return kept
        slow = slow and not healthy
        if kept := made(slow):
            return kept
        started = perf_counter()
        delays = scenario.without_delay() if healthy else scenario
        schedule = plan_over(delays, planner, over, group_size=group_size, planned=self._planned)
        result = schedule, perf_counter() - started
        self._made[*one, slow, known if schedule.assumed.transport else None] = result
        return result
