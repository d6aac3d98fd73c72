"""One run of one solver on the schedules within one horizon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from milp.network import Network
from milp.result import Status
from pipesim.schedule import Schedule

__all__ = ["Attempt", "Backend", "interruptible"]


@dataclass(frozen=True)
class Attempt:
    """What a solver found out about the schedules within a horizon.

    Parameters
    ----------
    status : {"optimal", "feasible", "infeasible", "unknown"}
        As for a :class:`~milp.result.Result`, of these schedules.
    bound_ms : float
        None of them is shorter, by the solver's own proof; −inf where it says nothing.
    schedule : Schedule or None
        The best one it found.
    interrupted : bool
        Ctrl-C was pressed.
    """

    status: Status
    bound_ms: float
    schedule: Schedule | None = None
    interrupted: bool = False


class Backend(Protocol):
    """Runs a solver."""

    def __call__(
        self,
        network: Network,
        horizon_ms: float,
        *,
        hint: Schedule | None,
        time_limit_s: float,
        threads: int,
    ) -> Attempt:
        """Search the network's schedules that take no longer than the horizon.

        Parameters
        ----------
        network : Network
            With the horizon's windows, or none.
        horizon_ms : float
            Longest iteration.
        hint : Schedule, optional
            One of these schedules, to start from.
        time_limit_s, threads : float, int
            What the solver may take.
        """


def interruptible(work: Callable[[], object], stop: Callable[[], object]) -> bool:
    """Run ``work`` in a thread until it is done; on Ctrl-C ask it to stop, and say so.

    Native code does not notice Ctrl-C, and Python only between two of its own steps.
    """
    failures: list[BaseException] = []
    done = threading.Event()  # an interrupted join() may take a thread for dead

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    interrupted = False
    while not done.is_set():
        try:
            done.wait(0.1)
        except KeyboardInterrupt:
            interrupted = True
            stop()
    if failures:
        raise failures[0]
    return interrupted
