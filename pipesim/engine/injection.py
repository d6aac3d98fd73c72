"""Delays that change during a run, and senders that look at them only now and then."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from pipesim.delays import DelayTrace
from pipesim.errors import DeadlockError, ScenarioError, ScheduleError
from pipesim.scenario import DIRECTIONS, Array, Scenario

__all__ = ["Injection"]


class Injection:
    """Delays of a trace as senders adopt them, over the iterations of one job.

    A sender reads the trace before its first send and then before every ``every``-th; in
    between it keeps the delays that it has read. So do the injectors of published experiments,
    which ask a server; real links delay at once, that is ``every`` 1. Who counts as a sender the
    transport says (:func:`pipesim.engine.senders.senders`): a device, or under delegation each
    delegate. Both engines leave an injection in the same state.

    A link that is down carries nothing, whatever its senders know: there is no lag in that. A
    message whose send finds its link down waits for the link's first recovery after that moment;
    there its sender reads the trace, as those do who only know of a link that it was down. The
    count of sends goes on as if nothing had been. If the link never recovers, the run ends with a
    :class:`~pipesim.errors.DeadlockError`, and what senders know is of no more use.

    Parameters
    ----------
    trace : DelayTrace
        The delays.
    every : int
        Sends of one sender from one look at the trace to the next.
    delegates_every : int, optional
        The same for delegates. Default: ``every``.
    start : float
        Where on the trace the next run starts: its time in ms, or its iteration. Set it again
        before each iteration: a run counts from 0. By iteration, all sends of a run have the
        delays of that iteration.

    Attributes
    ----------
    starts : array, shape [K]
        When the delays of the trace change.
    table : array, shape [K + 1, S−1, 2]
        The delays before the first change, and from each change on.
    memory : int array, shape [senders, 2]
        For each sender that has sent (:meth:`places`) the number of its sends, and the row of
        ``table`` that it knows.

    Raises
    ------
    ScenarioError
        Senders look after a number of sends that is none.
    """

    def __init__(
        self,
        trace: DelayTrace,
        *,
        every: int = 1,
        delegates_every: int | None = None,
        start: float = 0.0,
    ) -> None:
        self.trace = trace
        self.every = every
        self.delegates_every = every if delegates_every is None else delegates_every
        self.start = start
        for count in (self.every, self.delegates_every):
            if not (count >= 1 and count % 1 == 0):
                raise ScenarioError(
                    f"senders look at a trace after a number of sends, from 1 on, not {count!r}"
                )
        self.starts: Array = np.array(trace.starts)
        self.table = trace.states_ms
        self.memory: NDArray[np.int64] = np.zeros((0, 2), dtype=np.int64)
        self._places: dict[Hashable, int] = {}

    def fork(self, start: float) -> Injection:
        """Return one with the same memory, for a run that starts at ``start`` and may never be."""
        other = copy(self)
        other.memory, other._places = self.memory.copy(), dict(self._places)
        other.start = start
        return other

    def check_fits(self, scenario: Scenario) -> None:
        """Raise :class:`ScheduleError` unless the trace is for the scenario's links."""
        if self.trace.links != scenario.stages - 1:
            raise ScheduleError(
                f"the delay trace is for {self.trace.links} links, the scenario has "
                f"{scenario.stages - 1}"
            )

    def places(self, senders: Iterable[Hashable]) -> NDArray[np.int64]:
        """Return the rows of ``memory`` that belong to senders; new ones have sent nothing."""
        names = list(senders)
        for name in names:
            self._places.setdefault(name, len(self._places))
        new = np.zeros((len(self._places) - len(self.memory), 2), dtype=np.int64)
        self.memory = np.concatenate([self.memory, new])
        return np.array([self._places[name] for name in names], dtype=np.int64)

    def looks_every(self, sender: Hashable) -> int:
        """Return the number of sends from one of its looks to the next."""
        return self.delegates_every if isinstance(sender, tuple) else self.every

    def sent(self, sender: Hashable, count: int) -> None:
        """Count sends of earlier iterations, all before the trace: its sender knows no delay."""
        places = self.places([sender])
        self.memory[places, 0] += count

    def delay_ms(self, sender: Hashable, link: int, direction: int, now_ms: float) -> float:
        """Count a send of ``sender`` and return the delay that it has.

        Parameters
        ----------
        sender : hashable
            Who sends: a device, or a delegate as (device, which).
        link, direction : int
            Where to.
        now_ms : float
            When, since the start of the run.

        Returns
        -------
        float
            What the link's recovery and the delay take; infinite if it never recovers.
        """
        point = self.start + (now_ms if self.trace.by == "time" else 0.0)
        row = bisect_right(self.starts, point)
        if sender not in self._places:
            self.places([sender])
        memory = self.memory[self._places[sender]]
        if memory[0] % self.looks_every(sender) == 0:
            memory[1] = row
        memory[0] += 1
        way = self.table[:, link, direction]
        waits_ms = 0.0
        if np.isinf(way[row]):
            later = np.flatnonzero(np.isfinite(way[row:]))
            if not len(later):
                return float("inf")
            memory[1] = row + later[0]
            waits_ms = self.starts[memory[1] - 1] - point
        elif np.isinf(way[memory[1]]):
            memory[1] = row
        return float(waits_ms + way[memory[1]])

    def check_sent(self, sent_ms: Array) -> None:
        """Raise :class:`DeadlockError` if a message waits for ever, and say for which link.

        Parameters
        ----------
        sent_ms : array, shape [S−1, 2, N]
            What :meth:`delay_ms` gave for the messages of one run.
        """
        waits = np.isinf(sent_ms)
        if not waits.any():
            return
        reasons = []
        for link, direction in np.argwhere(waits.any(axis=2)).tolist():
            down = np.isinf(self.table[:, link, direction])
            since = self.starts[np.flatnonzero(~down)[-1]]  # row 0 is healthy
            reasons.append(
                f"link {link} ({DIRECTIONS[direction]}) fails at {since:g} ms and never recovers: "
                f"micro-batch {np.argmax(waits[link, direction])} waits for it"
            )
        raise DeadlockError(tuple(reasons))
