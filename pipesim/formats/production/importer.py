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
from pipesim.formats.production.workers import (
    mean_known,
    slow_links,
    slow_places,
    slow_ranks,
    slow_stages,
    usual_times,
)
from pipesim.formats.tally import Dropped, Tally
from pipesim.scenario import Array, Scenario
from pipesim.text import fixed

__all__ = ["import_production"]

_WORTH = 0.05
"""A link's delay matters if it is at least this part of a forward."""

_MOST_NOTES = 6
"""Places that are named one by one; `pipesim explain` has them all."""


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
    delays, slow = _delays(trace, chosen, float(np.median(times.median_ms["F"])))
    scenario = Scenario(
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        placement=schedule.placement,
        **times.fields(),
        occupancy_ms=delays,
        message_bytes=message_bytes,
        name=name or Path(trace.file).stem,
        source=source,
    )
    return Measurement(
        scenario,
        _Measured(trace, frozenset(chosen.iterations)),
        (*trace.notes, *chosen.notes, *_apart(trace, chosen), *slow, *times.notes),
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


def _delays(
    trace: ProductionTrace, chosen: Choice, forward_ms: float
) -> tuple[Array, tuple[str, ...]]:
    """Return the delays of links that are slower than others, shape [S − 1, 2], and name them."""
    grid = trace.grid[list(chosen.usual)]
    workers = np.flatnonzero((grid >= 0).any(axis=0))
    messages = np.stack(
        [
            np.median(
                mean_known(
                    np.stack([trace.iterations[i].transfers_ms for i in grid[:, w] if i >= 0])
                ),
                axis=0,
            )
            for w in workers
        ]
    )
    across, along = slow_links(messages)
    own = workers.tolist().index(trace.workers.index(chosen.worker))
    healthy = np.median(messages / across, axis=0) / along
    delays = np.where((across[own] > 1) | (along > 1), messages[own] - healthy, 0).T
    delays[delays < _WORTH * forward_ms] = 0
    notes = [
        f"link {link}: messages take {messages[own, :, link].max():,.1f} ms, and "
        f"{healthy[:, link].max():,.1f} where links are healthy: the scenario has the difference "
        "as its delay"
        for link in np.flatnonzero(delays.any(axis=1)).tolist()
    ]
    return delays, tuple(notes)


def _apart(trace: ProductionTrace, chosen: Choice) -> Iterator[str]:
    """Say which stages and ranks are slower than their peers."""
    grid = trace.grid[list(chosen.usual)]
    workers = np.flatnonzero((grid >= 0).any(axis=0))
    usual = [
        usual_times(np.stack([trace.iterations[i].times_ms for i in grid[:, w] if i >= 0]))
        for w in workers
    ]
    busy = np.stack([stages for stages, _ in usual])
    notes = []
    for place in slow_places(busy, [error for _, error in usual]):
        where = f"dp rank {trace.workers[workers[place.worker]]}"
        if len(place.stages) == 1:
            where += f", stage {place.stages[0]}"
        notes.append(f"{where}: {fixed(place.factor, 2)}× as long as in the other workers")
    for stage, factor in slow_stages(busy):
        notes.append(f"stage {stage}: {fixed(factor, 2)}× as long as the others, in every worker")
    notes += [
        f"rank {one.rank}: {fixed(one.factor, 2)}× as long as those with which it shares "
        f"device {one.device} of dp rank {one.dp_rank}"
        for one in slow_ranks(trace)
    ]
    yield from notes[:_MOST_NOTES]
    if len(notes) > _MOST_NOTES:
        yield f"{len(notes) - _MOST_NOTES} more stages and ranks are slower than their peers"


def _tallies(trace: ProductionTrace, chosen: Choice) -> Iterator[Tally]:
    """Count steps, workers, their iterations and the rows of the file."""
    taken = [trace.iterations[i] for i in chosen.iterations]
    yield Tally("step", len(taken), chosen.unlike)
    others = [
        f"dp rank {worker} ({f'{ms:,.0f} ms' if ms else 'no complete step'})"
        for worker, ms in zip(trace.workers, typical_ms(trace.spans_ms).tolist(), strict=True)
        if worker != chosen.worker
    ]
    yield Tally("worker", 1, [Dropped("which the scenario is not of", others)])
    yield Tally(
        "iteration",
        len(trace.iterations),
        [Dropped("incomplete", trace.skipped)],
        "one step of one worker each",
    )
    used = taken[0].times_ms.size * len(taken)
    rest = trace.operations - used - trace.sends - sum(part.count for part in trace.left_out)
    yield Tally(
        "row",
        used,
        [
            Dropped("sends and receives", ["between the stages"], trace.sends),
            Dropped("operators of other workers and steps", ["see those"], rest),
            *trace.left_out,
        ],
        "operators of the scenario",
    )
