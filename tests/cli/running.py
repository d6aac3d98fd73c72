"""The command line, run in this process or in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from pipesim.cli.app import app

PIPESIM = [sys.executable, "-m", "pipesim"]


def invoke(*args: str, width: int | None = None) -> Result:
    env = {"COLUMNS": str(width)} if width else {}
    return CliRunner(env=env).invoke(app, args, prog_name="pipesim")


def stdout(*args: str, width: int | None = None) -> str:
    result = invoke(*args, width=width)
    assert result.exit_code == 0, result.output
    return result.stdout


def error(*args: str) -> str:
    """Return the line of an error; check that it is one line and that no file is left behind."""
    before = sorted(Path().iterdir())
    result = invoke(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    assert "a bug" not in result.stderr
    assert sorted(Path().iterdir()) == before
    return result.stderr
