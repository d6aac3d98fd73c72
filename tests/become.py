"""``python become.py COMMAND…``: become a command that ends with the process that started it.

Linux kills it then, whatever the process that started it still had to do. Only the standard
library is imported, and little of it: it stands before every process that a test starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    os.execvp(sys.argv[1], sys.argv[1:])
