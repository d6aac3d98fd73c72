"""The shortest iteration by any of the solvers, one horizon after the other."""

from __future__ import annotations

import importlib
import math
import time
from dataclasses import replace
from typing import cast

from milp.attempt import Backend
from milp.ctrl_c import Pressed, noted_ctrl_c
from milp.network import Network
from milp.result import Result, Status
from pipesim.analysis import bounds
from pipesim.analysis.windows import TOLERANCE, find_windows, searchable
from pipesim.errors import SolverError
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Schedule

__all__ = ["SOLVERS", "solve"]

_PACKAGES = {"highs": "highspy", "cbc": "pulp", "cpsat": "ortools"}
SOLVERS = tuple(_PACKAGES)

_CLOSE = 1.005
"""An incumbent within this factor of the horizon is taken into it."""
_FIRST_STEP = 0.0025
"""By which part the horizon grows first; then twice as much each time."""
_ROOM = 0.02
"""By which part it grows after a horizon that the solver could not decide."""


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
    and any placement. Backwards are always split. See :mod:`milp.model` for the program. It
    has micro-batches in order, which costs nothing where they take the same times. Where they
    do not, the bound is that of :mod:`pipesim.analysis.bounds`, which holds for every order, and
    the schedule counts as optimal only if it meets that.

    The solver first gets the shortest horizon that could hold a schedule. Where it proves
    that none does, it gets a longer one, up to the incumbent's iteration time. Short horizons
    decide most orders beforehand (:mod:`pipesim.analysis.windows`), and so they are solved fast.

    Parameters
    ----------
    scenario : Scenario
        Small: the number of binaries grows with stages · micro-batches².
    incumbent : Schedule, optional
        A good schedule within the limits, such as the best planner's. The solver starts from
        it and looks for nothing longer.
    time_limit_s : float
        Seconds that it may take.
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
        backend = _backend(solver)
        search = _Search(scenario, incumbent, backend, began + time_limit_s, threads, pressed)
        search.run()
    result = search.result(time.perf_counter() - began, solver)
    return result if _alike(scenario) else _in_any_order(result, scenario)


def _alike(scenario: Scenario) -> bool:
    """Whether the micro-batches of every stage take the same times, so that any order will do."""
    return all(
        bool((times == times[:, :1]).all())
        for times in (scenario.forward_ms, scenario.backward_ms, scenario.weight_ms)
    )


def _in_any_order(result: Result, scenario: Scenario) -> Result:
    """Claim no more than holds for micro-batches that may also overtake each other."""
    if result.schedule is None:
        return result
    bound_ms = bounds.horizon_bound_ms(scenario, incumbent_ms=result.objective_ms)
    proven = bound_ms >= result.objective_ms * (1 - 1e-9)
    return replace(result, status="optimal" if proven else "feasible", bound_ms=bound_ms)


def _backend(solver: str) -> Backend:
    try:
        importlib.import_module(_PACKAGES[solver])
        module = importlib.import_module("milp.cpsat" if solver == "cpsat" else "milp.mip")
    except ImportError as error:
        extra = ": pip install 'pipesim[cpsat]'" if solver == "cpsat" else ""
        missing = (error.name or str(error)).partition(".")[0]
        raise SolverError(f"{solver}: {missing} is not installed{extra}") from None
    return cast(Backend, getattr(module, solver))


class _Search:
    """The horizons, and the best schedule and bound so far."""

    def __init__(
        self,
        scenario: Scenario,
        incumbent: Schedule | None,
        backend: Backend,
        deadline: float,
        threads: int,
        pressed: Pressed,
    ) -> None:
        self.scenario, self.backend = scenario, backend
        self.deadline, self.threads, self.pressed = deadline, threads, pressed
        self.network = Network(scenario)
        self.grain_ms = bounds.grain_ms(scenario)
        self.best: Schedule | None = None
        self.best_ms = math.inf
        self.bound_ms = 0.0
        self.proven = False
        self.undecided = 0
        if incumbent:
            incumbent.check_fits(scenario)
            if (device := self.network.overfull(incumbent)) is not None:
                raise SolverError(
                    f"the incumbent ({incumbent.planner}) holds more activations than device "
                    f"{device} may"
                )
            self._keep(self.network.in_order(incumbent))

    def _keep(self, schedule: Schedule) -> None:
        length = self.network.makespan_ms(schedule)
        if length < self.best_ms:
            self.best, self.best_ms = schedule, length

    @property
    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    def run(self) -> None:
        """Try horizons until one is solved, the time is over, or Ctrl-C is pressed."""
        longest = bounds.serial_ms(self.scenario)
        self.bound_ms, horizon = bounds.shortest_horizon_ms(self.scenario, 0.0, self.best_ms)
        step = _FIRST_STEP * horizon
        while self.left_s > 0 and not self.pressed.is_set():
            last = max(horizon, self.bound_ms) * _CLOSE >= min(self.best_ms, longest)
            horizon = min(self.best_ms, longest) if last else max(horizon, self.bound_ms)
            undecided = self._try(horizon, last)
            if last or self.proven:
                return
            # What was too hard is tried once more with room, and then with all there is.
            step = max(step, _ROOM * horizon) if undecided else step
            horizon = horizon + step if undecided < 2 else math.inf
            step *= 2

    def _try(self, horizon_ms: float, last: bool) -> int:
        """Solve one horizon; return how many were left undecided so far."""
        windows = find_windows(self.scenario, horizon_ms) if searchable(self.scenario) else None
        hint = self.best if self.best_ms <= horizon_ms * (1 + TOLERANCE) else None
        if last and hint is None:  # one micro-batch after the other
            hint = self.network.schedule(self.network.on_device)
        # Half of the time for a horizon that may hold no schedule; the rest for a longer one.
        left = max(self.left_s, 0.0)
        attempt = self.backend(
            Network(self.scenario, windows),
            horizon_ms,
            hint=hint,
            time_limit_s=left if last else left / 2,
            threads=self.threads,
            pressed=self.pressed,
        )
        if attempt.schedule and self.network.overfull(attempt.schedule) is None:
            self._keep(attempt.schedule)
        if attempt.status == "infeasible":
            if hint or last:
                raise SolverError("the solver finds no schedule, but there is one")
            self.bound_ms = max(self.bound_ms, self._above(horizon_ms))
            return self.undecided
        # Schedules longer than the horizon were not looked at.
        self.bound_ms = max(self.bound_ms, min(self._rounded(attempt.bound_ms), horizon_ms))
        if attempt.status == "optimal":
            self.proven = self.best_ms <= horizon_ms * (1 + TOLERANCE)
        else:
            self.undecided += 1
        return self.undecided

    def _above(self, horizon_ms: float) -> float:
        """The shortest iteration time that is longer than a horizon."""
        if not self._grainy:
            return horizon_ms
        return self.grain_ms * (math.floor(horizon_ms / self.grain_ms + 1e-6) + 1)

    def _rounded(self, bound_ms: float) -> float:
        """A solver's bound, which is off by its tolerance, as a whole number of grains."""
        if not self._grainy or not math.isfinite(bound_ms):
            return bound_ms
        return self.grain_ms * math.ceil(bound_ms / self.grain_ms - 1e-3)

    @property
    def _grainy(self) -> bool:
        """Whether the grain is coarser than any solver's tolerance."""
        return self.grain_ms > 1e-5 * bounds.serial_ms(self.scenario)

    def result(self, seconds: float, solver: str) -> Result:
        """Return what is known."""
        status: Status = "unknown" if self.best is None else "feasible"
        bound, best = self.bound_ms, self.best
        if self.proven or bound >= self.best_ms * (1 - TOLERANCE):
            status, bound = "optimal", self.best_ms
        if best is not None:
            assumed = Assumptions(
                delay_ms=self.scenario.delay_ms.tolist(),
                activation_limit=self.scenario.activation_limit.tolist(),
            )
            best = Schedule(best.orders, best.placement, best.microbatches, "milp", assumed)
        bound = min(bound, self.best_ms)
        return Result(status, self.best_ms, bound, seconds, solver, best, self.pressed.is_set())
