"""A solver at hand, and the time that it may still take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter

from milp.attempt import Attempt, Backend
from milp.ctrl_c import Pressed
from milp.network import Network
from pipesim.analysis.over import OutOfTime
from pipesim.schedule import Schedule

__all__ = ["Running"]


@dataclass(frozen=True)
class Running:
    """Runs a solver until a deadline.

    Parameters
    ----------
    backend : Backend
        The solver.
    threads : int
        Its threads.
    pressed : Pressed
        Set on Ctrl-C.
    deadline : float
        Moment of ``time.perf_counter`` at which all is to be over.
    """

    backend: Backend
    threads: int
    pressed: Pressed
    deadline: float

    def over(self) -> bool:
        """Whether the time is over or Ctrl-C was pressed."""
        return perf_counter() >= self.deadline or self.pressed.is_set()

    def within(self, part: float) -> Running:
        """The same solver for a part of the time that is left."""
        now = perf_counter()
        return replace(self, deadline=now + part * max(self.deadline - now, 0.0))

    def __call__(self, network: Network, horizon_ms: float, hint: Schedule | None) -> Attempt:
        """Search the network's schedules that take no longer than the horizon."""
        try:
            return self.backend(
                replace(network, over=self.over),
                horizon_ms,
                hint=hint,
                deadline=self.deadline,
                threads=self.threads,
                pressed=self.pressed,
            )
        except OutOfTime:
            return Attempt("unknown", -math.inf)
