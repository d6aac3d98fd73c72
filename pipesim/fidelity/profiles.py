"""Measured operator times: of models, from a table, and of one model, from its timelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pipesim.documents.rows import Row, name, positive, read_rows, whole
from pipesim.errors import FormatError
from pipesim.fidelity.constants import GIB_PER_S
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.testbed import Ratios
from pipesim.files import StrPath
from pipesim.formats.measurement import MeasuredIteration, Measurement
from pipesim.scenario import DOWN, UP, Array, Scenario
from pipesim.schedule import Op
from pipesim.timeline import Timeline

__all__ = ["FromTimelines", "OperatorTimes", "from_timelines", "load_operator_times", "ratios"]


@dataclass(frozen=True)
class OperatorTimes:
    """Operator times of a model, each an array of shape [S], in milliseconds."""

    forward_ms: Array
    backward_ms: Array
    weight_ms: Array

    def scenario(self, microbatches: int) -> Scenario:
        """Return a pipeline with these times for all micro-batches."""
        return Scenario(
            stages=len(self.forward_ms),
            microbatches=microbatches,
            forward_ms=self.forward_ms,
            backward_ms=self.backward_ms,
            weight_ms=self.weight_ms,
        )


def load_operator_times(path: StrPath) -> dict[str, OperatorTimes]:
    """Read a CSV with a row for each stage of each model.

    Raises
    ------
    FormatError
        The file cannot be read, lacks a column, or has a value that cannot be; stages of a model
        are not 0 … S−1 in order.
    """
    models: dict[str, OperatorTimes] = {}
    kinds = ("forward_ms", "backward_ms", "weight_ms")
    for model, group in groupby(read_rows(path, ("model", "stage", *kinds)), key=_model):
        rows = list(group)
        for stage, row in enumerate(rows):
            if row.take("stage", whole, "a whole number") != stage or model in models:
                raise FormatError(
                    f"{model} must have stages 0, 1, 2 … in rows that follow each other",
                    file=row.file,
                    line=row.line,
                )
        times = [[row.take(kind, positive, "a time above 0") for row in rows] for kind in kinds]
        models[model] = OperatorTimes(*map(np.array, times))
    return models


def _model(row: Row) -> str:
    return row.take("model", name, "a name")


@dataclass(frozen=True)
class FromTimelines:
    """What the operator timelines of a model tell of its testbed.

    Parameters
    ----------
    scenario : Scenario
        The operator times.
    constants : mapping of str to float
        ``after_ms``, ``idle_speed`` and ``transfer_gib_per_s``, as far as they tell them.
    """

    scenario: Scenario
    constants: Mapping[str, float]


def from_timelines(timelines: Measurement, runs: Sequence[MeasuredRun]) -> FromTimelines:
    """Read off timelines what can be read off, given the runs of their model.

    - ``after_ms``: the healthy iteration time of runs less the span of their healthy timelines,
      1F1B and the others apart, the mean of both.
    - ``transfer_gib_per_s``: a message takes half of the shortest time there and back over a link,
      from the end of the operator that sends to the start of the one that receives; clocks that
      differ cancel out. The median over links and healthy iterations.
    - ``idle_speed``: the time of all operators of an iteration under a delay over that of a healthy
      one of the same file, where both have the same order: the runs over NCCL. The median.
    """
    healthy = [one for one in timelines.iterations if one.used]
    constants: dict[str, float] = {}
    after = []
    for fused in (True, False):
        spans = [one.timeline.iteration_ms for one in healthy if _is_fused(one) == fused]
        whole = [run.healthy_ms for run in runs if (run.system == "1f1b") == fused]
        if spans and whole:
            after.append(float(np.median(whole) - np.median(spans)))
    if after and min(after) >= 0:
        constants["after_ms"] = round(float(np.mean(after)))
    transfers = [ms for one in healthy for ms in _transfers_ms(one.timeline)]
    speeds = [_busy_ms(slow) / _busy_ms(one) for one, slow in _same_order(timelines)]
    if speeds:
        constants["idle_speed"] = round(float(np.median(speeds)), 3)
    size = max(run.message_bytes for run in runs)
    if transfers and np.median(transfers) > 0:
        constants["transfer_gib_per_s"] = round(size / float(np.median(transfers)) / GIB_PER_S, 1)
    return FromTimelines(timelines.scenario, constants)


def _is_fused(iteration: MeasuredIteration) -> bool:
    return any(op.kind == "BW" for op in iteration.timeline.spans)


def _same_order(
    timelines: Measurement,
) -> Iterator[tuple[MeasuredIteration, MeasuredIteration]]:
    for slow in timelines.iterations:
        for one in timelines.iterations:
            if one.used and not slow.used and one.file == slow.file and _order(one) == _order(slow):
                yield one, slow


def _order(iteration: MeasuredIteration) -> list[list[Op]]:
    return [[span.op for span in device] for device in iteration.timeline.compute]


def _busy_ms(iteration: MeasuredIteration) -> float:
    return sum(span.end_ms - span.start_ms for span in iteration.timeline.spans.values())


def _transfers_ms(timeline: Timeline) -> list[float]:
    """Half the shortest time there and back, for each link."""
    spans = timeline.spans
    shortest: dict[tuple[int, int], float] = {}
    for op, span in spans.items():
        way = UP if op.kind != "F" else DOWN
        sender = op._replace(stage=op.stage + (1 if way == UP else -1))
        if op.kind != "W" and sender in spans:
            key = min(op.stage, sender.stage), way
            gap_ms = span.start_ms - spans[sender].end_ms
            shortest[key] = min(gap_ms, shortest.get(key, np.inf))
    links = sorted({link for link, _ in shortest})
    both = [(shortest.get((link, DOWN)), shortest.get((link, UP))) for link in links]
    return [(there + back) / 2 for there, back in both if there is not None and back is not None]


def ratios(profiles: Iterable[Scenario]) -> Ratios:
    """Return the mean relative times of F, B and W, for models without a profile."""
    means = [[float(one.durations_ms(kind).mean()) for kind in ("F", "B", "W")] for one in profiles]
    if not means:
        return Ratios()
    parts = np.mean([np.array(mean) / mean[0] for mean in means], axis=0)
    return Ratios(*(round(float(part), 3) for part in parts))
