"""How a command ends when it cannot go on: one line on standard error and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from threading import Timer
from types import FrameType
from typing import NoReturn

__all__ = ["ctrl_c", "fail"]

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
