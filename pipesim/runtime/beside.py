"""Planning beside the job: a thread that looks at each iteration's transfer times."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipesim.runtime.board import Board, Word
from pipesim.runtime.transfers import Log, transfer_ms

__all__ = ["Beside", "Plan", "Planner"]

_LOOK_S = 0.002


class Plan(Protocol):
    """What a job runs from one boundary to another."""

    @property
    def rows(self) -> Sequence[str]:
        """A line of torch's schedule CSV for each rank, with its sends and receives."""

    @property
    def delegated(self) -> Collection[tuple[int, str]]:
        """The (link, direction) whose messages delegates carry."""


class Planner(Protocol):
    """Plans, from what is measured."""

    def first(self) -> Plan:
        """Return the plan to begin with."""

    def after(self, measured_ms: NDArray[np.float64]) -> Plan | None:
        """Take in the transfer times of an iteration; return a plan where another one is due.

        Parameters
        ----------
        measured_ms : array, shape [S−1, 2]
            Of each link's activations and gradients; NaN where nothing was sent.
        """


class Beside:
    """The thread.

    Parameters
    ----------
    planner : Planner
        Asked after each iteration.
    board : Board
        Where the ranks report; for this thread alone.
    links : int
        S − 1.
    check : callable, optional
        Raises where a plan cannot run.
    """

    def __init__(
        self,
        planner: Planner,
        board: Board,
        links: int,
        check: Callable[[Word], None] = lambda word: None,
    ) -> None:
        self._planner, self._board, self._links, self._check = planner, board, links, check
        self._asks = True
        self._ready: Word | None = self._word(planner.first())
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planning", daemon=True)
        self._thread.start()

    def take(self) -> Word | None:
        """Return what became ready since the last call, if anything did.

        Raises
        ------
        Exception
            Whatever the planner raised; once.
        """
        with self._lock:
            ready, self._ready = self._ready, None
            error, self._error = self._error, None
        if error is not None:
            raise error
        return ready

    def close(self) -> None:
        """End the thread; a plan that is being made is waited for."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        for iteration in itertools.count():
            try:
                while not self._board.complete(iteration):
                    if self._closing.wait(_LOOK_S):
                        return
                logs = self._board.collect(iteration)
                if self._asks:  # else reports are taken away, so that they do not pile up
                    self._plan(logs)
            except Exception as error:
                with self._lock:
                    self._error = error
                if not self._asks:
                    return
                self._asks = False
            if self._closing.is_set():
                return

    def _plan(self, logs: Sequence[Log]) -> None:
        plan = self._planner.after(transfer_ms(logs, self._links))
        if plan is not None:
            word = self._word(plan)
            with self._lock:
                self._ready = word

    def _word(self, plan: Plan) -> Word:
        delegated = frozenset((int(link), str(way)) for link, way in plan.delegated)
        word = Word(tuple(plan.rows), delegated)
        self._check(word)
        return word
