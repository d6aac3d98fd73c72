"""From the lines of one pass to the operators that they stand for.

- An operator really started at ``host_end − gpu``: before that its kernel waited.
- The last W of a stage stands for all W that are still pending there, each of which gets
  an equal share of its time. Where a share would be too short for a W, the log was cut
  instead and the pass lacks operators.
- The clocks of stages disagree where an operator starts before what it needs has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipesim.errors import FormatError, ScheduleError
from pipesim.formats.clocks import contradiction
from pipesim.formats.operator_timeline.rows import OperatorFile, OperatorRow, Pass
from pipesim.scenario import Kind
from pipesim.schedule import Op, Schedule
from pipesim.timeline import OpSpan

__all__ = ["Iteration", "TimedOp", "complete"]

_CLOCK_ERROR_MS, _CLOCK_ERROR = 5.0, 0.02
"""Clocks disagree if an operator starts over 5 ms and over 2 % of its time too early. On A10
nodes operators start at least 1.6 ms after what they need has ended."""


class TimedOp(NamedTuple):
    """An operator, where it ran, and its own time, which rounding keeps out of the span."""

    span: OpSpan
    gpu_ms: float


@dataclass(frozen=True)
class Iteration:
    """A pass in which no operator is missing: its operators, shape [S][…], and their order."""

    label: str
    stages: list[list[TimedOp]]
    schedule: Schedule

    @property
    def iteration_ms(self) -> float:
        """From the first start to the last end, over all stages."""
        starts = [stage[0].span.start_ms for stage in self.stages]
        return max(stage[-1].span.end_ms for stage in self.stages) - min(starts)

    @property
    def contradiction(self) -> str:
        """How the clocks of its stages disagree, or nothing."""
        spans = {one.span.op: one.span for stage in self.stages for one in stage}
        return contradiction(
            self.schedule,
            spans,
            lambda span: max(_CLOCK_ERROR_MS, _CLOCK_ERROR * (span.end_ms - span.start_ms)),
        )


def complete(file: OperatorFile, part: Pass) -> Iteration | None:
    """Return the operators of a pass, or None if it lacks some.

    Raises
    ------
    FormatError
        All are there, but in an order in which they cannot have run.
    """
    # Some files count milliseconds since 1970: small numbers first, or digits are lost.
    clock = min(rows[0].host_start_ms for rows in part.rows.values())
    stages = []
    for stage in range(file.stages):
        timed = list(_timed(file, stage, part.rows.get(stage, []), clock))
        needed: tuple[Kind, ...] = ("F", "BW") if file.fused else ("F", "B", "W")
        if len(timed) != len(needed) * file.microbatches or {op for (op, _, _), _ in timed} != {
            Op(kind, stage, m) for kind in needed for m in range(file.microbatches)
        }:
            return None
        stages.append(timed)
    orders = [[one.span.op for one in timed] for timed in stages]
    try:
        schedule = Schedule(orders, range(file.stages), file.microbatches)
    except ScheduleError as error:
        line = min(row.line for rows in part.rows.values() for row in rows)
        raise FormatError(f"iteration {part.label}: {error}", file=file.file, line=line) from None
    return Iteration(part.label, stages, schedule)


def _timed(
    file: OperatorFile, stage: int, rows: list[OperatorRow], clock: float
) -> Iterator[TimedOp]:
    kinds: dict[str, Kind] = {"F": "F", "B": "BW" if file.fused else "B", "W": "W"}
    last_w = next((row for row in reversed(rows) if row.op == "W"), None)
    pending: set[int] = set()
    free = -np.inf
    for row in rows:
        covered = [row.microbatch]
        if row.op == "B":
            pending.add(row.microbatch)
        elif row.op == "W":
            everything = sorted(pending | {row.microbatch})
            if row is last_w and row.gpu_ms / len(everything) >= _shortest_share_ms(rows, row):
                covered = everything
            pending -= set(covered)
        end = row.host_end_ms - clock
        # Two clocks meet here and differ by some microseconds.
        start = max(end - row.gpu_ms, free)
        edges = np.linspace(start, end, len(covered) + 1).tolist()
        for m, (a, b) in zip(covered, pairwise(edges), strict=True):
            yield TimedOp(OpSpan(Op(kinds[row.op], stage, m), a, b), row.gpu_ms / len(covered))
        free = end


def _shortest_share_ms(rows: list[OperatorRow], last_w: OperatorRow) -> float:
    """Return three quarters of what the other W took; if there is none, a quarter of a B."""
    others = [row.gpu_ms for row in rows if row.op == "W" and row is not last_w]
    if others:
        return 0.75 * float(np.median(others))
    return 0.25 * float(np.median([row.gpu_ms for row in rows if row.op == "B"] or [0.0]))
