"""Production traces: every operation of every rank over some training steps, as parquet.

The format of the sample traces of "Understanding Stragglers in Large Model Training Using
What-if Analysis" (ByteDance-Seed/StragglerAnalysis), see
:mod:`pipesim.formats.production.table`.

One scenario is one pipeline, so it is that of one worker, the one that the others wait for: see
:mod:`.choice`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from pipesim.errors import FormatError
from pipesim.files import StrPath
from pipesim.formats.measurement import MeasuredIteration, Measurement, OperatorTimes
from pipesim.formats.production.choice import Choice, choose, typical_ms
from pipesim.formats.production.trace import ProductionTrace, read_production
from pipesim.formats.production.workers import slow_places, slow_ranks, slow_stages
from pipesim.formats.tally import Dropped, Tally
from pipesim.scenario import Scenario
from pipesim.text import fixed

__all__ = ["import_production"]


def import_production(
    path: StrPath,
    *,
    step: int | None = None,
    dp_rank: int | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read a production trace as a measurement of the worker that makes the job's step.

    Parameters
    ----------
    path : path
        The parquet file.
    step : int, optional
        Take only this step. Default: the usual ones.
    dp_rank : int, optional
        Take this data-parallel rank. Default: the slowest one.
    message_bytes : float
        Size of a message, which no trace tells.
    name, source : str
        Of the scenario. Default name: the file's.

    Raises
    ------
    FormatError
        See :func:`.trace.read_production`; or the chosen step or rank has no complete iteration.
    """
    trace = read_production(path, step=step)
    if dp_rank is not None and dp_rank not in {one.dp_rank for one in trace.iterations}:
        wanted = {"step": step, "dp rank": dp_rank}
        what = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
        reason = next((why for why in trace.skipped if f"dp rank {dp_rank}:" in why), "")
        raise FormatError(
            f"has no complete iteration of {what}" + (f" ({reason})" if reason else ""),
            file=trace.file,
        )
    chosen = choose(trace, dp_rank)
    used = [trace.iterations[i] for i in chosen.iterations]
    times_ms = np.stack([one.times_ms for one in used])
    times = OperatorTimes.of({"F": times_ms[:, 0], "BW": times_ms[:, 1]})
    ((schedule, _),) = Counter(one.schedule for one in used).most_common(1)
    scenario = Scenario(
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        placement=schedule.placement,
        **times.fields(),
        message_bytes=message_bytes,
        name=name or Path(trace.file).stem,
        source=source,
    )
    return Measurement(
        scenario,
        _Measured(trace, frozenset(chosen.iterations)),
        (*trace.notes, *chosen.notes, *_apart(trace, chosen), *times.notes),
        chosen.job_ms,
        times.spread_ms,
        (*_tallies(trace, chosen),),
        schedule,
    )


@dataclass(frozen=True)
class _Measured(Sequence[MeasuredIteration]):
    """All complete iterations, with timelines made when they are asked for: there may be many."""

    trace: ProductionTrace
    used: frozenset[int]

    def __len__(self) -> int:
        return len(self.trace.iterations)

    @overload
    def __getitem__(self, index: int) -> MeasuredIteration: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[MeasuredIteration, ...]: ...
    def __getitem__(self, index: int | slice) -> MeasuredIteration | tuple[MeasuredIteration, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        one = self.trace.iterations[index]
        label = f"step {one.step}, dp rank {one.dp_rank}"
        return MeasuredIteration(
            self.trace.file, label, index % len(self) in self.used, one.timeline
        )


def _apart(trace: ProductionTrace, chosen: Choice) -> Iterator[str]:
    """Say which stages and ranks are slower than their peers."""
    grid = trace.grid[list(chosen.usual)]
    workers = np.flatnonzero((grid >= 0).any(axis=0))
    busy = np.stack(
        [
            np.median(
                [trace.iterations[i].times_ms.sum(axis=(0, 2)) for i in grid[:, w] if i >= 0],
                axis=0,
            )
            for w in workers
        ]
    )
    for place in slow_places(busy):
        where = f"dp rank {trace.workers[workers[place.worker]]}"
        if len(place.stages) == 1:
            where += f", stage {place.stages[0]}"
        yield (
            f"{where}: forward and backward take {fixed(place.factor, 2)}× as long as in the "
            "other workers"
        )
    for stage, factor in slow_stages(busy):
        yield f"stage {stage} takes {fixed(factor, 2)}× as long as the others, in every worker"
    for one in slow_ranks(trace):
        yield (
            f"rank {one.rank} takes {fixed(one.factor, 2)}× as long as those with which it shares "
            f"device {one.device} of dp rank {one.dp_rank}"
        )


def _tallies(trace: ProductionTrace, chosen: Choice) -> Iterator[Tally]:
    """Count operations, steps and workers."""
    taken = [trace.iterations[i] for i in chosen.iterations]
    size = taken[0].times_ms.size
    yield Tally("step", len({one.step for one in taken}), chosen.unlike)
    others = [
        f"dp rank {worker} ({f'{ms:,.0f} ms' if ms else 'no complete step'})"
        for worker, ms in zip(trace.workers, typical_ms(trace.spans_ms).tolist(), strict=True)
        if worker != chosen.worker
    ]
    yield Tally("worker", 1, [Dropped("not the one that the scenario is of", others)])
    complete = len(trace.iterations)
    yield Tally(
        "iteration",
        complete,
        [Dropped("incomplete or contradictory", trace.skipped)],
        "complete",
    )
    used = size * len(taken)
    outside = sum(part.count for part in trace.left_out)
    yield Tally(
        "operation",
        used,
        [
            *trace.left_out,
            Dropped(
                "messages, and operators of other workers and steps",
                ["see above"],
                trace.operations - used - outside,
            ),
        ],
        "operators of the scenario",
    )
