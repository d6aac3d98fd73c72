"""The PuLP model on HiGHS and CBC: warm start, limits, and the solver's own status."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulp

from milp import ctrl_c
from milp.attempt import Attempt
from milp.model import Model
from milp.network import Network
from milp.result import Status
from pipesim.analysis.over import OutOfTime, go_on
from pipesim.errors import SolverError
from pipesim.schedule import Schedule

__all__ = ["cbc", "highs"]

_SHORTEST_S = 0.01
_PAIRS_A_SECOND, _UNDECIDED_A_SECOND = 100_000, 2_500
"""Pairs of operators on one device of which a model can be made and handed over in a second, by
all and by those that are left to the solver. Of more there is no time to solve it."""
_GRACE_S = 0.2
"""What a solver may take beyond its limit before it is stopped."""


class _WarmHighs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS, with the warm start that PuLP does not pass on to it.

    ``warmStart`` is an option of PuLP's other solvers; :class:`pulp.HiGHS` has none and
    never calls ``setSolution``. It also cannot be interrupted.
    """

    def __init__(
        self, pressed: ctrl_c.Pressed, deadline: float, *, warm: bool, **options: Any
    ) -> None:
        super().__init__(**options)
        self.pressed, self.deadline, self.warm = pressed, deadline, warm

    def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802
        """Hand the initial values over, run, and stop on Ctrl-C."""
        import highspy

        solver = lp.solverModel
        if self.warm:
            values = [0.0] * solver.getNumCol()
            for variable in lp.variables():
                values[variable.index] = variable.varValue
            solution = highspy.HighsSolution()
            solution.col_value, solution.value_valid = values, True
            solver.setSolution(solution)
        solver.HandleKeyboardInterrupt = True  # lets cancelSolve work
        ctrl_c.run(solver.run, solver.cancelSolve, self.pressed, self.deadline + _GRACE_S)


def highs(
    network: Network,
    horizon_ms: float,
    *,
    hint: Schedule | None,
    deadline: float,
    threads: int,
    pressed: ctrl_c.Pressed,
) -> Attempt:
    """Run HiGHS by highspy, see :class:`milp.attempt.Backend`."""
    import highspy

    model = _model(network, horizon_ms, hint, deadline)
    left_s = deadline - time.perf_counter()
    with _silent():
        # Its threads belong to the process: without this a second solve keeps the first's.
        highspy.Highs.resetGlobalScheduler(True)
        command = _WarmHighs(
            pressed, deadline, warm=hint is not None, **_options(left_s, threads), mip_abs_gap=0.0
        )
        _solve(model, command, "highs")
    solver = model.problem.solverModel
    info, said = solver.getInfo(), solver.getModelStatus()
    if said == highspy.HighsModelStatus.kInfeasible:
        return Attempt("infeasible", math.inf)
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    status: Status = "feasible" if found else "unknown"
    if found and said == highspy.HighsModelStatus.kOptimal:
        status = "optimal"
    schedule = model.schedule() if found else None
    bound_ms = float(info.mip_dual_bound) * model.unit_ms
    return Attempt(status, bound_ms, schedule)


class _InterruptibleCbc(pulp.COIN_CMD):  # type: ignore[misc]
    """PuLP's CBC, whose process ends on Ctrl-C and whose log is kept."""

    def __init__(self, pressed: ctrl_c.Pressed, deadline: float, **options: Any) -> None:
        super().__init__(path=pulp.PULP_CBC_CMD.pulp_cbc_path, **options)
        self.pressed, self.deadline, self.log = pressed, deadline, ""

    def solve_CBC(self, lp: pulp.LpProblem, use_mps: bool = True) -> int:  # noqa: N802
        """Run CBC on the problem's MPS file, as PuLP does, and read its solution."""
        problem, solution, start, log = self.create_tmp_files(lp.name, "mps", "sol", "mst", "log")
        variables, names, rows, _ = lp.writeMPS(problem, rename=1)
        command = [self.path, problem]
        if self.optionsDict.get("warmStart"):
            self.writesol(start, lp, variables, names, rows)
            command += ["-mips", start]
        if self.timeLimit is not None:
            command += ["-sec", str(self.timeLimit)]
        for option in self.getOptions():
            command += f"-{option}".split()
        command += ["-solve", "-printingOptions", "all", "-solution", solution]
        with (
            Path(log).open("w") as out,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            ) as process,
        ):
            ctrl_c.run(process.wait, process.kill, self.pressed, self.deadline + _GRACE_S)
        self.log = Path(log).read_text(errors="replace")
        if process.returncode < 0:  # killed: what it had is lost with it
            lp.assignStatus(pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound)
            return int(pulp.LpStatusNotSolved)
        if process.returncode or not Path(solution).exists():
            raise pulp.PulpSolverError(f"CBC ended with code {process.returncode}")
        status, values, *_, solved = self.readsol_MPS(solution, lp, variables, names, rows)
        lp.assignVarsVals(values)
        lp.assignStatus(status, solved)
        return int(status)


def cbc(
    network: Network,
    horizon_ms: float,
    *,
    hint: Schedule | None,
    deadline: float,
    threads: int,
    pressed: ctrl_c.Pressed,
) -> Attempt:
    """Run the CBC that PuLP brings, see :class:`milp.attempt.Backend`."""
    model = _model(network, horizon_ms, hint, deadline)
    left_s = deadline - time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = _InterruptibleCbc(
            pressed, deadline, warmStart=hint is not None, **_options(left_s, threads)
        )
        command.tmpDir = folder
        if not command.available():
            raise SolverError("cbc: the program is missing from PuLP, or may not be executed")
        try:
            _solve(model, command, "cbc")
        except SolverError:
            if hint is None:
                raise
            # CBC may crash when the time is over while it reads the warm start.
            return Attempt("unknown", -math.inf)
    if pressed.is_set():
        return Attempt("unknown", -math.inf)
    found: dict[int, Status] = {
        pulp.LpSolutionOptimal: "optimal",
        pulp.LpSolutionIntegerFeasible: "feasible",
        pulp.LpSolutionInfeasible: "infeasible",
    }
    status = found.get(model.problem.sol_status, "unknown")
    if status == "infeasible":
        return Attempt(status, math.inf)
    if status == "optimal":
        bound = float(pulp.value(model.end))
    else:
        stated = re.search(r"^Lower bound:\s*(\S+)", command.log, re.MULTILINE)
        bound = float(stated[1]) if stated else -math.inf
    schedule = model.schedule() if status != "unknown" else None
    return Attempt(status, bound * model.unit_ms, schedule)


def _model(network: Network, horizon_ms: float, hint: Schedule | None, deadline: float) -> Model:
    """Return the model; raise OutOfTime if there is no time for it."""
    left_s = deadline - time.perf_counter()
    if network.pairs > _PAIRS_A_SECOND * left_s:
        raise OutOfTime
    if len(network.undecided) > _UNDECIDED_A_SECOND * left_s:
        raise OutOfTime
    model = Model(network, horizon_ms)
    if hint:
        model.suggest(hint)
    go_on(network.over)
    return model


def _options(left_s: float, threads: int) -> dict[str, Any]:
    limit = None if math.isinf(left_s) else max(left_s, _SHORTEST_S)
    return {"msg": False, "gapRel": 0, "threads": threads, "timeLimit": limit}


def _solve(model: Model, command: pulp.LpSolver, name: str) -> None:
    try:
        model.problem.solve(command)
    except pulp.PulpSolverError as error:
        raise SolverError(f"{name} failed: {error}") from None


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
