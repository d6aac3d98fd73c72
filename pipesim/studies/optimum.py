"""The exact optimum of a scenario, starting from the best plan that the planners have."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter

import numpy as np

from milp import Result, solve
from pipesim.analysis import lower_bound_ms
from pipesim.engine import Runs, evaluate
from pipesim.errors import ScheduleError, SolverError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from planners import plan

__all__ = ["INCUMBENTS", "best_within_limits", "optimum"]

INCUMBENTS = ("zerobubble", "zb-h1", "zb-h2", "pipemorph", "search")
"""Planners to start from, the slowest last."""

_TOLERANCE = 1e-9
_SECONDS_EACH = 25e-6
"""To plan and run an operator, by a rough estimate."""
_TRIALS_S = 0.1
"""For pipemorph to try other plans on top: up to 20,000 operators, whatever the pipeline."""
_LOADING_S, _AS_LONG = 0.8, 10
"""The search loads machine code, and then takes as long as so many other planners."""
_PLANNING, _PLANNING_S = 0.6, 0.25
"""Part of the time limit for planning, and the least that it gets."""
_AT_ONCE_S = 1e-3
"""For a solver to check the plan and say what is known at once."""


def best_within_limits(scenario: Scenario, *, deadline: float = math.inf) -> Schedule | None:
    """Return the shortest plan of :data:`INCUMBENTS`, by simulation, that fits the devices.

    Plans that move activations to the host do not count. None where no planner has one.

    Parameters
    ----------
    scenario : Scenario
        What to plan for.
    deadline : float
        Moment of ``time.perf_counter``; planners that would hardly end by then are left out.

    Examples
    --------
    >>> best_within_limits(Scenario().with_delay(20, links=[0])).planner
    'pipemorph'
    """
    best, best_ms = None, math.inf
    enough_ms = lower_bound_ms(scenario) * (1 + _TOLERANCE)
    longest_s = _estimated_s(scenario)
    for name in INCUMBENTS:
        if best_ms <= enough_ms:
            break
        began = perf_counter()
        needed_s = {
            "pipemorph": longest_s + _TRIALS_S,
            "search": _LOADING_S + _AS_LONG * longest_s,
        }
        if began + needed_s.get(name, longest_s) > deadline:
            break
        try:
            schedule = plan(scenario, name)
        except ScheduleError:  # it is not for this placement, or has no plan for these limits
            continue
        timeline = Runs(schedule, "ideal").timeline(scenario)
        fits = timeline.peak_activations <= np.asarray(scenario.activation_limit) + _TOLERANCE
        if fits.all() and timeline.iteration_ms < best_ms:
            best, best_ms = schedule, timeline.iteration_ms
        longest_s = max(longest_s, perf_counter() - began)
    return best


def _estimated_s(scenario: Scenario) -> float:
    return _SECONDS_EACH * 3 * scenario.stages * scenario.microbatches


def optimum(
    scenario: Scenario, *, solver: str = "highs", time_limit_s: float = 60.0, threads: int = 1
) -> Result:
    """Solve for the shortest iteration, and run the schedule on the engine.

    Parameters
    ----------
    scenario, solver, time_limit_s, threads
        See :func:`milp.solve`. The time limit is for the planners, too.

    Returns
    -------
    Result
        ``objective_ms`` is the engine's.

    Raises
    ------
    SolverError
        As for :func:`milp.solve`, or the engine gives the schedule another iteration time.

    Examples
    --------
    >>> result = optimum(Scenario().with_delay(20, links=[0]))
    >>> result.status, result.objective_ms
    ('optimal', 410.0)
    """
    began = perf_counter()
    planning_s = max(_PLANNING * time_limit_s, _PLANNING_S)
    incumbent = best_within_limits(scenario, deadline=began + planning_s)
    spent_s = perf_counter() - began
    left_s = time_limit_s - spent_s - _estimated_s(scenario)  # to run the schedule once more
    result = solve(
        scenario,
        incumbent=incumbent,
        solver=solver,
        time_limit_s=max(left_s, _AT_ONCE_S) if time_limit_s > 0 else time_limit_s,
        threads=threads,
    )
    result = replace(result, seconds=result.seconds + spent_s)
    if result.schedule is None:
        return result
    iteration_ms = evaluate(scenario, result.schedule)
    if not math.isclose(iteration_ms, result.objective_ms, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise SolverError(
            f"{solver} says {result.objective_ms:g} ms for its schedule, the engine "
            f"{iteration_ms:g} ms"
        )
    return replace(result, objective_ms=iteration_ms, bound_ms=min(result.bound_ms, iteration_ms))
