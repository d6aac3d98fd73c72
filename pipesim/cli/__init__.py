"""The command line. One file per command: it parses, calls and prints.

:mod:`.app` puts the commands together, :mod:`.options` and :mod:`.parsing` read what users type,
:mod:`.output` prints, and :mod:`.exit` ends a command that cannot go on.
"""

from __future__ import annotations

import gc
import os
import signal

__all__ = ["main"]

_COLLECTED_EVERY = 100_000
"""Objects between two looks for cycles. Plans and programs of a large pipeline are millions of
objects without any, and looking for them at Python's pace takes as long as the rest."""

_LEAST_ADDRESSES = 128 * 2**20
"""With less, libraries that numpy loads end the process in words of their own."""


def main() -> None:
    """Run the command line; the entry point ``pipesim``."""
    from pipesim.cli.exit import address_space, ctrl_c, fail, out_of_memory

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
    except (Exception, KeyboardInterrupt) as error:
        if ctrl_c.pressed:
            fail("interrupted")
        if limit is not None and isinstance(error, ImportError | MemoryError):
            fail(out_of_memory())
        raise
