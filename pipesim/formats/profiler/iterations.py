"""The iterations of one pipeline: which are complete, how long they took, which are used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from pipesim.errors import FormatError, ScheduleError
from pipesim.formats.chosen import chosen
from pipesim.formats.clocks import UnusableError, measured_timeline
from pipesim.formats.measurement import MeasuredIteration
from pipesim.formats.profiler.pipeline import Operators, Pipeline
from pipesim.formats.profiler.work import own_work
from pipesim.formats.regimes import levels, ranges
from pipesim.scenario import KINDS, Array, Kind, Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import OpSpan, Timeline

__all__ = ["Iterations"]


class Iterations:
    """The complete iterations of a pipeline, and those over which medians are taken.

    Parameters
    ----------
    pipeline : Pipeline
        Of which.
    labels : collection of int or str, optional
        The profiler steps to use, or ranges of them. Default: those of the fastest level.

    Attributes
    ----------
    complete, used : list of int
        Profiler steps.
    partial : dict of int to str
        What each of the others lacks.
    slower : list of int
        Complete steps of slower levels, which are not used unless they are wanted.
    work : Work
        The operators' own times.
    timelines : dict of int to Timeline
        Of the complete steps whose clocks allow it.
    contradictions : dict of int to str
        Why the others have none.
    iteration_ms : dict of int to float
        From the first operator to the end of the last; without a timeline the longest such
        time on one rank, by its own clock.

    Raises
    ------
    FormatError
        No iteration is complete, or one that is wanted is not.
    """

    def __init__(self, pipeline: Pipeline, labels: Collection[int | str] | None) -> None:
        self.pipeline = pipeline
        lacks = {step: pipeline.missing(step) for step in pipeline.iterations}
        self.complete = [step for step, missing in lacks.items() if not missing]
        self.partial = {step: missing for step, missing in lacks.items() if missing}
        if not self.complete:
            step, missing = next(iter(self.partial.items()))
            raise FormatError(
                f"no iteration is complete (iteration {step} lacks {missing})", file=pipeline.file
            )
        wanted, absent = chosen(labels or (), self.complete)
        for label in absent:
            raise FormatError(
                f"there is no complete iteration {label} (complete: {ranges(self.complete)})",
                file=pipeline.file,
            )
        self.work = own_work(pipeline, self.complete)
        self.shape = Scenario(
            stages=len(pipeline.placement),
            microbatches=pipeline.microbatches,
            placement=pipeline.placement,
        )
        self.timelines: dict[int, Timeline] = {}
        self.contradictions = dict(self.work.contradictions)
        for step in self.complete:
            if step not in self.contradictions:
                try:
                    self.timelines[step] = measured_timeline(self.shape, self._spans(step))
                except UnusableError as reason:
                    self.contradictions[step] = str(reason)
        self.iteration_ms = {
            step: self.timelines[step].iteration_ms
            if step in self.timelines
            else _longest(self.work.iterations[step])
            for step in self.complete
        }
        level = levels([max(self.iteration_ms[step], 1e-9) for step in self.complete])
        self.slower = [step for step, at in zip(self.complete, level, strict=True) if at]
        self.used = [
            step
            for step in self.complete
            if (step not in self.slower if labels is None else str(step) in wanted)
        ]

    @property
    def usual_ms(self) -> float:
        """Median time of a used iteration."""
        return float(np.median([self.iteration_ms[step] for step in self.used]))

    @property
    def busy_ms(self) -> Array:
        """How long each device works in a used iteration, shape [D]: the median."""
        return np.median(
            [
                [sum(span.end_ms - span.start_ms for span in ops.values()) for ops in devices]
                for devices in (self.work.iterations[step] for step in self.used)
            ],
            axis=0,
        )

    def samples(self) -> dict[Kind, Array]:
        """Operator times of the used iterations, shape [iterations, S, N]; NaN: none there."""
        shape = len(self.used), self.shape.stages, self.shape.microbatches
        result: dict[Kind, Array] = {kind: np.full(shape, np.nan) for kind in KINDS}
        for number, step in enumerate(self.used):
            for ops in self.work.iterations[step]:
                for op, span in ops.items():
                    duration = span.end_ms - span.start_ms
                    result[op.kind][number, op.stage, op.microbatch] = duration
        return result

    def measured(self, scenario: Scenario) -> tuple[MeasuredIteration, ...]:
        """Return the iterations that have a timeline, as those of a scenario."""
        return tuple(
            MeasuredIteration(
                self.pipeline.file,
                str(step),
                step in self.used,
                replace(timeline, scenario=scenario),
            )
            for step, timeline in self.timelines.items()
        )

    def schedule(self) -> Schedule | None:
        """Return the order in which each device ran its operators; None: it makes no sense."""
        orders = [
            [span.op for span in sorted(device, key=lambda span: (span.start_ms, span.end_ms))]
            for device in self._spans(self.used[0])
        ]
        try:
            return Schedule(orders, self.shape.placement, self.shape.microbatches, "measured")
        except ScheduleError:
            return None

    def _spans(self, step: int) -> list[list[OpSpan]]:
        return [
            [OpSpan(op, span.start_ms, span.end_ms) for op, span in ops.items()]
            for ops in self.work.iterations[step]
        ]


def _longest(devices: Operators) -> float:
    return max(
        max(span.end_ms for span in ops.values()) - min(span.start_ms for span in ops.values())
        for ops in devices
        if ops
    )
