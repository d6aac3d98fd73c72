"""How a command ends when it cannot go on: one line on standard error and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from threading import Timer
from types import FrameType
from typing import NoReturn

__all__ = ["address_space", "ctrl_c", "fail", "out_of_memory"]

_AGAIN_S = 0.01


class _CtrlC:
    """Raises KeyboardInterrupt, and remembers it: native code may turn it into another error.

    If it is raised where no exception can travel, the signal is sent again a moment later.
    """

    pressed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        sys.unraisablehook = self._lost
        raise KeyboardInterrupt

    def _lost(self, lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            Timer(_AGAIN_S, os.kill, [os.getpid(), signal.SIGINT]).start()


ctrl_c = _CtrlC()
"""The handler of SIGINT while a command runs."""


def address_space() -> int | None:
    """Return how many bytes of address space this process may have; None: there is no limit."""
    try:
        import resource
    except ModuleNotFoundError:  # not a Unix
        return None
    soft: int = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def out_of_memory() -> str:
    """Return what to say where memory has run out."""
    limit = address_space()
    if limit is None:
        return "out of memory: is the scenario really that large?"
    return f"out of memory: only {limit / 2**20:,.0f} MiB of address space are allowed (ulimit -v)"


def fail(message: str) -> NoReturn:
    """End with one line on standard error and exit code 2, or say that Ctrl-C was pressed."""
    if signal.getsignal(signal.SIGINT) is ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it comes too late
    if ctrl_c.pressed:
        message = "interrupted"
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"error: {' '.join(message.split())}\n")
            sys.stderr.flush()
    sys.exit(2)
