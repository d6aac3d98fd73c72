"""``python become.py PARENT COMMAND…``: become a command that ends with its parent.

Linux kills the command when the process that started it ends. Only the standard library is
imported, and little of it, because every process that a test starts begins with this file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask Linux to kill this process with its parent, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


if __name__ == "__main__":
    end_with_parent()
    if os.getppid() == int(sys.argv[1]):  # it may have ended before it could be asked for that
        os.execvp(sys.argv[2], sys.argv[2:])
