"""From measured operators to a scenario, and to the timeline that was measured.

What the lines of a file mean:

- Each line is one operator, or several: see :mod:`pipesim.formats._operators`.
- A pass that lacks operators, because the run was interrupted, is skipped.
- The healthy passes of a file are those about as fast as its fastest.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath
from pipesim.formats._operators import Iteration, complete
from pipesim.formats.measurement import MeasuredIteration, Measurement
from pipesim.formats.operator_csv import OperatorFile, read_operator_csv
from pipesim.scenario import Array, Kind, Scenario
from pipesim.timeline import OpSpan, Timeline

__all__ = ["import_timelines"]

_HEALTHY = 1.03
"""Up to this many times the fastest iteration of a file counts as healthy: healthy ones
differ by about half a percent, and the mildest delay measured costs 4 %."""

_DIGITS = 4
"""Medians are kept to 0.1 µs; the logs have 1 µs."""


def import_timelines(
    paths: Sequence[StrPath],
    *,
    iterations: Collection[int | str] | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read files of measured operators of one pipeline.

    Parameters
    ----------
    paths : sequence of path
        Files as :mod:`pipesim.formats.operator_csv` describes. Those with W give F, B and
        W, those without the fused backward (and, alone, F).
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
        A file is damaged, holds no complete healthy iteration, or is of another shape
        than the first; or no file has a chosen iteration.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    files = [read_operator_csv(path) for path in paths]
    wanted = None if iterations is None else {str(label) for label in iterations}
    notes: list[str] = []
    all_found: list[list[Iteration]] = []
    healthy: list[list[Iteration]] = []
    for file in files:
        if (file.stages, file.microbatches) != (files[0].stages, files[0].microbatches):
            raise FormatError(
                f"has {_shape(file)}, but {files[0].file} has {_shape(files[0])}", file=file.file
            )
        found = [done for part in file.passes if (done := complete(file, part)) is not None]
        all_found.append(found)
        healthy.append(_choose(file, found, wanted))
        notes += _notes(file, found, healthy[-1])
    for label in sorted(wanted or ()):
        if not any(part.label == label for file in files for part in file.passes):
            raise FormatError(f"there is no iteration {label}", file=files[0].file)
    times = _medians(files, healthy, notes)
    scenario = Scenario(
        stages=files[0].stages,
        microbatches=files[0].microbatches,
        forward_ms=times["F"],
        backward_ms=times["B"],
        weight_ms=times["W"],
        fused_backward_ms=times.get("BW"),
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
    return Measurement(scenario, measured, tuple(notes), times_ms)


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
    if not found:
        raise FormatError("holds no complete iteration", file=file.file)
    if wanted is None:
        most = _HEALTHY * min(one.iteration_ms for one in found)
        return [one for one in found if one.iteration_ms <= most]
    chosen = [one for one in found if one.label in wanted]
    if not chosen:
        labels = ", ".join(one.label for one in found)
        raise FormatError(
            f"none of the chosen iterations is complete here (complete: {labels})",
            file=file.file,
        )
    return chosen


def _medians(
    files: Sequence[OperatorFile], healthy: Sequence[Sequence[Iteration]], notes: list[str]
) -> dict[Kind, Array]:
    """Return the median time of each kind, shape [S, N], over all healthy iterations."""
    shape = files[0].stages, files[0].microbatches
    pairs = list(zip(files, healthy, strict=True))
    split = [one for file, chosen in pairs for one in chosen if not file.fused]
    fused = [one for file, chosen in pairs for one in chosen if file.fused]

    def median(kind: Kind, iterations: list[Iteration]) -> Array:
        values = np.zeros((len(iterations), *shape))
        for value, iteration in zip(values, iterations, strict=True):
            for stage in iteration.stages:
                for (op, _, _), gpu_ms in stage:
                    if op.kind == kind:
                        value[op.stage, op.microbatch] = gpu_ms
        return np.round(np.median(values, axis=0), _DIGITS)

    if not split:
        notes.append("no file has W: B and W are guessed to be half of the fused backward each")
        both = median("BW", fused)
        return {"F": median("F", fused), "B": both / 2, "W": both / 2, "BW": both}
    times: dict[Kind, Array] = {kind: median(kind, split) for kind in ("F", "B", "W")}
    if fused:
        times["BW"] = median("BW", fused)
        notes.append("F, B and W are from the files with W, the fused backward from those without")
    else:
        notes.append("no file has the fused backward: it is guessed to take B + W")
    return times


def _notes(file: OperatorFile, found: list[Iteration], chosen: list[Iteration]) -> Iterator[str]:
    """Say what became of a file's passes."""
    what = "F and fused backward" if file.fused else "F, B and W"
    yield f"{file.file}: {_shape(file)}, {what}"
    yield f"{file.file}: medians over {_listed(chosen)}"
    if left := [one for one in found if one not in chosen]:
        yield f"{file.file}: left out {_listed(left)}"
    again = [part.label for part in file.passes if "/" in part.label]
    if again:
        yield (
            f"{file.file}: iteration numbers come again; {', '.join(again)} are taken as "
            "iterations of their own"
        )
    whole = {one.label for one in found}
    partial = [part.label for part in file.passes if part.label not in whole]
    if partial:
        yield f"{file.file}: skipped {len(partial)} partial iteration(s): {', '.join(partial)}"
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


def _listed(iterations: Sequence[Iteration]) -> str:
    labels = ", ".join(one.label for one in iterations)
    times = [one.iteration_ms for one in iterations]
    span = f"{min(times):.0f} to {max(times):.0f} ms" if len(times) > 1 else f"{times[0]:.0f} ms"
    return f"iteration(s) {labels} ({span})"


def _shape(file: OperatorFile) -> str:
    return f"{file.stages} stages × {file.microbatches} micro-batches"
