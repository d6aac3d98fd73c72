"""Which delay trace to read, and what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

from typer import Option

from pipesim.cli.options import one_starting, parsed
from pipesim.delays import By, DelayTrace
from pipesim.errors import ScenarioError
from pipesim.formats.delay_trace import load_trace

__all__ = ["CountsBy", "trace_in"]

CountsBy = Annotated[
    str | None,
    Option(
        "--by",
        metavar="time|iteration",
        help="What lines when;links;seconds count: a time in seconds, or iterations (default: "
        "iterations if all are whole numbers). Other files say so.",
        autocompletion=one_starting(*get_args(By)),
    ),
]


def trace_in(path: Path, by: str | None, *, links: int | None = None) -> DelayTrace:
    """Read a trace, see :func:`pipesim.formats.delay_trace.load_trace`."""
    return load_trace(path, links=links, by=None if by is None else parsed("--by", _by, by))


def _by(text: str) -> By:
    if text not in get_args(By):
        raise ScenarioError(f"{text!r} is neither time nor iteration")
    return cast(By, text)
