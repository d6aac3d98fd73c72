"""One pipeline: the traces of its ranks, and the shape that they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipesim.errors import FormatError
from pipesim.formats.profiler.kineto import KinetoTrace
from pipesim.formats.profiler.names import Action
from pipesim.formats.profiler.ranks import absent, check_whole, stages
from pipesim.formats.profiler.span import Span
from pipesim.schedule import Op

__all__ = ["Operators", "Pipeline"]

_MOST_OPERATORS = 1_000_000

Operators = Sequence[Mapping[Op, Span]]
"""The operators of an iteration, by device, on the clock that the ranks share."""


class Pipeline:
    """Every rank is a device; every stage is on one of them.

    Attributes
    ----------
    file : str
        The first rank's.
    ranks : mapping of int to KinetoTrace
        In order; their positions are the devices.
    iterations : mapping of int to Operators
        By profiler step.
    placement : tuple of int, shape [S]
        The device of each stage.
    microbatches : int
        How many there are.
    """

    def __init__(
        self, ranks: Mapping[int, KinetoTrace], given: Mapping[int, KinetoTrace], notes: list[str]
    ) -> None:
        self.ranks = dict(ranks)
        traces = list(ranks.values())
        self.file = traces[0].file
        origin_ms = min(trace.origin_ms for trace in traces)
        self.iterations: dict[int, Operators] = {
            step: [
                _named(trace.iterations.get(step, {}), rank, trace, origin_ms)
                for rank, trace in ranks.items()
            ]
            for step in sorted({step for trace in traces for step in trace.iterations})
        }
        device_of = {
            stage: device
            for device, (rank, trace) in enumerate(ranks.items())
            for stage in stages(rank, trace)
        }
        for stage in range(max(device_of)):
            if stage not in device_of:
                raise FormatError(
                    f"no file has stage {stage}{absent(given, ' (', ')')}", file=self.file
                )
        self.placement = tuple(device_of[stage] for stage in sorted(device_of))
        check_whole(self.ranks, self.placement, dict(given), notes)
        ops = [op for devices in self.iterations.values() for ops in devices for op in ops]
        self.microbatches = max(op.microbatch for op in ops) + 1
        if len(self.placement) * self.microbatches > _MOST_OPERATORS:
            raise FormatError(
                f"has too large a micro-batch: {self.microbatches - 1}", file=self.file
            )

    def missing(self, step: int) -> str:
        """Name the first operator that an iteration lacks; nothing if it is complete."""
        have = {op for ops in self.iterations[step] for op in ops}
        for stage in range(len(self.placement)):
            for m in range(self.microbatches):
                halves = {Op("B", stage, m), Op("W", stage, m)}
                if Op("F", stage, m) not in have:
                    return f"{stage}F{m}"
                if Op("BW", stage, m) in have:
                    if halves & have:
                        return f"sense: {stage}B{m} and the full backward are both there"
                elif not halves <= have:
                    return f"the backward of stage {stage}, micro-batch {m}"
        return ""


def _named(
    spans: Mapping[Action, Span], rank: int, trace: KinetoTrace, origin_ms: float
) -> dict[Op, Span]:
    """Return the spans of a rank by operator; where some name their stage, only these."""
    names_stages, own = trace.names_stages, min(stages(rank, trace))
    return {
        Op(kind, own if stage is None else stage, m): span.since(origin_ms - trace.origin_ms)
        for (kind, stage, m), span in spans.items()
        if stage is not None or not names_stages
    }
