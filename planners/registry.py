"""The registry of planners: the built-in ones and those of other packages.

Another package adds a planner through the entry-point group ``pipesim.planners``; the entry
point's name is the planner's name and its object a function from a Scenario to a Schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import Protocol, TypeVar, cast

from pipesim.errors import PipesimError, ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.target import Target
from pipesim.transport import Transport, transport

__all__ = ["Planner", "chunks", "get", "names", "plan", "planner", "summary", "takes_group_size"]

ENTRY_POINTS = "pipesim.planners"


class Planner(Protocol):
    """Makes a schedule for a scenario.

    One that has a parameter ``over`` besides is told the transport that the plan is for; to
    others, what messages cost there is a part of every link's delay. One that has ``group_size``
    can be told how many micro-batches go through a chunk before the next.
    """

    def __call__(self, scenario: Scenario) -> Schedule:
        """Return a complete schedule; raise ScheduleError where there is none."""


P = TypeVar("P", bound=Callable[..., Schedule])
_BUILT_IN: dict[str, Callable[..., Schedule]] = {}
_CHUNKS: dict[str, int | None] = {}


def planner(name: str, *, chunks: int | None = 1) -> Callable[[P], P]:
    """Register the decorated function as the built-in planner ``name``.

    Parameters
    ----------
    name : str
        What users call it.
    chunks : int, optional
        See :func:`chunks`.
    """

    def register(function: P) -> P:
        _BUILT_IN[name], _CHUNKS[name] = function, chunks
        return function

    return register


def _foreign() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def names() -> list[str]:
    """The names of all planners, built-in ones first."""
    return [*_BUILT_IN, *sorted(set(_foreign()) - set(_BUILT_IN))]


def get(name: str) -> Planner:
    """Return the planner of that name.

    Raises
    ------
    ScheduleError
        There is none, or the package that promises it cannot be loaded.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    entry = _foreign().get(name)
    if entry is None:
        raise ScheduleError(f"unknown planner {name!r}: one of {', '.join(names())}")
    try:
        return cast(Planner, entry.load())
    except PipesimError:
        raise
    except Exception as error:  # whatever a foreign package does when it is imported
        raise ScheduleError(
            f"planner {name!r} ({entry.value}) cannot be loaded: {error}"
        ) from error


def summary(name: str) -> str:
    """The first line of a planner's docstring."""
    return (get(name).__doc__ or "").strip().partition("\n")[0]


def chunks(name: str) -> int | None:
    """Return how many chunks a planner wants each stage cut into, where the user does not say.

    None: it takes none, and runs one stage on each device. Of planners of other packages 1 is
    assumed.

    Examples
    --------
    >>> [chunks(name) for name in ("interleaved-1f1b", "zerobubble", "1f1b")]
    [2, 1, None]
    """
    return _CHUNKS.get(name, 1)


def takes_group_size(name: str) -> bool:
    """Whether a planner can be told its ``group_size``.

    Examples
    --------
    >>> takes_group_size("interleaved-1f1b"), takes_group_size("gpipe")
    (True, False)
    """
    return "group_size" in signature(get(name)).parameters


def plan(
    scenario: Scenario,
    name: str,
    *,
    over: str | Transport = "ideal",
    group_size: int | None = None,
    runtime: Target | None = None,
) -> Schedule:
    """Plan ``scenario`` with the planner called ``name``.

    Parameters
    ----------
    scenario : Scenario
        What to plan for.
    name : str
        See :func:`names`.
    over : str or Transport
        The transport that the plan is for. Most planners know of none, and are told what messages
        cost there as a part of every link's delay.
    group_size : int, optional
        Micro-batches that go through a chunk before the next, for ``interleaved-1f1b``.
    runtime : Target, optional
        The runtime that the plan is for. Planners are given what operators do there, and the plan
        says for which it is.

    Raises
    ------
    ScheduleError
        There is no such planner, it takes no group size, or it has no schedule for this scenario.

    Examples
    --------
    >>> from pipesim import Scenario
    >>> [str(op) for op in plan(Scenario(stages=2, microbatches=2), "1f1b").orders[1]]
    ['1F0', '1BW0', '1F1', '1BW1']
    """
    function = cast(Callable[..., Schedule], get(name))
    known = signature(function).parameters
    route = transport(over)
    told: dict[str, object] = {}
    if runtime is not None:
        scenario = runtime.adapted(scenario)
    if "over" in known:
        told["over"] = route
    elif (costs_ms := route.costs_ms(scenario)).any():
        scenario = scenario.with_message_cost(costs_ms)
    if group_size is not None:
        if not takes_group_size(name):
            raise ScheduleError(f"{name} takes no group size")
        told["group_size"] = group_size
    schedule = function(scenario, **told)
    return schedule if runtime is None else runtime.made(schedule)
