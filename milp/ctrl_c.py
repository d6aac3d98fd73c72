"""Ctrl-C during a solve: noted, and passed on to native code, which does not notice it.

An exception, raised wherever Python happens to be, could be lost in a library's binding or
turned into another error.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from types import FrameType

from pipesim.analysis.over import OutOfTime

__all__ = ["Pressed", "noted_ctrl_c", "run"]


_PATIENCE_S = 0.5
"""What native code may take to end after Ctrl-C."""


class Pressed:
    """Whether Ctrl-C was pressed.

    Unlike an event it has no lock: a signal handler may be interrupted by itself.
    """

    def __init__(self) -> None:
        self._pressed = False

    def is_set(self) -> bool:
        """Whether it was."""
        return self._pressed

    def set(self) -> None:
        """Note that it was."""
        self._pressed = True


@contextmanager
def noted_ctrl_c() -> Iterator[Pressed]:
    """Note Ctrl-C instead of raising :class:`KeyboardInterrupt`.

    Only the main thread hears it. A handler that was there before also hears it, and is put back.
    """
    pressed = Pressed()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield pressed
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        with suppress(KeyboardInterrupt):
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, handler)


def run(
    work: Callable[[], object],
    stop: Callable[[], object],
    pressed: Pressed,
    deadline: float = math.inf,
) -> None:
    """Run ``work`` in a thread until it is done; ask it to stop once Ctrl-C was pressed.

    Also once a deadline is over, a moment of ``time.perf_counter``, for those who do not keep to
    their own limit.

    Raises
    ------
    OutOfTime
        It did not stop soon after Ctrl-C: HiGHS may cut its root node for half a minute without
        asking whether to go on. Its thread is left alone, and nothing that it uses may be touched.
    """
    failures: list[BaseException] = []
    done = threading.Event()

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=guarded, daemon=True).start()
    patience = math.inf
    while not done.wait(0.1):
        # Asked again and again: it may not have begun at first.
        if pressed.is_set() or perf_counter() > deadline:
            stop()
        if pressed.is_set():
            patience = min(patience, perf_counter() + _PATIENCE_S)
            if perf_counter() > patience:
                raise OutOfTime
    if failures:
        raise failures[0]
