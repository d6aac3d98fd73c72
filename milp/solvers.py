"""Running a solver on the model and judging what it says."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from milp.network import Network
from milp.result import Result, Status
from pipesim.errors import SolverError
from pipesim.scenario import Scenario

if TYPE_CHECKING:
    import pulp

    from milp.model import Model

__all__ = ["SOLVERS", "solve"]

SOLVERS = ("highs", "cbc")


def solve(
    scenario: Scenario, *, time_limit_s: float = 60.0, solver: str = "highs", threads: int = 1
) -> Result:
    """Find the order of F, B and W with the shortest iteration under the ideal transport.

    Delays count, for each link and direction, and so do the devices' activation limits
    and any placement. Backwards are always split. See :mod:`milp.model` for the program,
    :class:`milp.network.Network` for the one assumption in it.

    Parameters
    ----------
    scenario : Scenario
        Small: the number of binaries grows with stages · micro-batches².
    time_limit_s : float
        Seconds that the solver may take.
    solver : {"highs", "cbc"}
        HiGHS by highspy, or the CBC that PuLP brings.
    threads : int
        Threads of the solver.

    Returns
    -------
    Result
        ``objective_ms`` is the exact ideal iteration time of the schedule, free of the
        solver's rounding.

    Raises
    ------
    SolverError
        The solver is unknown, missing or fails, or the limit or the threads are not above 0.

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
    needed = [len(stages) for stages in scenario.stages_of]
    if (np.asarray(scenario.activation_limit) < needed).any():
        return Result("infeasible", math.inf, math.inf, time.perf_counter() - began, solver)
    network = Network(scenario)
    try:
        from milp.model import Model

        model = Model(network)
        status, bound = _run(model, solver, time_limit_s, threads)
    except ImportError as error:
        raise SolverError(f"{solver}: {error.name} is not installed") from None
    bound = max(bound, network.bound_ms)
    schedule, objective = None, math.inf
    if status in ("optimal", "feasible"):
        limits = np.asarray(scenario.activation_limit).tolist()
        schedule = model.schedule(
            delay_ms=scenario.delay_ms.tolist(),
            activation_limit=[None if math.isinf(limit) else limit for limit in limits],
        )
        objective = network.makespan_ms(schedule)
        bound = objective if status == "optimal" else min(bound, objective)
        # A schedule as short as the bound is proven, whoever ran out of time.
        status = "optimal" if bound == objective else status
    return Result(status, objective, bound, time.perf_counter() - began, solver, schedule)


def _run(model: Model, solver: str, time_limit_s: float, threads: int) -> tuple[Status, float]:
    """Let the solver work; return what it found and its lower bound, −inf where unknown."""
    import pulp

    limit = None if math.isinf(time_limit_s) else time_limit_s
    options = {"msg": False, "gapRel": 0, "threads": threads, "timeLimit": limit}
    if solver == "highs":
        import highspy

        # Its threads belong to the process: without this a second solve keeps the first's.
        highspy.Highs.resetGlobalScheduler(True)
        command: pulp.LpSolver = pulp.HiGHS(**options)
    else:
        command = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, **options)
        if not command.available():
            raise SolverError("cbc: the program is missing from PuLP, or may not be executed")
    try:
        with _silent():
            model.problem.solve(command)
    except pulp.PulpSolverError as error:
        raise SolverError(f"{solver} failed: {error}") from None
    bound = -math.inf
    if solver == "highs":
        bound = float(model.problem.solverModel.getInfo().mip_dual_bound)
    found: dict[int, Status] = {
        pulp.LpSolutionOptimal: "optimal",
        pulp.LpSolutionIntegerFeasible: "feasible",
    }
    if model.problem.sol_status == pulp.LpSolutionInfeasible:
        raise SolverError(f"{solver} finds no schedule, but one micro-batch at a time is one")
    return found.get(model.problem.sol_status, "unknown"), bound


@contextmanager
def _silent() -> Iterator[None]:
    """Keep native libraries from printing: HiGHS greets on standard output."""
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)
