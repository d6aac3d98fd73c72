"""Production traces: every operation of every rank over some training steps, as parquet.

The format of the sample traces of "Understanding Stragglers in Large Model Training Using
What-if Analysis" (ByteDance-Seed/StragglerAnalysis), see
:mod:`pipesim.formats.production.table`.

One *iteration* is one step of one data-parallel rank, see
:mod:`pipesim.formats.production.assembly`. It is skipped, with a reason, if it lacks
operators or if its clocks contradict it. ``gmc`` is the stage of the model, ``stage`` the
device on which it is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from pipesim.errors import FormatError
from pipesim.files import StrPath
from pipesim.formats.clocks import UnusableError
from pipesim.formats.measurement import MeasuredIteration, Measurement, OperatorTimes
from pipesim.formats.production.assembly import COMM, COMPUTE, assemble
from pipesim.formats.production.table import read_rows
from pipesim.schedule import Schedule
from pipesim.text import counted
from pipesim.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProductionIteration", "ProductionTrace", "import_production", "read_production"]


@dataclass(frozen=True)
class ProductionIteration:
    """One step of one data-parallel rank.

    Parameters
    ----------
    step, dp_rank : int
        Which one.
    timeline : Timeline
        Its operators and messages, from the first forward at 0 ms on. The scenario has
        this iteration's operator times, shape [S, N].
    """

    step: int
    dp_rank: int
    timeline: Timeline

    @property
    def schedule(self) -> Schedule:
        """The order in which its operators ran."""
        scenario = self.timeline.scenario
        orders = [[span.op for span in device] for device in self.timeline.compute]
        return Schedule(orders, scenario.placement, scenario.microbatches, "measured")


@dataclass(frozen=True)
class ProductionTrace:
    """The complete iterations of a production trace.

    Parameters
    ----------
    file : str
        Its name.
    iterations : tuple of ProductionIteration
        In order of step and data-parallel rank; all of one shape, at least one.
    skipped : tuple of str
        Why each of the others is left out.
    notes : tuple of str
        For people: what was dropped.
    """

    file: str
    iterations: tuple[ProductionIteration, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def import_production(
    path: StrPath,
    *,
    step: int | None = None,
    dp_rank: int | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read a production trace as a measurement.

    Parameters
    ----------
    path : path
        The parquet file.
    step, dp_rank : int, optional
        Take only this step, or this data-parallel rank. Default: medians over all.
    message_bytes : float
        Size of a message, which no trace tells.
    name, source : str
        Of the scenario. Default name: the file's.

    Raises
    ------
    FormatError
        See :func:`read_production`; or the chosen step or rank has no complete iteration.
    """
    trace = read_production(path)
    chosen = [
        one
        for one in trace.iterations
        if step in (None, one.step) and dp_rank in (None, one.dp_rank)
    ]
    if not chosen:
        wanted = {"step": step, "dp rank": dp_rank}
        what = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
        raise FormatError(f"has no complete iteration of {what}", file=trace.file)
    scenarios = [one.timeline.scenario for one in chosen]
    times = OperatorTimes.of(
        {
            "F": np.stack([one.forward_ms for one in scenarios]),
            "BW": np.stack([one.fused_backward_ms for one in scenarios]),
        }
    )
    scenario = scenarios[0].replaced(
        **times.fields(),
        message_bytes=message_bytes,
        name=name or Path(trace.file).stem,
        source=source,
    )
    iteration_ms = tuple(one.timeline.iteration_ms for one in chosen)
    return Measurement(
        scenario,
        tuple(
            MeasuredIteration(
                trace.file, f"step {one.step}, dp rank {one.dp_rank}", one in chosen, one.timeline
            )
            for one in trace.iterations
        ),
        (
            *trace.notes,
            f"{trace.file}: medians over {counted(len(chosen), 'iteration')} "
            f"({min(iteration_ms):.0f} to {max(iteration_ms):.0f} ms)",
            *times.notes,
        ),
        iteration_ms,
        times.spread_ms,
    )


def read_production(path: StrPath) -> ProductionTrace:
    """Read the complete iterations of a production trace.

    Raises
    ------
    FormatError
        The file is damaged or foreign, lacks a whole stage, or has no complete iteration;
        then the error says what the first one lacks.
    """
    file = os.fspath(path)
    rows = read_rows(path)
    notes = list(_notes(rows, file))
    rows = rows[rows["rank"] == _first_ranks(rows)]
    compute = rows[rows["optype"].isin(list(COMPUTE))]
    if compute.empty:
        raise FormatError("has no forward-compute and no backward-compute", file=file)
    placement = _placement(compute, rows, file)
    microbatches = int(compute["mb_id"].max()) + 1
    if len(placement) * microbatches > len(compute):
        raise FormatError(
            f"has {len(placement)} stages and {microbatches} micro-batches, and too few "
            f"operators ({len(compute)}) for any complete iteration",
            file=file,
        )
    operators = dict(_groups(compute))
    comm = dict(_groups(rows[rows["optype"].isin(list(COMM))]))
    iterations, skipped = [], []
    for step, dp_rank in product(_values(rows, "step"), _values(rows, "dp_rank")):
        try:
            if (step, dp_rank) not in operators:
                raise UnusableError("there is no operator of this rank")
            timeline = assemble(
                operators[step, dp_rank], comm.get((step, dp_rank)), placement, microbatches
            )
        except UnusableError as reason:
            skipped.append(f"step {step}, dp rank {dp_rank}: {reason}")
        else:
            iterations.append(ProductionIteration(step, dp_rank, timeline))
    if not iterations:
        raise FormatError(f"has no complete iteration ({skipped[0]})", file=file)
    shape = f"{counted(len(placement), 'stage')} × {counted(microbatches, 'micro-batch')}"
    notes.insert(0, f"{file}: {shape}, {counted(len(iterations), 'complete iteration')}")
    if skipped:
        more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        notes.append(
            f"{file}: skipped {counted(len(skipped), 'partial or contradictory iteration')}: "
            f"{skipped[0]}{more}"
        )
    silent = sum(not one.timeline.comm for one in iterations) if len(placement) > 1 else 0
    if silent:
        count = counted(silent, "iteration")
        notes.append(f"{file}: {count} without messages: sends and receives do not match")
    return ProductionTrace(file, tuple(iterations), tuple(skipped), tuple(notes))


def _groups(rows: pd.DataFrame) -> Iterator[tuple[tuple[int, int], pd.DataFrame]]:
    for key, part in rows.groupby(["step", "dp_rank"]):
        step, dp_rank = cast("tuple[int, int]", key)
        yield (int(step), int(dp_rank)), part


def _values(rows: pd.DataFrame, column: str) -> list[int]:
    return [int(value) for value in sorted(set(rows[column]))]


def _first_ranks(rows: pd.DataFrame) -> pd.Series[int]:
    """The lowest rank of each row's data-parallel rank and device; its peers do the same."""
    return rows.groupby(["dp_rank", "stage"])["rank"].transform("min")


def _placement(compute: pd.DataFrame, rows: pd.DataFrame, file: str) -> tuple[int, ...]:
    """Return the device of each stage of the model."""
    for column in ("gmc", "stage", "mb_id"):
        if (compute[column] < 0).any():
            row = int(compute.index[compute[column] < 0][0])
            raise FormatError(f"row {row}: a compute operation without {column}", file=file)
    pairs = sorted(set(zip(compute["gmc"].tolist(), compute["stage"].tolist(), strict=True)))
    stages = [stage for stage, _ in pairs]
    if len(set(stages)) < len(stages):
        raise FormatError("has one stage (gmc) on several devices (stage)", file=file)
    missing = next((s for s in range(len(stages)) if s != stages[s]), None)
    if missing is not None:
        raise FormatError(f"holds no operator of stage {missing}", file=file)
    placement = tuple(device for _, device in pairs)
    devices = sorted(set(placement))
    if devices != list(range(len(devices))):
        missing = next(d for d in range(len(devices)) if d not in devices)
        raise FormatError(f"holds no operator of device (stage) {missing}", file=file)
    sending = rows.loc[rows["optype"] == "forward-send", "stage"]
    if placement == tuple(stages) and (sending >= stages[-1]).any():
        raise FormatError(
            f"stage {sending.max()} sends forwards on, but there is no stage after it", file=file
        )
    return placement


def _notes(rows: pd.DataFrame, file: str) -> Iterator[str]:
    """Say which rows are dropped."""
    others = Counter(name for name in rows["optype"] if name not in (*COMPUTE, *COMM))
    if others:
        names: Sequence[str] = sorted(others)
        yield (
            f"{file}: left out {counted(sum(others.values()), 'operation')} outside the "
            f"pipeline: {', '.join(names)}"
        )
    if dropped := int((rows["rank"] != _first_ranks(rows)).sum()):
        yield (
            f"{file}: several ranks share a stage: took the lowest, left out "
            f"{counted(dropped, 'operation')} of the others"
        )
