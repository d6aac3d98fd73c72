"""From measured operators to a scenario, and to the timeline that was measured.

What the lines of a file mean:

- Each line is one operator, or several: see :mod:`pipesim.formats.operator_timeline.operators`.
- A pass that lacks operators, because the run was interrupted, is skipped, and so is one
  whose stages have clocks that disagree: its operators start before what they need has ended.
- The healthy passes of a file are those about as fast as its fastest.
- Files of one pipeline may have run different orders, whose iteration times differ: those of the
  order that most healthy passes ran are told.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath
from pipesim.formats.chosen import chosen
from pipesim.formats.measurement import MeasuredIteration, Measurement, OperatorTimes
from pipesim.formats.operator_timeline.operators import Iteration, complete
from pipesim.formats.operator_timeline.rows import OperatorFile, Pass, read_operator_csv
from pipesim.formats.regimes import levels
from pipesim.formats.tally import Dropped, Tally
from pipesim.scenario import KINDS, Array, Kind, Scenario
from pipesim.text import counted, fixed, listed
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
        The iterations to take as healthy, as the files name them, or ranges of them such as
        ``"20-40"``; ``"5/2"`` is the second pass of 5. Default: those up to 3 % slower than the
        fastest of their file.
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
    wanted = None
    if iterations is not None:
        labels = [part.label for file in files for part in file.passes]
        wanted, absent = chosen(iterations, labels)
        for label in absent:
            raise FormatError(f"there is no iteration {label}", file=files[0].file)
    read = []
    for file in files:
        if (file.stages, file.microbatches) != (files[0].stages, files[0].microbatches):
            raise FormatError(
                f"has {_shape(file)}, but {files[0].file} has {_shape(files[0])}", file=file.file
            )
        read.append(_read(file, wanted))
    notes = [f"{_name(one.file, files)}{text}" for one in read for text in _notes(one)]
    if len({file.fused for file in files}) > 1:
        notes.append("F, B and W are from the files with W, the fused backward from those without")
    times = OperatorTimes.of(_samples(read))
    scenario = Scenario(
        stages=files[0].stages,
        microbatches=files[0].microbatches,
        **times.fields(),
        message_bytes=message_bytes,
        name=name or Path(os.fspath(paths[0])).stem,
        source=source,
    )
    healthy = [one for file in read for one in file.healthy]
    schedule = Counter(one.schedule for one in healthy).most_common(1)[0][0]
    ran_it = [one for one in healthy if one.schedule == schedule]
    if len(ran_it) < len(healthy):
        notes.append(
            f"the healthy iterations ran different orders: checked against the {len(ran_it)} of "
            f"{len(healthy)} with the usual one"
        )
    return Measurement(
        scenario,
        tuple(
            MeasuredIteration(
                one.file.file, each.label, each in one.healthy, _timeline(scenario, each)
            )
            for one in read
            for each in one.found
        ),
        (*notes, *times.notes),
        tuple(one.iteration_ms for one in ran_it),
        times.spread_ms,
        (*_tallies(read),),
        schedule,
    )


@dataclass(frozen=True)
class _Read:
    """The passes of a file.

    ``found`` are complete and their clocks agree; ``healthy`` are chosen among them; ``skewed``
    and ``partial`` say why the others are skipped, by label.
    """

    file: OperatorFile
    found: list[Iteration]
    healthy: list[Iteration]
    skewed: Mapping[str, str]
    partial: Mapping[str, str]


def _read(file: OperatorFile, wanted: Collection[str] | None) -> _Read:
    whole, partial = [], {}
    for part in file.passes:
        done = complete(file, part)
        if done is None:
            partial[part.label] = _lacking(file, part)
        else:
            whole.append(done)
    skewed = {one.label: reason for one in whole if (reason := one.contradiction)}
    found = [one for one in whole if one.label not in skewed]
    if not found:
        raise FormatError(f"holds no complete iteration{_why(skewed, partial)}", file=file.file)
    return _Read(file, found, _choose(file, found, wanted), skewed, partial)


def _name(file: OperatorFile, files: Sequence[OperatorFile]) -> str:
    """Name a file in front of what is said about it, where there are several."""
    names = [Path(one.file).name for one in files]
    own = Path(file.file).name
    if len(files) == 1:
        return ""
    return f"{own if names.count(own) == 1 else file.file}: "


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


def _why(skewed: Mapping[str, str], partial: Mapping[str, str]) -> str:
    """Say why a file has no usable iteration, as far as its first one tells."""
    if skewed:
        label, reason = next(iter(skewed.items()))
        return f" whose clocks agree (iteration {label}: {reason})"
    label, reason = next(iter(partial.items()))
    return f" (iteration {label} {reason})"


def _lacking(file: OperatorFile, part: Pass) -> str:
    """Say what a partial pass lacks first."""
    for stage in range(file.stages):
        rows = part.rows.get(stage, [])
        if not rows:
            return f"lacks stage {stage}"
        there = {(row.op, row.microbatch) for row in rows}
        for op in "FB":
            for m in range(file.microbatches):
                if (op, m) not in there:
                    return f"lacks {op} of micro-batch {m} on stage {stage} (line {rows[-1].line})"
    return f"lacks W (line {max(rows[-1].line for rows in part.rows.values())})"


def _samples(read: Sequence[_Read]) -> dict[Kind, Array]:
    """Return the times of each kind, shape [iterations, S, N], over all healthy iterations.

    Where some files have W, forwards are of these alone, as B and W are.
    """
    files = [one.file for one in read]
    pairs = [(one.file, each) for one in read for each in one.healthy]
    mixed = len({file.fused for file in files}) > 1
    shape = len(pairs), files[0].stages, files[0].microbatches
    samples: dict[Kind, Array] = {kind: np.full(shape, np.nan) for kind in KINDS}
    for number, (file, iteration) in enumerate(pairs):
        for stage in iteration.stages:
            for (op, _, _), gpu_ms in stage:
                if not (mixed and file.fused and op.kind == "F"):
                    samples[op.kind][number, op.stage, op.microbatch] = gpu_ms
    return samples


def _notes(read: _Read) -> Iterator[str]:
    """Say what became of a file's passes."""
    file, chosen = read.file, read.healthy
    yield f"{_shape(file)}, {'F and fused backward' if file.fused else 'F, B and W'}"
    yield f"medians over {_timed(chosen)}"
    times = np.array([one.iteration_ms for one in read.found])
    level = levels(np.maximum(times, 1e-9), smallest=1)
    for number in range(int(level.max()) + 1):
        left = [
            one for one, own in zip(read.found, level, strict=True)
            if own == number and one not in chosen
        ]  # fmt: skip
        if left:
            factor = np.median([one.iteration_ms for one in left]) / max(
                float(np.median([one.iteration_ms for one in chosen])), 1e-9
            )
            yield f"left out {_timed(left)}, {fixed(float(factor), 2)}× as long"
    again = [part.label for part in file.passes if "/" in part.label]
    if again:
        taken = "is taken as an iteration" if len(again) == 1 else "are taken as iterations"
        yield f"iteration numbers repeat; {listed(again)} {taken} of their own"
    if read.partial:
        label, reason = next(iter(read.partial.items()))
        count = counted(len(read.partial), "partial iteration")
        yield f"skipped {count}: {listed(list(read.partial))} ({label} {reason})"
    if read.skewed:
        label, reason = next(iter(read.skewed.items()))
        yield (
            f"clocks disagree: skipped {counted(len(read.skewed), 'iteration')}: "
            f"{listed(list(read.skewed))} ({label}: {reason})"
        )
    if not file.fused and (shared := _shared(file, chosen)):
        yield (
            f"the last W of a stage stands for several micro-batches, which share "
            f"its time equally ({shared})"
        )


def _tallies(read: Sequence[_Read]) -> Iterator[Tally]:
    """Count lines, iterations and stages."""
    reasons: dict[str, list[tuple[str, int]]] = {}
    lines = 0
    for one in read:
        name = Path(one.file.file).name
        healthy = {each.label for each in one.healthy}
        for part in one.file.passes:
            count = sum(len(rows) for rows in part.rows.values())
            first = min(row.line for rows in part.rows.values() for row in rows)
            where = f"{name}, line {first} on: iteration {part.label}"
            if part.label in healthy:
                lines += count
            elif part.label in one.partial:
                place = f"{where} {one.partial[part.label]}"
                reasons.setdefault("incomplete", []).append((place, count))
            elif part.label in one.skewed:
                place = f"{where}, {one.skewed[part.label]}"
                reasons.setdefault("of clocks that disagree", []).append((place, count))
            else:
                (each,) = (each for each in one.found if each.label == part.label)
                place = f"{where}, {each.iteration_ms:,.0f} ms"
                reasons.setdefault("not among the healthy ones", []).append((place, count))
    yield Tally("file", len(read))
    yield Tally("stage", read[0].file.stages)
    yield Tally(
        "iteration",
        sum(len(one.healthy) for one in read),
        [Dropped(why, [place for place, _ in places]) for why, places in reasons.items()],
    )
    yield Tally(
        "line",
        lines,
        [
            Dropped(f"of iterations {why}", ["see those"], sum(count for _, count in places))
            for why, places in reasons.items()
        ],
        "operators of the used iterations",
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
