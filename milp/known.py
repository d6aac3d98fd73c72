"""What a search knows: the best schedule so far, and how good any could be."""

from __future__ import annotations

import math

from milp.attempt import Attempt
from milp.network import Network
from milp.result import Result, Status
from pipesim.analysis import bounds
from pipesim.analysis.windows import TOLERANCE
from pipesim.errors import SolverError
from pipesim.schedule import Assumptions, Schedule

__all__ = ["Known"]


class Known:
    """The best schedule and bound so far, of the schedules of one network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.best: Schedule | None = None
        self.best_ms, self.bound_ms = math.inf, 0.0
        self._grain_ms = float(network.grain)
        # Whether the grain is coarser than any solver's tolerance.
        self._grainy = self._grain_ms > 1e-5 * bounds.serial_ms(network.scenario)

    def is_proven(self) -> bool:
        """Whether nothing is shorter than the best schedule."""
        return self.best is not None and self.bound_ms >= self.best_ms * (1 - TOLERANCE)

    def keep(self, schedule: Schedule) -> bool:
        """Keep a schedule that is shorter than the best; return whether it fits the limits."""
        if self.network.overfull(schedule) is not None:
            return False
        length_ms = self.network.makespan_ms(schedule)
        if length_ms < self.best_ms:
            self.best, self.best_ms = schedule, length_ms
        return True

    def raise_bound(self, bound_ms: float) -> None:
        """Note that no schedule is shorter than this."""
        self.bound_ms = max(self.bound_ms, bound_ms)

    def learn(self, attempt: Attempt, horizon_ms: float, *, empty: bool) -> None:
        """Take over what a solver found out about the schedules within a horizon.

        Raises
        ------
        SolverError
            It found none, although the horizon is not ``empty``.
        """
        if attempt.status == "infeasible":
            if not empty:
                raise SolverError("the solver finds no schedule, but there is one")
            self.raise_bound(self._above(horizon_ms))
            return
        fits = attempt.schedule is not None and self.keep(attempt.schedule)
        # Schedules longer than the horizon were not looked at.
        self.raise_bound(min(self._rounded(attempt.bound_ms), horizon_ms))
        if attempt.status == "optimal" and fits and self.best_ms <= horizon_ms * (1 + TOLERANCE):
            self.raise_bound(self.best_ms)

    def _above(self, horizon_ms: float) -> float:
        """The shortest iteration time that is longer than a horizon."""
        if not self._grainy:
            return horizon_ms
        return self._grain_ms * (math.floor(horizon_ms / self._grain_ms + 1e-6) + 1)

    def _rounded(self, bound_ms: float) -> float:
        """A solver's bound, which is off by its tolerance, as a whole number of grains."""
        if not self._grainy or not math.isfinite(bound_ms):
            return bound_ms
        return self._grain_ms * math.ceil(bound_ms / self._grain_ms - 1e-3)

    def result(self, seconds: float, solver: str, *, interrupted: bool) -> Result:
        """Return what is known."""
        status: Status = "unknown" if self.best is None else "feasible"
        if self.is_proven():
            status, self.bound_ms = "optimal", self.best_ms
        best = self.best
        if best is not None:
            scenario = self.network.scenario
            assumed = Assumptions(
                delay_ms=scenario.delay_ms.tolist(),
                activation_limit=scenario.activation_limit.tolist(),
            )
            best = Schedule(best.orders, best.placement, best.microbatches, "milp", assumed)
        bound_ms = min(self.bound_ms, self.best_ms)
        return Result(status, self.best_ms, bound_ms, seconds, solver, best, interrupted)
