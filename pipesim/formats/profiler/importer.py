"""From the PyTorch profiler traces of all ranks of one pipeline to a scenario.

- Every rank is a device; every stage is on one of them. Annotations that name no stage
  (``Forward 1``) are of the stage with the number of the rank.
- All ranks of the pipeline must be given. Ranks beyond them are taken to be copies of it, if
  the process groups say so, or if nothing in the traces contradicts it.
- Times are of the GPU in all traces, or of the CPU in all.
- An iteration is complete if every stage ran F, and B and W or the full backward, of every
  micro-batch. Others are skipped.
- Operator times need no common clock. The timeline of an iteration does: it is left out
  where an operator starts before what it needs has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath
from pipesim.formats.clocks import UnusableError, measured_timeline
from pipesim.formats.measurement import MeasuredIteration, Measurement, OperatorTimes
from pipesim.formats.profiler.kineto import Action, KinetoTrace, Span, read_kineto
from pipesim.scenario import KINDS, Array, Kind, Scenario
from pipesim.schedule import Op
from pipesim.text import counted, listed
from pipesim.timeline import OpSpan

__all__ = ["import_profiler"]

_MOST_OPERATORS = 1_000_000
_MOST_NAMED = 8
"""So many missing ranks are named one by one."""


def import_profiler(
    paths: Sequence[StrPath],
    *,
    iterations: Collection[int | str] | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read the traces of all ranks of one pipeline.

    Parameters
    ----------
    paths : sequence of path
        One file for each rank, as :mod:`pipesim.formats.profiler.kineto` describes; where they name
        no rank, in rank order.
    iterations : collection of int or str, optional
        The profiler steps to take the medians over. Default: all complete ones.
    message_bytes : float
        Size of a message, which is not read from traces.
    name, source : str
        Of the scenario. Default name: the first file's.

    Raises
    ------
    FormatError
        A file is damaged or foreign; a rank or stage comes twice or is missing; some times
        are of the GPU and some of the CPU; no chosen iteration is complete.
    ScenarioError
        There is no file.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    notes: list[str] = []
    pipeline = _Pipeline([read_kineto(path) for path in paths], notes)
    complete = pipeline.complete(notes)
    wanted = None if iterations is None else {str(label) for label in iterations}
    for label in sorted(wanted or ()):
        if label not in map(str, complete):
            raise FormatError(
                f"there is no complete iteration {label} (complete: "
                f"{', '.join(map(str, complete))})",
                file=pipeline.file,
            )
    used = [step for step in complete if wanted is None or str(step) in wanted]
    times = OperatorTimes.of(pipeline.samples(used))
    scenario = Scenario(
        stages=len(pipeline.placement),
        microbatches=pipeline.microbatches,
        placement=pipeline.placement,
        **times.fields(),
        message_bytes=message_bytes,
        name=name or Path(pipeline.file).name.split(".")[0],
        source=source,
    )
    notes.append(f"medians over {counted(len(used), 'iteration')}: {listed(used)}")
    measured = []
    contradictions = []
    for step in complete:
        try:
            timeline = measured_timeline(scenario, pipeline.spans(step))
        except UnusableError as reason:
            contradictions.append(f"iteration {step}: {reason}")
        else:
            measured.append(MeasuredIteration(pipeline.file, str(step), step in used, timeline))
    if contradictions:
        notes.append(
            f"no timeline of {counted(len(contradictions), 'iteration')}, only operator times: "
            f"{contradictions[0]}"
        )
    return Measurement(
        scenario,
        tuple(measured),
        (*notes, *times.notes),
        tuple(one.timeline.iteration_ms for one in measured if one.used),
        times.spread_ms,
    )


class _Pipeline:
    """The traces in rank order, and the shape that they show."""

    def __init__(self, traces: Sequence[KinetoTrace], notes: list[str]) -> None:
        self.file = traces[0].file
        self.ranks = ranks = _ranks(traces, notes)
        self.iterations = {
            step: [
                _named(trace.iterations.get(step, {}), rank, _names_stages(trace))
                for rank, trace in ranks.items()
            ]
            for step in sorted({step for trace in traces for step in trace.iterations})
        }
        self.origins_ms = [trace.origin_ms for trace in ranks.values()]
        self.placement = self._placement(list(ranks.values()))
        _check_ranks(ranks, self.placement, notes)
        ops = [op for devices in self.iterations.values() for ops in devices for op in ops]
        self.microbatches = max(op.microbatch for op in ops) + 1
        if len(self.placement) * self.microbatches > _MOST_OPERATORS:
            raise FormatError(
                f"has too large a micro-batch: {self.microbatches - 1}", file=self.file
            )

    def _placement(self, traces: Sequence[KinetoTrace]) -> tuple[int, ...]:
        device_of: dict[int, int] = {}
        for devices in self.iterations.values():
            for device, ops in enumerate(devices):
                for op in ops:
                    first = device_of.setdefault(op.stage, device)
                    if first != device:
                        raise FormatError(
                            f"stage {op.stage} is in {traces[first].file} too: give the ranks of "
                            "one pipeline, not of its data-parallel copies",
                            file=traces[device].file,
                        )
        for stage in range(max(device_of)):
            if stage not in device_of:
                raise FormatError(
                    f"no file has stage {stage}{_absent(self.ranks, ' (', ')')}", file=self.file
                )
        return tuple(device_of[stage] for stage in sorted(device_of))

    def complete(self, notes: list[str]) -> list[int]:
        """Return the iterations that lack nothing, and note the others."""
        partial = {step: missing for step in self.iterations if (missing := self._missing(step))}
        whole = [step for step in self.iterations if step not in partial]
        if not whole:
            step, missing = next(iter(partial.items()))
            raise FormatError(
                f"no iteration is complete (iteration {step} lacks {missing})", file=self.file
            )
        if partial:
            step, missing = next(iter(partial.items()))
            notes.append(
                f"skipped {counted(len(partial), 'partial iteration')}: {listed(list(partial))} "
                f"({step} lacks {missing})"
            )
        return whole

    def _missing(self, step: int) -> str:
        """The first operator that an iteration lacks, or nothing."""
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

    def samples(self, steps: Sequence[int]) -> dict[Kind, Array]:
        """Operator times, shape [iterations, S, N]; NaN where there was none."""
        shape = len(steps), len(self.placement), self.microbatches
        result: dict[Kind, Array] = {kind: np.full(shape, np.nan) for kind in KINDS}
        for number, step in enumerate(steps):
            for ops in self.iterations[step]:
                for op, span in ops.items():
                    duration = span.end_ms - span.start_ms
                    result[op.kind][number, op.stage, op.microbatch] = duration
        return result

    def spans(self, step: int) -> list[list[OpSpan]]:
        """All operators of an iteration on the clock that the ranks share."""
        origin = min(self.origins_ms)
        return [
            [OpSpan(op, own - origin + a, own - origin + b) for op, (a, b) in ops.items()]
            for own, ops in zip(self.origins_ms, self.iterations[step], strict=True)
        ]


def _ranks(traces: Sequence[KinetoTrace], notes: list[str]) -> dict[int, KinetoTrace]:
    """Return the traces by rank, and note what each has."""
    ranks: dict[int, KinetoTrace] = {}
    for position, trace in enumerate(traces):
        rank = position if trace.rank is None else trace.rank
        if rank in ranks:
            raise FormatError(f"is of rank {rank}, and so is {ranks[rank].file}", file=trace.file)
        ranks[rank] = trace
        dropped = Counter(trace.dropped)
        if _names_stages(trace):
            dropped["without stage"] = sum(
                action.stage is None for spans in trace.iterations.values() for action in spans
            )
        notes += [
            f"{trace.file}: left out {counted(count, 'annotation')} {what}"
            for what, count in dropped.items()
            if count
        ]
    nameless = [trace.file for trace in traces if trace.rank is None]
    if nameless and len(traces) > 1:
        notes.append(f"no rank in {listed(nameless)}: ranks follow the order of the files")
    on_gpu = {trace.on_gpu: trace.file for trace in reversed(traces)}
    if len(on_gpu) > 1:
        raise FormatError(
            f"has no GPU annotations, but {on_gpu[True]} has: their times are not comparable",
            file=on_gpu[False],
        )
    if True in on_gpu:
        notes.append("times are of the GPU: from the first kernel of an annotation to its last")
    else:
        notes.append(
            "no GPU annotations: times are of the host; where a GPU computes, they are launch "
            "times, not those of its operators"
        )
    if not all(map(_names_stages, traces)):
        notes.append(
            "Forward and Backward annotations name no stage: the rank is taken for it; on the CPU "
            "they include the wait for their message"
        )
    for trace in traces:
        if trace.world_size != traces[0].world_size:
            sizes = [
                "an unknown number of ranks" if size is None else counted(size, "rank")
                for size in (trace.world_size, traces[0].world_size)
            ]
            raise FormatError(
                f"is from a run of {sizes[0]}, but {traces[0].file} from one of {sizes[1]}",
                file=trace.file,
            )
    return dict(sorted(ranks.items()))


def _check_ranks(
    ranks: Mapping[int, KinetoTrace], placement: Sequence[int], notes: list[str]
) -> None:
    """Raise unless the traces are of a whole pipeline, as far as they tell; note the doubts."""
    traces = list(ranks.values())
    last = traces[placement[-1]]
    if len(placement) - 1 in last.sends_on:
        raise FormatError(
            f"stage {len(placement) - 1} sends forwards on, but no file has stage "
            f"{len(placement)}{_absent(ranks, ' (', ')')}",
            file=last.file,
        )
    groups = [(trace, trace.group) for trace in traces if trace.group]
    for trace, group in groups:
        if missing := sorted(group - set(ranks)):
            raise FormatError(
                f"its pipeline has {counted(len(group), 'rank')}, but no file is from "
                f"{_named_ranks(missing, len(missing))}",
                file=trace.file,
            )
    world_size, absent = traces[0].world_size, _absent(ranks)
    if world_size is None or not absent:
        return
    if len(groups) == len(traces):
        notes.append(f"{absent}: not in this pipeline, by the process groups")
    elif len(traces) == 1 or world_size % len(traces):
        # Copies of this pipeline would make the ranks a multiple of it; and one is no pipeline.
        raise FormatError(
            f"is from a run of {counted(world_size, 'rank')}, but {absent}", file=traces[0].file
        )
    else:
        notes.append(f"{absent}: taken to be copies of this pipeline")


def _absent(ranks: Mapping[int, KinetoTrace], before: str = "", after: str = "") -> str:
    """Say which ranks of the run are not given, or nothing."""
    world_size = next(iter(ranks.values())).world_size or 0
    # At most len(ranks) of the first ones are given, and a run may claim any size.
    first = [rank for rank in range(min(world_size, len(ranks) + _MOST_NAMED)) if rank not in ranks]
    count = world_size - sum(rank < world_size for rank in ranks)
    return f"{before}no file is from {_named_ranks(first, count)}{after}" if count else ""


def _named_ranks(ranks: Sequence[int], count: int) -> str:
    """Return the names of ``count`` ranks, which ``ranks`` starts with."""
    shown: list[object] = list(ranks[:_MOST_NAMED])
    if more := count - len(shown):
        shown.append(f"{more} more")
    return f"rank{'s' if count > 1 else ''} {listed(shown)}"


def _names_stages(trace: KinetoTrace) -> bool:
    return any(action.stage is not None for spans in trace.iterations.values() for action in spans)


def _named(spans: Mapping[Action, Span], rank: int, names_stages: bool) -> dict[Op, Span]:
    """Return the spans of a rank by operator; where some name their stage, only these."""
    return {
        Op(kind, rank if stage is None else stage, m): span
        for (kind, stage, m), span in spans.items()
        if stage is not None or not names_stages
    }
