"""Measured operators as CSV, as the artifact of "Attack of the Bubbles" logs them.

One operator per line::

    iteration,stage,op,index,host_start_ms,host_end_ms,gpu_ms
    5,0,F,0,2.126,27.3,25.14

``op`` is F, B or W; in a file without any W, B is the fused backward. ``gpu_ms`` is the
operator's own time on the GPU. ``index`` is the micro-batch. An iteration number may come
twice, if the counter was reset: these are separate *passes*. This module reads and
checks the lines; :mod:`pipesim.formats.operator_timeline.importer` makes sense of them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_text
from pipesim.text import counted

__all__ = ["COLUMNS", "OperatorFile", "OperatorRow", "Pass", "read_operator_csv"]

COLUMNS = ("iteration", "stage", "op", "index", "host_start_ms", "host_end_ms", "gpu_ms")
_WHOLE = re.compile(r"[0-9]{1,6}")
_TIME = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?")
_LONGEST_MS = 1e15
_CLOCK_ERROR_MS = 1.0


class OperatorRow(NamedTuple):
    """One line: an operator of one stage, its times in milliseconds, and where it stands."""

    op: str
    microbatch: int
    host_start_ms: float
    host_end_ms: float
    gpu_ms: float
    line: int


@dataclass(frozen=True)
class Pass:
    """One run through an iteration.

    Parameters
    ----------
    label : str
        The iteration number; ``5/2`` is the second pass of that number.
    rows : mapping of int to list of OperatorRow
        The operators of each stage in the order in which they ran.
    """

    label: str
    rows: Mapping[int, list[OperatorRow]]


@dataclass(frozen=True)
class OperatorFile:
    """All passes of a file, in time order, and its shape as far as its rows show it.

    Parameters
    ----------
    file : str
        Its name.
    passes : tuple of Pass
        First passes of every iteration number come before second ones.
    stages, microbatches : int
        S, as stated or from the largest index, and N, from the largest index.
    fused : bool
        Whether B is the fused backward, because there is no W.
    """

    file: str
    passes: tuple[Pass, ...]
    stages: int
    microbatches: int
    fused: bool


def read_operator_csv(path: StrPath, *, stages: int | None = None) -> OperatorFile:
    """Read and check a file of measured operators.

    Parameters
    ----------
    path : path
        The file.
    stages : int, optional
        How many stages it should hold. Default: as many as it names.

    Raises
    ------
    FormatError
        The file cannot be read, its header is another, its last line has no end, a field
        is not what it should be, a stage is beyond ``stages``, or a stage's clock runs
        backwards; with line and, where one field is to blame, column.
    """
    file = os.fspath(path)
    lines = read_text(path).split("\n")
    if lines[0].rstrip("\r") != ",".join(COLUMNS):
        raise FormatError(f"the header must be {','.join(COLUMNS)}", file=file, line=1, column=1)
    if lines.pop():
        raise FormatError("the last line is cut short", file=file, line=len(lines) + 1)
    # Passes of (iteration, stage): a new one starts where an operator comes again.
    runs: dict[tuple[int, int], list[dict[tuple[str, int], OperatorRow]]] = {}
    for number, line in enumerate(lines[1:], start=2):
        iteration, stage, row = _parse(line.rstrip("\r"), file, number)
        if stages is not None and stage >= stages:
            raise FormatError(
                f"is of stage {stage}, but the number of stages was given as {stages}",
                file=file,
                line=number,
            )
        run = runs.setdefault((iteration, stage), [{}])
        if (row.op, row.microbatch) in run[-1]:
            run.append({})
        if run[-1]:
            last = next(reversed(run[-1].values()))
            if row.host_start_ms < last.host_start_ms or row.host_end_ms < last.host_end_ms:
                raise FormatError(
                    f"the clock of stage {stage} runs backwards after line {last.line}",
                    file=file,
                    line=number,
                )
        run[-1][row.op, row.microbatch] = row
    if not runs:
        raise FormatError("holds no operator", file=file, line=1)
    rows = [row for run in runs.values() for part in run for row in part.values()]
    return OperatorFile(
        file=file,
        passes=_passes(runs),
        stages=max(stage for _, stage in runs) + 1 if stages is None else stages,
        microbatches=max(row.microbatch for row in rows) + 1,
        fused=all(row.op != "W" for row in rows),
    )


def _passes(
    runs: Mapping[tuple[int, int], list[dict[tuple[str, int], OperatorRow]]],
) -> tuple[Pass, ...]:
    found: dict[tuple[int, int], dict[int, list[OperatorRow]]] = {}
    for (iteration, stage), parts in runs.items():
        for number, part in enumerate(parts, start=1):
            found.setdefault((number, iteration), {})[stage] = list(part.values())
    return tuple(
        Pass(str(iteration) if number == 1 else f"{iteration}/{number}", stages)
        for (number, iteration), stages in sorted(found.items(), key=lambda item: item[0])
    )


def _parse(line: str, file: str, number: int) -> tuple[int, int, OperatorRow]:
    fields = line.split(",")
    if len(fields) != len(COLUMNS):
        raise FormatError(
            f"has {counted(len(fields), 'field')} instead of {len(COLUMNS)}",
            file=file,
            line=number,
        )

    def fail(column: str, message: str) -> NoReturn:
        place = COLUMNS.index(column)
        before = sum(len(field) + 1 for field in fields[:place])
        raise FormatError(f"{column} {message}", file=file, line=number, column=before + 1)

    def whole(column: str) -> int:
        field = fields[COLUMNS.index(column)]
        if not _WHOLE.fullmatch(field):
            fail(column, f"must be a whole number from 0 to 999999, not {field[:40]!r}")
        return int(field)

    def time(column: str) -> float:
        field = fields[COLUMNS.index(column)]
        value = float(field) if _TIME.fullmatch(field) else math.nan
        if not abs(value) < _LONGEST_MS:
            fail(column, f"must be a time in milliseconds, not {field[:40]!r}")
        return value

    if fields[2] not in ("F", "B", "W"):
        fail("op", f"must be F, B or W, not {fields[2][:40]!r}")
    row = OperatorRow(
        fields[2],
        whole("index"),
        time("host_start_ms"),
        time("host_end_ms"),
        time("gpu_ms"),
        number,
    )
    if row.host_end_ms < row.host_start_ms:
        fail("host_end_ms", "must not be before host_start_ms")
    if row.gpu_ms < 0:
        fail("gpu_ms", "must not be negative")
    if row.gpu_ms > row.host_end_ms - row.host_start_ms + _CLOCK_ERROR_MS:
        fail("gpu_ms", "must not be longer than from host_start_ms to host_end_ms")
    return whole("iteration"), whole("stage"), row
