"""The command line. One file for one command: it parses, calls and prints.

:mod:`.app` puts the commands together, :mod:`.options` and :mod:`.parsing` read what is
typed, :mod:`.output` prints.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from threading import Timer
from types import FrameType
from typing import NoReturn

__all__ = ["fail", "main"]


_AGAIN_S = 0.01


class _CtrlC:
    """Raises as Python does, and remembers: native code turns that into other errors.

    What it cuts off does not complain. Where it cannot be raised, it is a moment later.
    """

    pressed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        sys.unraisablehook = self._lost
        raise KeyboardInterrupt

    def _lost(self, lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            Timer(_AGAIN_S, os.kill, [os.getpid(), signal.SIGINT]).start()


_ctrl_c = _CtrlC()


def main() -> None:
    """Run the command line; the entry point ``pipesim``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _ctrl_c)
    try:
        from pipesim.cli.app import app

        app(prog_name="pipesim")
    except (Exception, KeyboardInterrupt):
        if not _ctrl_c.pressed:
            raise
        fail("interrupted")


def fail(message: str) -> NoReturn:
    """End with one line on standard error and exit code 2, or say that Ctrl-C was pressed."""
    if signal.getsignal(signal.SIGINT) is _ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it comes too late
    if _ctrl_c.pressed:
        message = "interrupted"
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"error: {' '.join(message.split())}\n")
            sys.stderr.flush()
    sys.exit(2)
