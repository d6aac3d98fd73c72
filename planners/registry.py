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
from pipesim.transport import Transport

__all__ = ["Planner", "get", "names", "plan", "planner", "summary"]

ENTRY_POINTS = "pipesim.planners"


class Planner(Protocol):
    """Makes a schedule for a scenario.

    One that has a parameter ``over`` besides is told the transport that the plan is for.
    """

    def __call__(self, scenario: Scenario) -> Schedule:
        """Return a complete schedule; raise ScheduleError where there is none."""


P = TypeVar("P", bound=Callable[..., Schedule])
_BUILT_IN: dict[str, Callable[..., Schedule]] = {}


def planner(name: str) -> Callable[[P], P]:
    """Register the decorated function as the built-in planner ``name``."""

    def register(function: P) -> P:
        _BUILT_IN[name] = function
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


def plan(scenario: Scenario, name: str, *, over: str | Transport = "ideal") -> Schedule:
    """Plan ``scenario`` with the planner called ``name``.

    Parameters
    ----------
    scenario : Scenario
        What to plan for.
    name : str
        See :func:`names`.
    over : str or Transport
        The transport that the plan is for. Most planners know of none.

    Raises
    ------
    ScheduleError
        There is no such planner, or it has no schedule for this scenario.

    Examples
    --------
    >>> from pipesim import Scenario
    >>> [str(op) for op in plan(Scenario(stages=2, microbatches=2), "1f1b").orders[1]]
    ['1F0', '1BW0', '1F1', '1BW1']
    """
    function = get(name)
    if "over" in signature(function).parameters:
        return cast(Callable[..., Schedule], function)(scenario, over=over)
    return function(scenario)
