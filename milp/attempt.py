"""One run of one solver on the schedules within one horizon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from milp.ctrl_c import Pressed
from milp.network import Network
from milp.result import Status
from pipesim.schedule import Schedule

__all__ = ["Attempt", "Backend"]


@dataclass(frozen=True)
class Attempt:
    """What a solver found out about the schedules within a horizon.

    Parameters
    ----------
    status : {"optimal", "feasible", "infeasible", "unknown"}
        As for a :class:`~milp.result.Result`, but of these schedules alone.
    bound_ms : float
        None of them is shorter, by the solver's own proof; −inf if it proved nothing.
    schedule : Schedule or None
        The best one it found.
    """

    status: Status
    bound_ms: float
    schedule: Schedule | None = None


class Backend(Protocol):
    """Runs a solver."""

    def __call__(
        self,
        network: Network,
        horizon_ms: float,
        *,
        hint: Schedule | None,
        deadline: float,
        threads: int,
        pressed: Pressed,
    ) -> Attempt:
        """Search the network's schedules that take no longer than the horizon.

        Parameters
        ----------
        network : Network
            With the horizon's windows, or none. What its ``over`` says ends the making of a
            model.
        horizon_ms : float
            Longest iteration.
        hint : Schedule, optional
            One of these schedules, to start from.
        deadline : float
            Moment of ``time.perf_counter`` at which to answer, model and all.
        threads : int
            Of the solver.
        pressed : Pressed
            Set on Ctrl-C: then return what is known.

        Raises
        ------
        OutOfTime
            There was no time to make a model, or the solver did not end on Ctrl-C.
        """
