"""Ctrl-C during a solve: noted, and passed on to native code, which does not notice it.

Raised as an exception wherever Python happens to be, it could be lost in a library's binding
or turned into another error.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["noted_ctrl_c", "run"]


@contextmanager
def noted_ctrl_c() -> Iterator[threading.Event]:
    """Set the event on Ctrl-C instead of raising :class:`KeyboardInterrupt`.

    Only the main thread hears Ctrl-C, and a handler that is not Python's own stays.
    """
    pressed = threading.Event()
    hears = threading.current_thread() is threading.main_thread()
    if not hears or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run(work: Callable[[], object], stop: Callable[[], object], pressed: threading.Event) -> None:
    """Run ``work`` in a thread until it is done; ask it to stop once Ctrl-C was pressed."""
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
    while not done.wait(0.1):
        if pressed.is_set():  # asked again and again: it may not have begun at first
            stop()
    if failures:
        raise failures[0]
