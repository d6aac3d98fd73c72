"""Streams of a CPU device, and the marks that order their kernels.

Futures and thread pools of the standard library would do the same; these take a tenth of the
time, and on a busy machine that is most of what a message takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from pipesim.replay.run.guard import Guard

__all__ = ["Mark", "Stream", "after", "latest"]


class Mark:
    """Something that happens once, at a time; as a CUDA event."""

    __slots__ = ("_lock", "_then", "time_ns")

    def __init__(self, time_ns: int | None = None) -> None:
        self.time_ns = time_ns
        self._then: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def happen(self, time_ns: int) -> None:
        """Let it happen; what waits for it runs in this thread."""
        with self._lock:
            if self.time_ns is not None:
                raise RuntimeError("happened twice")
            self.time_ns = time_ns
            then, self._then = self._then, []
        for action in then:
            action()

    def then(self, action: Callable[[], None]) -> None:
        """Call ``action`` when it happens, or now if it has."""
        with self._lock:
            if self.time_ns is None:
                self._then.append(action)
                return
        action()


def after(marks: Iterable[Mark], action: Callable[[], None]) -> None:
    """Call ``action``, which must not wait, in the thread in which the last of ``marks`` happens.

    Examples
    --------
    >>> first, second = Mark(), Mark()
    >>> after([first, second], lambda: print("both"))
    >>> second.happen(1)
    >>> first.happen(2)
    both
    """
    waits = list(marks)
    left = len(waits)
    lock = threading.Lock()

    def one_less() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            action()

    for mark in waits:
        mark.then(one_less)


def latest(marks: Iterable[Mark]) -> int:
    """Return when the last of marks happened, all of which have."""
    return max(mark.time_ns or 0 for mark in marks)


class Stream:
    """A thread that runs what is launched on it, in order, until it is closed.

    An error there ends the process: nobody could make up for it.
    """

    def __init__(self, name: str, guard: Guard) -> None:
        self._kernels: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=guard.guarded(self._serve), name=name, daemon=True)
        self._thread.start()

    def launch(self, kernel: Callable[[], None]) -> None:
        """Append a kernel."""
        self._kernels.put(kernel)

    def close(self) -> None:
        """Return when all that was launched has run and the thread has ended.

        Not for a kernel to call, and not where one may never end: this waits for it.
        """
        self._kernels.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (kernel := self._kernels.get()) is not None:
            kernel()
