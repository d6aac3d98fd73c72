"""The shortest iteration by any of the solvers."""

from __future__ import annotations

import importlib
import math
import time
from typing import cast

from milp.attempt import Backend
from milp.ctrl_c import noted_ctrl_c
from milp.known import Known
from milp.network import Network, in_order_suffices
from milp.result import Result
from milp.running import Running
from milp.searches import search_any_order, search_in_order
from pipesim.analysis import bounds
from pipesim.errors import SolverError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule

__all__ = ["SOLVERS", "solve"]

_PACKAGES = {"highs": "highspy", "cbc": "pulp", "cpsat": "ortools"}
SOLVERS = tuple(_PACKAGES)


def solve(
    scenario: Scenario,
    *,
    incumbent: Schedule | None = None,
    time_limit_s: float = 60.0,
    solver: str = "highs",
    threads: int = 1,
) -> Result:
    """Find the order of F, B and W with the shortest iteration under the ideal transport.

    Delays count, for each link and direction, and so do the devices' activation limits
    and any placement. Micro-batches may overtake each other where their times differ, and
    backwards may be split, or fused where that is shorter: see :mod:`milp.network` for what is
    taken for granted, and :mod:`milp.model` for the program.

    Where times have no common grain, solvers compute with an error: then ``optimal`` means that
    nothing is shorter by more than a millionth.

    Parameters
    ----------
    scenario : Scenario
        Small: the number of binaries grows with stages · micro-batches².
    incumbent : Schedule, optional
        A good schedule within the limits, such as the best planner's. The solver starts from
        it and looks for nothing longer.
    time_limit_s : float
        Seconds that all of it may take.
    solver : {"highs", "cbc", "cpsat"}
        HiGHS by highspy, the CBC that PuLP brings, or OR-Tools CP-SAT (``pipesim[cpsat]``).
    threads : int
        Threads of the solver.

    Returns
    -------
    Result
        ``objective_ms`` is the exact ideal iteration time of the schedule, free of the
        solver's rounding. After Ctrl-C, what was known until then.

    Raises
    ------
    SolverError
        The solver is unknown, missing or fails, the limit or the threads are not above 0,
        or the incumbent does not fit the scenario.

    Examples
    --------
    >>> result = solve(Scenario(stages=2, microbatches=2))
    >>> result.status, result.objective_ms, result.bound_ms
    ('optimal', 70.0, 70.0)
    """
    if solver not in SOLVERS:
        raise SolverError(f"unknown solver {solver!r}: one of {', '.join(SOLVERS)}")
    if not time_limit_s > 0:
        raise SolverError(f"the time limit must be above 0 seconds, not {time_limit_s:g}")
    if threads < 1:
        raise SolverError(f"a solver needs at least 1 thread, not {threads}")
    began = time.perf_counter()
    # Before the first B on a device, one micro-batch has passed through all of its stages.
    if not bounds.fits_limits(scenario):
        return Result("infeasible", math.inf, math.inf, time.perf_counter() - began, solver)
    with noted_ctrl_c() as pressed:
        run = Running(_backend(solver), threads, pressed, began + time_limit_s)
        known = _known(scenario, incumbent)
        search = search_in_order if in_order_suffices(scenario) else search_any_order
        search(known, run)
    return known.result(time.perf_counter() - began, solver, interrupted=pressed.is_set())


def _known(scenario: Scenario, incumbent: Schedule | None) -> Known:
    """What the incumbent says."""
    known = Known(Network(scenario))
    if incumbent:
        incumbent.check_fits(scenario)
        if (device := known.network.overfull(incumbent)) is not None:
            raise SolverError(
                f"the incumbent ({incumbent.planner}) holds more activations than device "
                f"{device} may"
            )
        known.keep(known.network.adapted(incumbent))
    return known


def _backend(solver: str) -> Backend:
    try:
        importlib.import_module(_PACKAGES[solver])
        module = importlib.import_module("milp.cpsat" if solver == "cpsat" else "milp.mip")
    except ImportError as error:
        extra = ": pip install 'pipesim[cpsat]'" if solver == "cpsat" else ""
        missing = (error.name or str(error)).partition(".")[0]
        raise SolverError(f"{solver}: {missing} is not installed{extra}") from None
    return cast(Backend, getattr(module, solver))
