"""A production trace: its complete iterations, and how they lie over steps and workers.

``gmc`` is the stage of the model, ``stage`` the device on which it is. Ranks that share a device
and a data-parallel rank (tensor, sequence or context parallel) work on the same operators and
wait for each other: of their lanes through the devices, the slowest of each step is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipesim.errors import FormatError
from pipesim.files import StrPath
from pipesim.formats.clocks import measured_timeline
from pipesim.formats.production.assembly import COMPUTE, assemble, usual_microbatches
from pipesim.formats.production.messages import ENDS, communication, messages, transfers_ms
from pipesim.formats.production.offsets import set_right
from pipesim.formats.production.table import read_rows
from pipesim.formats.tally import Dropped
from pipesim.program import Message
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Op, Schedule
from pipesim.text import counted, milliseconds
from pipesim.timeline import CommSpan, OpSpan, Timeline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProductionIteration", "ProductionTrace", "read_production"]


@dataclass(frozen=True)
class ProductionIteration:
    """One step of one data-parallel rank.

    Parameters
    ----------
    step, dp_rank : int
        Which one.
    schedule : Schedule
        The order in which its operators ran.
    start_ms, end_ms : array, shape [2, S, N]
        When its forwards and its full backwards ran, on the clock of the trace.
    messages_ms : array, shape [4, S, N, 2]
        When the ends of its messages were busy, see :mod:`.messages`; NaN: not known.
    """

    step: int
    dp_rank: int
    schedule: Schedule
    start_ms: Array
    end_ms: Array
    messages_ms: Array

    @property
    def times_ms(self) -> Array:
        """How long each operator took, shape [2, S, N]."""
        return self.end_ms - self.start_ms

    @property
    def transfers_ms(self) -> Array:
        """How long its messages take, see :func:`.messages.transfers_ms`, shape [2, S − 1, N]."""
        result: Array = transfers_ms(self.messages_ms[None])[0]
        return result

    @property
    def iteration_ms(self) -> float:
        """From the first start to the last end."""
        return float(self.end_ms.max() - self.start_ms.min())

    @property
    def has_messages(self) -> bool:
        """Whether the trace tells when its messages travelled."""
        return not np.isnan(self.messages_ms).all()

    @property
    def timeline(self) -> Timeline:
        """Its operators and messages, from the first forward at 0 ms on; made anew each time.

        The scenario has this iteration's operator times.
        """
        forward, backward = self.times_ms
        scenario = Scenario(
            stages=self.schedule.stages,
            microbatches=self.schedule.microbatches,
            placement=self.schedule.placement,
            forward_ms=forward,
            backward_ms=backward / 2,
            weight_ms=backward / 2,
            fused_backward_ms=backward,
        )
        kinds = list(COMPUTE.values())
        spans = [
            [
                OpSpan(
                    op,
                    float(self.start_ms[kinds.index(op.kind), op.stage, op.microbatch]),
                    float(self.end_ms[kinds.index(op.kind), op.stage, op.microbatch]),
                )
                for op in order
            ]
            for order in self.schedule.orders
        ]
        made = measured_timeline(scenario, spans)
        return Timeline(scenario, made.compute, tuple(self._comm(made)))

    def _comm(self, made: Timeline) -> Iterator[CommSpan]:
        kinds = list(COMPUTE.values())
        origin = float(self.start_ms.min())
        for device, spans in enumerate(made.compute):
            for way, end in enumerate(ENDS.values()):
                for op in (span.op for span in spans if span.op.kind == kinds[end.kind]):
                    start, stop = self.messages_ms[way, op.stage, op.microbatch].tolist()
                    if np.isnan(start):
                        continue
                    ends = op, Op(op.kind, op.stage + end.peer, op.microbatch)
                    message = Message(*(ends if end.sends else ends[::-1]))
                    # Who waits before the iteration has begun waits from its beginning on.
                    begin, done = max(start - origin, 0.0), max(stop - origin, 0.0)
                    yield CommSpan(message, "kernel", device, begin, done)


@dataclass(frozen=True, eq=False)
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
    left_out : tuple of Dropped
        Operations that were not read as operators or messages, by reason.
    notes : tuple of str
        For people: what was found and dropped.
    steps, workers : tuple of int
        All steps and data-parallel ranks of the file.
    unread : tuple of int
        Steps that were not asked for.
    operations, sends : int
        How many it holds, and how many of them are ends of messages.
    ranks_ms : DataFrame
        How long each ``rank`` of each ``dp_rank`` and device (``stage``) computed in each
        ``step``: ``busy_ms``; and whether its operators were ``read``.
    outside : DataFrame
        Operations of the ranks that were read which are no part of the pipeline, for
        :func:`.outside.outside_ms`.
    """

    file: str
    iterations: tuple[ProductionIteration, ...]
    skipped: tuple[str, ...]
    left_out: tuple[Dropped, ...]
    notes: tuple[str, ...]
    steps: tuple[int, ...]
    workers: tuple[int, ...]
    unread: tuple[int, ...]
    operations: int
    sends: int
    ranks_ms: pd.DataFrame
    outside: pd.DataFrame

    @property
    def schedule(self) -> Schedule:
        """The order of its first iteration, for the shape."""
        return self.iterations[0].schedule

    @cached_property
    def grid(self) -> NDArray[np.int_]:
        """The number of each step's and worker's iteration, −1: none, shape [steps, workers]."""
        result = np.full((len(self.steps), len(self.workers)), -1)
        row, column = (
            np.searchsorted(places, [getattr(one, name) for one in self.iterations])
            for places, name in ((self.steps, "step"), (self.workers, "dp_rank"))
        )
        result[row, column] = np.arange(len(self.iterations))
        return result

    @cached_property
    def spans_ms(self) -> Array:
        """How long each iteration took, NaN where there is none, shape [steps, workers]."""
        times = np.array([*(one.iteration_ms for one in self.iterations), np.nan])
        result: Array = times[self.grid]
        return result


def read_production(path: StrPath, *, step: int | None = None) -> ProductionTrace:
    """Read the complete iterations of a production trace.

    Parameters
    ----------
    path : path
        The parquet file.
    step : int, optional
        Read only this step.

    Raises
    ------
    FormatError
        The file is damaged or foreign, lacks a whole stage, or has no complete iteration;
        then the error says what the first one lacks.
    """
    import pandas as pd

    file = os.fspath(path)
    rows = read_rows(path)
    total = len(rows)
    left_out: list[Dropped] = []
    unread: tuple[int, ...] = ()
    if step is not None:
        wanted = rows["step"] == step
        if not wanted.any():
            raise FormatError(f"has no complete iteration of step {step}: no such step", file=file)
        counts = rows.loc[~wanted, "step"].value_counts().sort_index()
        places = [f"step {other}: {counted(n, 'row')}" for other, n in counts.items()]
        left_out.append(Dropped("of other steps", places, int(counts.sum())))
        unread = tuple(int(other) for other in counts.index)
        rows = rows[wanted].copy()
    names = list(rows["optype"].cat.categories)
    codes = rows["optype"].cat.codes.to_numpy()
    computes = np.array([name in COMPUTE for name in names])[codes]
    if not computes.any():
        raise FormatError("has no forward-compute and no backward-compute", file=file)
    if not (rows["end_ms"] > rows["start_ms"])[computes].any():
        raise FormatError("says that no operator takes any time", file=file)
    inside = computes | np.array([communication(name) for name in names])[codes]
    outside = rows[~inside]
    left_out += _outside(outside)
    rows["computes"] = computes
    rows = _only(rows, inside)
    placement = _placement(rows, file)
    ranks_ms, slowest = _slowest_lanes(rows)
    left_out += _peers(rows[~slowest])
    rows = _only(rows, slowest)
    ranks = ["step", "dp_rank", "stage", "rank"]
    outside = outside.merge(ranks_ms.loc[ranks_ms["read"], ranks], on=ranks)
    clocks = set_right(rows, outside)

    step_of, steps = pd.factorize(rows["step"], sort=True)
    worker_of, workers = pd.factorize(rows["dp_rank"], sort=True)
    if len(steps) * len(workers) > len(rows):
        raise FormatError(
            f"has {counted(len(steps), 'step')} of {len(workers)} data-parallel ranks, and too "
            f"few operations ({len(rows)}) for any complete one",
            file=file,
        )
    rows["iteration"] = (step_of * len(workers) + worker_of).astype(np.int32)
    rows = rows.drop(columns=["step", "dp_rank", "rank"])
    compute, comm = rows[rows["computes"]], rows[~rows["computes"]].copy()
    del rows, step_of, worker_of
    microbatches, of_each = usual_microbatches(
        compute["iteration"].to_numpy(), compute["mb_id"].to_numpy(), len(steps) * len(workers)
    )
    if len(placement) * microbatches > len(compute):
        raise FormatError(
            f"has {len(placement)} stages and {microbatches} micro-batches, and too few "
            f"operators ({len(compute)}) for any complete iteration",
            file=file,
        )
    whole = assemble(
        _only(compute, of_each[compute["iteration"]] == microbatches),
        placement,
        microbatches,
        of_each,
    )

    def named(number: int) -> str:
        return f"step {steps[number // len(workers)]}, dp rank {workers[number % len(workers)]}"

    skipped = [f"{named(i)}: {reason}" for i, reason in sorted(whole.reasons.items())]
    if not len(whole.numbers):
        raise FormatError(f"has no complete iteration ({skipped[0]})", file=file)
    place = np.full(len(of_each), -1)
    place[whole.numbers] = np.arange(len(whole.numbers))
    comm["number"] = place[comm["iteration"]]
    ends = messages(_only(comm, comm["number"].to_numpy() >= 0), whole, placement)
    iterations = tuple(
        ProductionIteration(
            int(steps[number // len(workers)]), int(workers[number % len(workers)]),
            whole.schedules[i], whole.start_ms[i], whole.end_ms[i], ends[i],
        )
        for i, number in enumerate(whole.numbers.tolist())
    )  # fmt: skip
    return ProductionTrace(
        file,
        iterations,
        tuple(skipped),
        tuple(left_out),
        (*clocks, *_notes(iterations, skipped, len(comm))),
        tuple(steps.tolist()),
        tuple(workers.tolist()),
        unread,
        total,
        len(comm),
        ranks_ms,
        outside,
    )


def _only(rows: pd.DataFrame, wanted: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the wanted rows: a copy only where some are not, as there may be very many."""
    return rows if wanted.all() else rows[wanted].copy()


def _placement(rows: pd.DataFrame, file: str) -> tuple[int, ...]:
    """Return the device of each stage of the model."""
    compute = rows[rows["computes"]]
    for column in ("gmc", "stage", "mb_id"):
        if (compute[column] < 0).any():
            row = int(compute.index[compute[column] < 0][0])
            raise FormatError(f"row {row}: a compute operation without {column}", file=file)
    pairs = compute[["gmc", "stage"]].drop_duplicates().sort_values("gmc")
    stages, devices = pairs["gmc"].tolist(), pairs["stage"].tolist()
    if len(set(stages)) < len(stages):
        twice = pairs["gmc"][pairs["gmc"].duplicated()].iloc[0]
        on = sorted(pairs["stage"][pairs["gmc"] == twice])
        raise FormatError(
            f"row {int(pairs.index[pairs['gmc'].duplicated()][0])}: has one stage (gmc) on several "
            f"devices (stage): {twice} on {on[0]} and {on[1]}",
            file=file,
        )
    missing = next((s for s in range(len(stages)) if s != stages[s]), None)
    if missing is not None:
        raise FormatError(f"holds no operator of stage {missing}", file=file)
    used = sorted(set(devices))
    if used != list(range(len(used))):
        missing = next(d for d in range(len(used)) if d not in used)
        raise FormatError(f"holds no operator of device (stage) {missing}", file=file)
    sending = rows.loc[rows["optype"] == "forward-send", "stage"]
    if devices == stages and (sending > stages[-1]).any():
        raise FormatError(
            f"stage {sending.max()} sends forwards on, but holds no operator", file=file
        )
    if devices == stages and _sends_on(rows, stages[-1]):
        raise FormatError(
            f"stage {stages[-1]} sends forwards on, but there is no stage after it", file=file
        )
    return tuple(devices)


def _sends_on(rows: pd.DataFrame, last: int) -> bool:
    """Whether the last stage sends its forwards on, while the first one receives none.

    Traces that log an operation for every operator have both, and they mean nothing.
    """
    sends = (rows["optype"] == "forward-send") & (rows["stage"] == last)
    receives = (rows["optype"] == "forward-recv") & (rows["stage"] == 0)
    return bool(sends.any() and not receives.any())


def _slowest_lanes(rows: pd.DataFrame) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """Return how long each rank computes in each step, and which rows are of the slowest lane.

    The n-th ranks of all devices are a lane: they send to each other. Where devices have unlike
    numbers of ranks, the last one of a device stands in for those that it lacks.
    """
    worker = ["step", "dp_rank"]
    places = [*worker, "stage", "rank"]
    group = rows.groupby(places).ngroup().to_numpy(np.int32)
    _, first = np.unique(group, return_index=True)
    busy_ms = np.zeros(len(first))
    computes = rows["computes"].to_numpy()
    np.add.at(busy_ms, group[computes], (rows["end_ms"] - rows["start_ms"]).to_numpy()[computes])
    ranks = rows.iloc[first][[*worker, "stage", "rank"]].reset_index(drop=True)
    ranks = ranks.assign(busy_ms=busy_ms, lane=ranks.groupby([*worker, "stage"]).cumcount())
    of_lane = ranks.groupby([*worker, "lane"])["busy_ms"].sum().reset_index()
    of_lane = of_lane.sort_values("busy_ms", ascending=False, kind="stable")
    slowest = of_lane.drop_duplicates(worker)[[*worker, "lane"]]
    wanted = ranks[worker].merge(slowest, on=worker, how="left")["lane"].to_numpy()
    last = ranks.groupby([*worker, "stage"])["lane"].transform("max").to_numpy()
    ranks["read"] = ranks["lane"].to_numpy() == np.minimum(wanted, last)
    return ranks, ranks["read"].to_numpy()[group]


def _outside(rows: pd.DataFrame) -> Iterator[Dropped]:
    """Operations that are no part of the pipeline, by name."""
    if len(rows):
        places = [
            f"{name}: {counted(len(part), 'row')}, from row {part.index[0]} on"
            for name, part in rows.groupby("optype", observed=True)
        ]
        yield Dropped("outside the pipeline", sorted(places), len(rows))


def _peers(rows: pd.DataFrame) -> Iterator[Dropped]:
    """Operations of ranks for which nobody waits."""
    if len(rows):
        places = [
            f"rank {rank}: {counted(len(part), 'row')}, from row {part.index[0]} on"
            for rank, part in rows.groupby("rank")
        ]
        why = "of ranks that share a stage with a slower one"
        yield Dropped(why, places, len(rows))


_LONG_MS = 10_000.0
"""What an operator hardly takes: the times may be in another unit."""


def _notes(
    iterations: tuple[ProductionIteration, ...], skipped: list[str], sends: int
) -> Iterator[str]:
    if skipped:
        more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        yield (
            f"skipped {counted(len(skipped), 'partial or contradictory iteration')}: "
            f"{skipped[0]}{more}"
        )
    usual_ms = float(np.median([one.times_ms for one in iterations]))
    if usual_ms > _LONG_MS:
        yield (
            f"operators take {milliseconds(usual_ms)} each (median): times are read as seconds; "
            "are the file's in another unit?"
        )
    silent = sum(not one.has_messages for one in iterations)
    if silent and iterations[0].schedule.devices > 1:
        why = "sends and receives do not match" if sends else "the trace has no sends and receives"
        yield f"{counted(silent, 'iteration')} without messages: {why}"
