"""Measured runs: one row per setting and system, with times before and during a delay."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_text

__all__ = ["SYSTEMS", "MeasuredRun", "load_runs"]

T = TypeVar("T")

SYSTEMS = ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph")
"""What was measured: the first two over NCCL, the others delegated while the link was slow."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run: a training job whose link became slow. Times in milliseconds.

    Attributes
    ----------
    testbed, model, system : str
        Where it ran, what, and how (one of ``SYSTEMS``).
    stages, microbatches : int
        Shape of the pipeline.
    gpus_per_node : int
        Ranks that share one host and its path to the network.
    message_bytes : float
        One message of one rank.
    slow_sends : tuple of (int, int)
        The delayed sends, from stage and to stage.
    delay_ms : float
        Of each of them.
    delegates : int or None
        Delegate processes for each direction; None: the system has none.
    healthy_ms, slow_ms : float
        Median iteration before the delay was switched on, and after.
    place : str
        File and line, for messages.
    """

    testbed: str
    model: str
    system: str
    stages: int
    microbatches: int
    gpus_per_node: int
    message_bytes: float
    slow_links: str
    slow_sends: tuple[tuple[int, int], ...]
    delay_ms: float
    delegates: int | None
    healthy_ms: float
    slow_ms: float
    place: str = ""

    @property
    def setting(self) -> tuple[str, str, str, float]:
        """What was the same for all systems that can be ranked against each other."""
        return self.testbed, self.model, self.slow_links, self.delay_ms


def load_runs(path: StrPath) -> tuple[MeasuredRun, ...]:
    """Read a CSV of measured runs; columns that are not needed are ignored.

    Raises
    ------
    FormatError
        The file cannot be read, lacks a column, or has a value that cannot be; the error
        names line and, for values, the column.
    """
    file = os.fspath(path)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = reader.fieldnames
        if not header:
            raise FormatError("is empty", file=file)
        missing = [name for name in _COLUMNS if name not in header]
        if missing:
            raise FormatError(f"has no column {missing[0]}", file=file, line=1)
        runs = tuple(_run(row, file, reader.line_num) for row in reader)
    except csv.Error as error:
        raise FormatError(f"is not CSV: {error}", file=file, line=reader.line_num) from None
    if not runs:
        raise FormatError("holds no runs", file=file)
    return runs


_COLUMNS = (
    "testbed",
    "model",
    "stages",
    "microbatches",
    "gpus_per_node",
    "message_mib",
    "system",
    "slow_links",
    "slow_sends",
    "delay_ms",
    "delegates_per_direction",
    "healthy_ms",
    "slow_ms",
)


def _run(row: dict[str, str | None], file: str, line: int) -> MeasuredRun:
    if None in row or None in row.values():
        raise FormatError("does not have as many values as the header", file=file, line=line)

    def take(column: str, parse: Callable[[str], T], what: str) -> T:
        text = (row[column] or "").strip()
        try:
            return parse(text)
        except ValueError:
            raise FormatError(
                f"{column} must be {what}, not {text[:40]!r}", file=file, line=line
            ) from None

    stages = take("stages", _count, "a whole number above 0")
    system = take("system", _system, f"one of {', '.join(SYSTEMS)}")
    delegated = system.startswith("pipemorph")
    delegates = take(
        "delegates_per_direction",
        _count if delegated else _whole,
        "a whole number above 0" if delegated else "a whole number",
    )
    return MeasuredRun(
        testbed=take("testbed", _name, "a name"),
        model=take("model", _name, "a name"),
        system=system,
        stages=stages,
        microbatches=take("microbatches", _count, "a whole number above 0"),
        gpus_per_node=take("gpus_per_node", _count, "a whole number above 0"),
        message_bytes=take("message_mib", _positive, "a size above 0") * 2**20,
        slow_links=take("slow_links", str, "links"),
        slow_sends=take(
            "slow_sends",
            lambda text: _sends(text, stages),
            f"sends between neighbours such as '2>3 3>2', stages 0 to {stages - 1}",
        ),
        delay_ms=take("delay_ms", _not_negative, "a time of at least 0"),
        delegates=delegates or None,
        healthy_ms=take("healthy_ms", _positive, "a time above 0"),
        slow_ms=take("slow_ms", _positive, "a time above 0"),
        place=f"{file}:{line}",
    )


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _system(text: str) -> str:
    if text not in SYSTEMS:
        raise ValueError
    return text


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError
    return int(text)


def _count(text: str) -> int:
    if not (number := _whole(text)):
        raise ValueError
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and 0 <= number <= 1e9):
        raise ValueError
    return number


def _positive(text: str) -> float:
    if not (number := _not_negative(text)):
        raise ValueError
    return number


def _sends(text: str, stages: int) -> tuple[tuple[int, int], ...]:
    sends = []
    for part in text.split():
        match = re.fullmatch(r"([0-9]{1,4})>([0-9]{1,4})", part)
        if match is None:
            raise ValueError
        start, end = int(match[1]), int(match[2])
        if abs(start - end) != 1 or max(start, end) >= stages:
            raise ValueError
        sends.append((start, end))
    return tuple(sends)
