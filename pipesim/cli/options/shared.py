"""Options that have nothing to do with each other, and how all options are parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from typer import Option

from pipesim.cli import parsing
from pipesim.engine.choice import ENGINES, Engine
from pipesim.errors import ScenarioError

__all__ = [
    "EngineName",
    "Json",
    "MessageCost",
    "Quiet",
    "engine_named",
    "message_cost_ms",
    "one_starting",
    "parsed",
]

T = TypeVar("T")

Json = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[
    bool, Option("--quiet", "-q", help="Print results only: no header, advice, notes or progress.")
]

EngineName = Annotated[
    str | None,
    Option(
        "--engine",
        metavar="NAME",
        help=f"Compute times with {' or '.join(ENGINES)}, which is faster for large pipelines; "
        "both give the same times (default: by size).",
        autocompletion=lambda incomplete: [e for e in ENGINES if e.startswith(incomplete)],
    ),
]

MessageCost = Annotated[
    str | None,
    Option(
        "--message-cost",
        "--base",
        metavar="TIME",
        help="Time that every message takes besides delays, on every link (default 0ms). Planners "
        "that know of delays plan for it.",
    ),
]


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """Parse what was given for an option; errors name it."""
    try:
        return parse(text)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from None


def message_cost_ms(text: str | None) -> float:
    """Return the time that ``--message-cost`` gives.

    Raises
    ------
    ScenarioError
        It is not a time.
    """
    return 0.0 if text is None else parsed("--message-cost", parsing.duration_ms, text)


def engine_named(text: str | None) -> Engine | None:
    """Return the engine of that name; None lets the size of the work decide.

    Raises
    ------
    ScenarioError
        There is no such engine.
    """
    if text is not None and text not in ENGINES:
        raise ScenarioError(f"--engine: {text!r} is none of {', '.join(ENGINES)}")
    return text


def one_starting(*words: str) -> Callable[[str], list[str]]:
    """Return the shell completion that knows these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
