"""How a command ends when it cannot go on: one line on standard error and exit code 2.

Imports as little as it can, because Ctrl-C is heard only once this file is there.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

__all__ = ["address_space", "ctrl_c", "fail", "leave", "out_of_memory"]

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

    def comes_too_late(self) -> None:
        """Let nothing happen from now on: a command has ended, and Python takes a while to."""
        if signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _lost(self, lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            from threading import Timer

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
    ctrl_c.comes_too_late()
    if ctrl_c.pressed:
        message = "interrupted"
    if sys.stderr is not None:
        from contextlib import suppress

        with suppress(OSError, ValueError):
            sys.stderr.write(f"error: {' '.join(message.split())}\n")
            sys.stderr.flush()
    sys.exit(2)


def leave() -> NoReturn:
    """End the process with exit code 2, now.

    Where a KeyboardInterrupt has passed through ``exec``, as dataclasses use it, Python ends by
    SIGINT in the end, whatever ``sys.exit`` was told.
    """
    import atexit
    from contextlib import suppress

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(2)
