"""From measured operators to a scenario, and to the timeline that was measured.

What the lines of a file mean:

- Each line is one operator, or several: see :mod:`pipesim.formats.operator_timeline.operators`.
- A pass that lacks operators, because the run was interrupted, is skipped, and so is one
  whose stages have clocks that disagree: its operators start before what they need has ended.
- The healthy passes of a file are those about as fast as its fastest.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath
from pipesim.formats.measurement import MeasuredIteration, Measurement, OperatorTimes
from pipesim.formats.operator_timeline.operators import Iteration, complete
from pipesim.formats.operator_timeline.rows import OperatorFile, read_operator_csv
from pipesim.scenario import KINDS, Array, Kind, Scenario
from pipesim.text import counted, listed
from pipesim.timeline import OpSpan, Timeline

__all__ = ["import_timelines"]

_HEALTHY = 1.03
"""Up to this many times the fastest iteration of a file counts as healthy: healthy ones
differ by about half a percent, and the mildest delay measured costs 4 %."""


def import_timelines(
    paths: Sequence[StrPath],
    *,
    stages: int | None = None,
    iterations: Collection[int | str] | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read files of measured operators of one pipeline.

    Parameters
    ----------
    paths : sequence of path
        Files as :mod:`pipesim.formats.operator_timeline.rows` describes. Those with W give F, B and
        W, those without the fused backward (and, alone, F).
    stages : int, optional
        How many stages the pipeline has; an iteration that lacks one is partial. Default: as
        many as the files name, so that a missing last stage goes unnoticed.
    iterations : collection of int or str, optional
        The iterations to take as healthy, as the files name them; ``"5/2"`` is the second
        pass of 5. Default: those up to 3 % slower than the fastest of their file.
    message_bytes : float
        Size of a message, which no timeline tells.
    name, source : str
        Of the scenario. Default name: the first file's.

    Raises
    ------
    FormatError
        A file is damaged, holds no complete healthy iteration whose clocks agree, or is of
        another shape than the first; or no file has a chosen iteration.
    ScenarioError
        There is no file.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    files = [read_operator_csv(path, stages=stages) for path in paths]
    wanted = None if iterations is None else {str(label) for label in iterations}
    notes: list[str] = []
    all_found: list[list[Iteration]] = []
    healthy: list[list[Iteration]] = []
    for file in files:
        if (file.stages, file.microbatches) != (files[0].stages, files[0].microbatches):
            raise FormatError(
                f"has {_shape(file)}, but {files[0].file} has {_shape(files[0])}", file=file.file
            )
        whole = [done for part in file.passes if (done := complete(file, part)) is not None]
        skewed = {one.label: reason for one in whole if (reason := one.contradiction)}
        found = [one for one in whole if one.label not in skewed]
        if not found:
            raise FormatError(f"holds no complete iteration{_why(file, skewed)}", file=file.file)
        all_found.append(found)
        healthy.append(_choose(file, found, wanted))
        notes += _notes(file, found, healthy[-1], skewed)
    for label in sorted(wanted or ()):
        if not any(part.label == label for file in files for part in file.passes):
            raise FormatError(f"there is no iteration {label}", file=files[0].file)
    times = OperatorTimes.of(_samples(files, healthy, notes))
    scenario = Scenario(
        stages=files[0].stages,
        microbatches=files[0].microbatches,
        **times.fields(),
        message_bytes=message_bytes,
        name=name or Path(os.fspath(paths[0])).stem,
        source=source,
    )
    measured = tuple(
        MeasuredIteration(file.file, one.label, one in chosen, _timeline(scenario, one))
        for file, found, chosen in zip(files, all_found, healthy, strict=True)
        for one in found
    )
    times_ms = tuple(one.iteration_ms for chosen in healthy for one in chosen)
    return Measurement(scenario, measured, (*notes, *times.notes), times_ms, times.spread_ms)


def _timeline(scenario: Scenario, iteration: Iteration) -> Timeline:
    origin = min(stage[0].span.start_ms for stage in iteration.stages)
    return Timeline(
        scenario,
        tuple(
            tuple(OpSpan(op, start - origin, end - origin) for (op, start, end), _ in stage)
            for stage in iteration.stages
        ),
    )


def _choose(
    file: OperatorFile, found: list[Iteration], wanted: Collection[str] | None
) -> list[Iteration]:
    if wanted is None:
        most = _HEALTHY * min(one.iteration_ms for one in found)
        return [one for one in found if one.iteration_ms <= most]
    chosen = [one for one in found if one.label in wanted]
    if not chosen:
        labels = ", ".join(one.label for one in found)
        raise FormatError(
            f"none of the chosen iterations is complete here with clocks that agree (complete: "
            f"{labels})",
            file=file.file,
        )
    return chosen


def _why(file: OperatorFile, skewed: Mapping[str, str]) -> str:
    """Say why a file has no usable iteration, as far as its first one tells."""
    if skewed:
        label, reason = next(iter(skewed.items()))
        return f" whose clocks agree (iteration {label}: {reason})"
    first = file.passes[0]
    missing = next((stage for stage in range(file.stages) if stage not in first.rows), None)
    return "" if missing is None else f" (iteration {first.label} lacks stage {missing})"


def _samples(
    files: Sequence[OperatorFile], healthy: Sequence[Sequence[Iteration]], notes: list[str]
) -> dict[Kind, Array]:
    """Return the times of each kind, shape [iterations, S, N], over all healthy iterations.

    Where some files have W, forwards are of these alone, as B and W are.
    """
    pairs = [(file, one) for file, chosen in zip(files, healthy, strict=True) for one in chosen]
    mixed = len({file.fused for file in files}) > 1
    shape = len(pairs), files[0].stages, files[0].microbatches
    samples: dict[Kind, Array] = {kind: np.full(shape, np.nan) for kind in KINDS}
    for number, (file, iteration) in enumerate(pairs):
        for stage in iteration.stages:
            for (op, _, _), gpu_ms in stage:
                if not (mixed and file.fused and op.kind == "F"):
                    samples[op.kind][number, op.stage, op.microbatch] = gpu_ms
    if mixed:
        notes.append("F, B and W are from the files with W, the fused backward from those without")
    return samples


def _notes(
    file: OperatorFile,
    found: list[Iteration],
    chosen: list[Iteration],
    skewed: Mapping[str, str],
) -> Iterator[str]:
    """Say what became of a file's passes."""
    what = "F and fused backward" if file.fused else "F, B and W"
    yield f"{file.file}: {_shape(file)}, {what}"
    yield f"{file.file}: medians over {_timed(chosen)}"
    if left := [one for one in found if one not in chosen]:
        yield f"{file.file}: left out {_timed(left)}"
    again = [part.label for part in file.passes if "/" in part.label]
    if again:
        taken = "is taken as an iteration" if len(again) == 1 else "are taken as iterations"
        yield f"{file.file}: iteration numbers repeat; {listed(again)} {taken} of their own"
    whole = {one.label for one in found} | set(skewed)
    partial = [part.label for part in file.passes if part.label not in whole]
    if partial:
        count = counted(len(partial), "partial iteration")
        yield f"{file.file}: skipped {count}: {listed(partial)}"
    if skewed:
        label, reason = next(iter(skewed.items()))
        yield (
            f"{file.file}: clocks disagree: skipped {counted(len(skewed), 'iteration')}: "
            f"{listed(list(skewed))} ({label}: {reason})"
        )
    if not file.fused and (shared := _shared(file, chosen)):
        yield (
            f"{file.file}: the last W of a stage stands for several micro-batches, which share "
            f"its time equally ({shared})"
        )


def _shared(file: OperatorFile, chosen: Sequence[Iteration]) -> str:
    """Say for how many micro-batches the last W of each stage stands."""
    rows = {part.label: part.rows for part in file.passes}
    parts = []
    for stage in range(file.stages):
        lines = {sum(row.op == "W" for row in rows[one.label][stage]) for one in chosen}
        counts = sorted(file.microbatches - n + 1 for n in lines if n < file.microbatches)
        if counts:
            parts.append(f"stage {stage}: {' or '.join(map(str, counts))}")
    return ", ".join(parts)


def _timed(iterations: Sequence[Iteration]) -> str:
    times = [one.iteration_ms for one in iterations]
    span = f"{min(times):.0f} to {max(times):.0f} ms" if len(times) > 1 else f"{times[0]:.0f} ms"
    labels = listed([one.label for one in iterations])
    return f"iteration{'s' if len(times) > 1 else ''} {labels} ({span})"


def _shape(file: OperatorFile) -> str:
    return f"{counted(file.stages, 'stage')} × {counted(file.microbatches, 'micro-batch')}"
