"""Delays that change during a run, and senders that look at them only now and then."""

from __future__ import annotations

from collections.abc import Hashable

from pipesim.delays import DelayTrace

__all__ = ["Injection"]


class Injection:
    """Delays of a trace as senders adopt them, over the iterations of one job.

    A sender reads the trace before its first send and then before every ``every``-th; in
    between it keeps the delays that it has read. So do the injectors of published experiments,
    which ask a server; real links delay at once, that is ``every`` 1. Who counts as a sender the
    transport says: a device, or under delegation each delegate.

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
        before each iteration: :func:`pipesim.engine.run` counts from 0.
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
        self._sends: dict[Hashable, int] = {}
        self._known: dict[Hashable, tuple[tuple[float, float], ...]] = {}

    def sent(self, sender: Hashable, count: int) -> None:
        """Count sends of earlier iterations, all before the trace: its sender knows no delay."""
        self._sends[sender] = self._sends.get(sender, 0) + count

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
        """
        sends = self._sends.get(sender, 0)
        self._sends[sender] = sends + 1
        every = self.delegates_every if isinstance(sender, tuple) else self.every
        if sends % every == 0:
            passed = now_ms if self.trace.by == "time" else 0.0
            self._known[sender] = self.trace.at(self.start + passed)
        known = self._known.get(sender)
        return 0.0 if known is None else known[link][direction]
