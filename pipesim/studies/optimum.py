"""The exact optimum of a scenario, starting from the best plan that the planners have."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from milp import Result, solve
from pipesim.engine import Runs, evaluate
from pipesim.errors import ScheduleError, SolverError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from planners import plan

__all__ = ["INCUMBENTS", "best_within_limits", "optimum"]

INCUMBENTS = ("zerobubble", "zb-h1", "zb-h2", "pipemorph", "search")
"""Planners to start from."""

_TOLERANCE = 1e-9


def best_within_limits(scenario: Scenario) -> Schedule | None:
    """Return the shortest plan of :data:`INCUMBENTS`, by simulation, that fits the devices.

    Plans that move activations to the host do not count. None where no planner has one.

    Examples
    --------
    >>> best_within_limits(Scenario().with_delay(20, links=[0])).planner
    'pipemorph'
    """
    best, best_ms = None, math.inf
    for name in INCUMBENTS:
        try:
            schedule = plan(scenario, name)
        except ScheduleError:  # it is not for this placement, or has no plan for these limits
            continue
        timeline = Runs(schedule, "ideal").timeline(scenario)
        fits = timeline.peak_activations <= np.asarray(scenario.activation_limit) + _TOLERANCE
        if fits.all() and timeline.iteration_ms < best_ms:
            best, best_ms = schedule, timeline.iteration_ms
    return best


def optimum(
    scenario: Scenario, *, solver: str = "highs", time_limit_s: float = 60.0, threads: int = 1
) -> Result:
    """Solve for the shortest iteration, and run the schedule on the engine.

    Parameters
    ----------
    scenario, solver, time_limit_s, threads
        See :func:`milp.solve`.

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
    result = solve(
        scenario,
        incumbent=best_within_limits(scenario),
        solver=solver,
        time_limit_s=time_limit_s,
        threads=threads,
    )
    if result.schedule is None:
        return result
    iteration_ms = evaluate(scenario, result.schedule)
    if not math.isclose(iteration_ms, result.objective_ms, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise SolverError(
            f"{solver} says {result.objective_ms:g} ms for its schedule, the engine "
            f"{iteration_ms:g} ms"
        )
    return replace(result, objective_ms=iteration_ms, bound_ms=min(result.bound_ms, iteration_ms))
