"""Delay traces as CSV, in two forms.

A line holds from when on: ``time_ms``, ``time_s`` or ``iteration`` (the first is 0).

*All links in each line*: ``time_ms,delay_link0_ms,delay_link1_ms`` … gives every link's delay from
that time on; ``delay_link0_down_ms`` and ``delay_link0_up_ms`` give a link's directions apart. This
is what is written, because it holds any trace.

*Changes*: ``iteration,slow_links,delay_ms`` gives the listed links this delay, and the others keep
theirs. ``2;5`` are links 2 and 5, ``2>3`` is link 2 for activations (down), ``3>2`` for gradients.

In both, a delay ``failed`` is a link that has failed, and a last line without delays, or with
``end``, is where the trace ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pipesim.delays import By, DelayTrace
from pipesim.documents.delay_changes import Change, trace_of
from pipesim.documents.links import directed_link
from pipesim.documents.rows import Row, not_negative, rows_of
from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath, write_csv
from pipesim.scenario import DIRECTIONS, DOWN, UP

__all__ = ["POINTS", "a_delay", "a_point", "parse_trace", "save_trace"]


class Point(NamedTuple):
    """What a line's first value counts, and in which unit of ms."""

    by: By
    unit_ms: float


POINTS = {
    "time_ms": Point("time", 1.0),
    "time_s": Point("time", 1000.0),
    "iteration": Point("iteration", 1.0),
}
"""The first column: one of these."""

_DELAY = re.compile(r"delay_link([0-9]{1,3})(?:_(down|up))?_ms")
_CHANGES = ("slow_links", "delay_ms")
_FAILED = ("failed", "inf")
_ENDS = ("", "end")


def parse_trace(text: str, *, file: str, links: int | None = None) -> DelayTrace:
    """Read a trace from the text of a CSV.

    Parameters
    ----------
    text : str
        The content of the file.
    file : str
        The file, for errors.
    links : int, optional
        Number of links of the pipeline. Default: as many as there are columns, or up to the highest
        that is named.

    Raises
    ------
    FormatError
        The text is no such trace; the error names the line.
    """
    rows = rows_of(text, file=file)
    columns = [column for column in rows[0].values if column in POINTS]
    if len(columns) != 1:
        has = " and ".join(columns) or "none of them"
        raise FormatError(
            f"a delay trace has one column of {', '.join(POINTS)}; this has {has}",
            file=file,
            line=1,
        )
    (when,) = columns
    others = [column for column in rows[0].values if column != when]
    if _CHANGES[0] in others:
        delays = _changes_of(others, file)
    else:
        of = _every_link(others, file)
        count = 1 + max(link for link, _ in of)
        if links not in (None, count):
            raise FormatError(f"is for {count} links, the pipeline has {links}", file=file, line=1)
        delays, links = _row_of(of), count
    changes = [Change(row.line, a_point(row, when, POINTS[when]), delays(row)) for row in rows]
    return trace_of(changes, by=POINTS[when].by, links=links, replaces=False, file=file)


Reader = Callable[[Row], Mapping[tuple[int, int], float] | None]


def _every_link(columns: list[str], file: str) -> dict[tuple[int, int], str]:
    """Return the column of each link and direction."""
    of: dict[tuple[int, int], str] = {}
    for column in columns:
        match = _DELAY.fullmatch(column)
        if match is None:
            raise FormatError(f"unknown column {column[:40]!r}", file=file, line=1)
        for direction in (DOWN, UP) if match[2] is None else (DIRECTIONS.index(match[2]),):
            other = of.setdefault((int(match[1]), direction), column)
            if other != column:
                raise FormatError(f"{column} contradicts {other}", file=file, line=1)
    for link in range(1 + max((link for link, _ in of), default=0)):
        for direction, way in enumerate(DIRECTIONS):
            if (link, direction) not in of:
                one_way = f"_{way}" if (link, 1 - direction) in of else ""
                raise FormatError(f"has no column delay_link{link}{one_way}_ms", file=file, line=1)
    return of


def _row_of(of: Mapping[tuple[int, int], str]) -> Reader:
    """Return the reader of lines that give every link."""

    def read(row: Row) -> Mapping[tuple[int, int], float] | None:
        if all(row.values[column].strip() in _ENDS for column in of.values()):
            return None
        return {place: a_delay(row, column) for place, column in of.items()}

    return read


def _changes_of(columns: list[str], file: str) -> Reader:
    """Return the reader of lines that list links."""
    if set(columns) != set(_CHANGES):
        (odd, *_) = set(columns) ^ set(_CHANGES)
        what = "unknown column" if odd in columns else "has no column"
        raise FormatError(f"{what} {odd[:40]}", file=file, line=1)
    links, delay = _CHANGES

    def read(row: Row) -> Mapping[tuple[int, int], float] | None:
        listed = row.values[links].strip()
        if listed in _ENDS:
            row.take(delay, _an_end, "empty where no link is listed")
            return None
        delay_ms = a_delay(row, delay)
        places: dict[tuple[int, int], float] = {}
        for text in listed.split(";"):
            try:
                link, ways = directed_link(text)
            except ScenarioError as error:
                raise FormatError(str(error), file=row.file, line=row.line) from None
            for way in ways:
                if (link, DIRECTIONS.index(way)) in places:
                    raise FormatError(f"lists link {link} twice", file=row.file, line=row.line)
                places[link, DIRECTIONS.index(way)] = delay_ms
        return places

    return read


def a_point(row: Row, column: str, point: Point) -> float:
    """Take the time in ms, or the iteration, that a line is for."""
    if point.by == "iteration":
        return row.take(column, _iteration, "a whole number of at least 0")
    return row.take(column, _times(point.unit_ms), "a time of at least 0")


def a_delay(row: Row, column: str, unit_ms: float = 1.0) -> float:
    """Take a delay in ms; infinite where the link has failed."""
    return row.take(column, _delay(unit_ms), "a time of at least 0, or failed")


def _delay(unit_ms: float) -> Callable[[str], float]:
    return lambda text: math.inf if text in _FAILED else _times(unit_ms)(text)


def _times(unit_ms: float) -> Callable[[str], float]:
    """Return the parser of a time in this unit; one in seconds keeps its digits."""
    if unit_ms == 1.0:
        return not_negative
    return lambda text: round(not_negative(text) * unit_ms, 9)


def _iteration(text: str) -> float:
    if not re.fullmatch("[0-9]{1,16}", text):
        raise ValueError
    return float(text)


def _an_end(text: str) -> None:
    if text not in _ENDS:
        raise ValueError


def save_trace(trace: DelayTrace, path: StrPath) -> None:
    """Write a trace, so that reading it gives the same: all links in each line.

    A trace without any change or end gets a line that says so: no delay from 0 on.

    Raises
    ------
    ScenarioError
        It has no links, or begins before 0.
    FormatError
        The file cannot be written.
    """
    if not trace.links or (trace.starts < 0).any():
        raise ScenarioError("a trace in a file has at least one link, and begins at 0 or later")
    starts, delays = trace.starts.tolist(), trace.delay_ms
    if not starts and trace.end is None:
        starts, delays = [0.0], np.zeros((1, trace.links, 2))
    both = (delays[..., DOWN] == delays[..., UP]).all()
    ways = [("", DOWN)] if both else [("_down", DOWN), ("_up", UP)]
    columns = [f"delay_link{link}{way}_ms" for link in range(trace.links) for way, _ in ways]
    values = delays[..., [direction for _, direction in ways]].reshape(len(starts), len(columns))
    when = "time_ms" if trace.by == "time" else "iteration"
    records = [
        {when: _number(start), **dict(zip(columns, map(_number, row), strict=True))}
        for start, row in zip(starts, values.tolist(), strict=True)
    ]
    if trace.end is not None:
        records.append({when: _number(trace.end), **dict.fromkeys(columns, "")})
    write_csv(path, [when, *columns], records)


def _number(value: float) -> str:
    """All digits of a number; a failed link's delay is a word."""
    return _FAILED[0] if math.isinf(value) else repr(value).removesuffix(".0")
