"""The command line. One file for one command: it parses, calls and prints.

:mod:`.app` puts the commands together, :mod:`.options` and :mod:`.parsing` read what is
typed, :mod:`.output` prints.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point ``pipesim``."""
    try:
        from pipesim.cli.app import app

        app(prog_name="pipesim")
    except KeyboardInterrupt:
        # While modules were imported; later ones are turned into an error by the app.
        sys.stderr.write("error: interrupted\n")
        sys.exit(2)
