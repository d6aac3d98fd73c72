"""Delay traces, in our own forms or in that of the artifact of "Attack of the Bubbles".

The artifact's traces have lines ``when;links;seconds`` and no header. From ``when`` on, an
iteration or a time in seconds, only the listed links are slow: each line replaces the one before.
``2_3`` joins stages 2 and 3; there is one delay in seconds for each link, or one for all. In a last
line without links, ``inf`` ends the trace (the artifact's links then fail for good, and its
training stops).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipesim.delays import By, DelayTrace
from pipesim.documents.delay_changes import Change, trace_of
from pipesim.documents.delay_csv import POINTS, a_delay, a_point, parse_trace
from pipesim.documents.rows import Row, rows_of
from pipesim.errors import FormatError
from pipesim.files import StrPath, read_text
from pipesim.scenario import DOWN, UP

__all__ = ["line_of", "load_trace"]

_ARTIFACT = ("when", "links", "seconds")
_NUMBER_FIRST = re.compile(r"\s*[-+.0-9][^,;]*;")
_LINK = re.compile(r"([0-9]{1,9})_([0-9]{1,9})")


def load_trace(path: StrPath, *, links: int | None = None, by: By | None = None) -> DelayTrace:
    """Read a delay trace and find out which of the forms it has.

    See :mod:`pipesim.documents.delay_csv` for ours.

    Parameters
    ----------
    path : path
        The file.
    links : int, optional
        Number of links of the pipeline. Default: as many as there are columns, or up to the highest
        that is named.
    by : {"time", "iteration"}, optional
        What the first values of the artifact's form count. Default: iterations if all of them are
        whole numbers, else seconds.

    Raises
    ------
    FormatError
        The file cannot be read, is no delay trace or is cut, counts something else, or names a link
        that the pipeline does not have. The error names the line.
    """
    file, text = os.fspath(path), read_text(path)
    if _NUMBER_FIRST.match(text):
        trace = _parse_artifact(text, file, links, by)
    else:
        trace = parse_trace(text, file=file, links=links)
    if trace.end is None and not text.endswith(("\n", "\r")):
        raise FormatError(
            "is cut: its last line has no line end (add one if nothing is missing)",
            file=file,
            line=text.count("\n") + 1,
        )
    if by not in (None, trace.by):
        raise FormatError(f"counts by {trace.by}, not by {by}", file=file)
    return trace


def line_of(path: StrPath, change: int) -> int | None:
    """Return the line of a change of the trace in a file; None if it cannot be read again.

    Parameters
    ----------
    path : path
        What :func:`load_trace` has read.
    change : int
        Which of the trace's changes, from 0.
    """
    if not Path(path).is_file():
        return None
    file, text = os.fspath(path), read_text(path)
    rows = _artifact_rows(text, file) if _NUMBER_FIRST.match(text) else rows_of(text, file=file)
    return rows[change].line


def _artifact_rows(text: str, file: str) -> list[Row]:
    return rows_of(text, file=file, header=_ARTIFACT, delimiter=";")


def _parse_artifact(text: str, file: str, links: int | None, by: By | None) -> DelayTrace:
    rows = _artifact_rows(text, file)
    whole = all(row.values["when"].strip().isdecimal() for row in rows)
    when = POINTS["iteration" if by == "iteration" or (by is None and whole) else "time_s"]
    changes = [Change(row.line, a_point(row, "when", when), _delays(row)) for row in rows]
    return trace_of(changes, by=when.by, links=links, replaces=True, file=file)


def _delays(row: Row) -> Mapping[tuple[int, int], float] | None:
    listed = row.values["links"].strip()
    seconds = row.values["seconds"].split(",")
    if not listed:
        word = row.take("seconds", _end_or_none, "inf or 0 where no link is listed")
        return None if word == "inf" else {}
    delays_ms = [
        a_delay(Row({"seconds": each}, row.file, row.line), "seconds", 1000.0) for each in seconds
    ]
    names = listed.split(",")
    if len(delays_ms) not in (1, len(names)):
        raise FormatError(
            f"has {len(delays_ms)} delays for {len(names)} links", file=row.file, line=row.line
        )
    if len(delays_ms) == 1:
        delays_ms *= len(names)
    places: dict[tuple[int, int], float] = {}
    for name, delay_ms in zip(names, delays_ms, strict=True):
        link = _link(name.strip(), row)
        if (link, DOWN) in places:
            raise FormatError(f"lists link {name.strip()} twice", file=row.file, line=row.line)
        places |= {(link, DOWN): delay_ms, (link, UP): delay_ms}
    return places


def _link(name: str, row: Row) -> int:
    match = _LINK.fullmatch(name)
    if match is None or int(match[2]) != int(match[1]) + 1:
        raise FormatError(
            f"{name[:40]!r} is not a link such as 2_3, between stages 2 and 3",
            file=row.file,
            line=row.line,
        )
    return int(match[1])


def _end_or_none(text: str) -> str:
    if text not in ("inf", "", "0", "0.0"):
        raise ValueError
    return text
