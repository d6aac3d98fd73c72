"""The command line. One file per command: it parses, calls and prints.

:mod:`.app` puts the commands together, :mod:`.options` and :mod:`.parsing` read what users type,
:mod:`.output` prints, and :mod:`.exit` ends a command that cannot go on.
"""

from __future__ import annotations

import gc
import signal

__all__ = ["main"]

_COLLECTED_EVERY = 100_000
"""Objects between two looks for cycles. Plans and programs of a large pipeline are millions of
objects without any, and looking for them at Python's pace takes as long as the rest."""


def main() -> None:
    """Run the command line; the entry point ``pipesim``."""
    from pipesim.cli.exit import ctrl_c, fail

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, ctrl_c)
    gc.set_threshold(_COLLECTED_EVERY)
    try:
        from pipesim.cli.app import app

        app(prog_name="pipesim")
    except (Exception, KeyboardInterrupt):
        if not ctrl_c.pressed:
            raise
        fail("interrupted")
