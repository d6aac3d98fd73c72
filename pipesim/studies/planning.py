"""What planners are given to plan for, and plans that are made once: the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.target import Target
from pipesim.transport import Transport
from planners import chunks as chunks_of
from planners import plan, takes_group_size

__all__ = ["Plans", "in_chunks"]


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


class Plans:
    """Plans and how long they took to make; none is made twice.

    Parameters
    ----------
    planned : callable
        What makes them, instead of :func:`planners.plan`.
    runtime : Target, optional
        What they are for, if :func:`planners.plan` makes them.
    """

    def __init__(
        self, planned: Callable[..., Schedule] = plan, runtime: Target | None = None
    ) -> None:
        self._planned, self._runtime = planned, runtime
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

        It is the same for both, and for all transports, where the planner says that it knows of no
        delay; and for all transports where it names none and messages cost as much.
        """
        who = (planner, scenario.placement, group_size)
        slow = bool(scenario.slow_links) and not healthy
        delays = (*who, slow, tuple(over.costs_ms(scenario).tolist()))
        exactly = (*who, slow, over)
        for key in (who, delays, exactly):
            if key in self._made:
                return self._made[key]
        told: dict[str, object] = {} if group_size is None else {"group_size": group_size}
        if self._runtime is not None:
            told["runtime"] = self._runtime
        what = scenario.without_delay() if healthy else scenario
        started = perf_counter()
        schedule = self._planned(what, planner, over=over, **told)
        result = schedule, perf_counter() - started
        assumed = schedule.assumed
        key = who if assumed.blind_to_delays else exactly if assumed.transport else delays
        self._made[key] = result
        return result
