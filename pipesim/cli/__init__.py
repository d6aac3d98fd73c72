"""The command line. One file per command: it parses, calls and prints.

:mod:`.app` puts the commands together, :mod:`.options` and :mod:`.parsing` read what users type,
:mod:`.output` prints, and :mod:`.exit` ends a command that cannot go on.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

from pipesim.cli.exit import address_space, ctrl_c, fail, leave, out_of_memory

__all__ = ["main"]

_COLLECTED_EVERY = 100_000
"""Objects between two looks for cycles. Plans and programs of a large pipeline are millions of
objects without any, and looking for them at Python's pace takes as long as the rest."""

_LEAST_ADDRESSES = 128 * 2**20
"""With less, libraries that numpy loads end the process in words of their own."""


def main() -> None:
    """Run the command line; the entry point ``pipesim``."""
    code: object = None
    try:
        try:
            _run()
        finally:
            ctrl_c.comes_too_late()
        if ctrl_c.pressed:
            fail("interrupted")
    except SystemExit as end:
        code = end.code
    except (Exception, KeyboardInterrupt) as error:
        if not (ctrl_c.pressed or isinstance(error, KeyboardInterrupt)):
            raise
        with suppress(SystemExit):
            fail("interrupted")
        code = 2
    if code == 2:
        leave()
    sys.exit(code)  # type: ignore[arg-type]


def _run() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, ctrl_c)
    gc.set_threshold(_COLLECTED_EVERY)
    limit = address_space()
    if limit is not None:
        if limit < _LEAST_ADDRESSES:
            fail(out_of_memory())
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each takes some, and complains
    try:
        from pipesim.cli.app import app

        app(prog_name="pipesim")
    except (ImportError, MemoryError):
        if limit is None or ctrl_c.pressed:
            raise
        fail(out_of_memory())
    except SystemExit as end:
        if end.code or not ctrl_c.pressed:
            raise  # else Ctrl-C was lost in native code
