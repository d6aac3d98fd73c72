"""From Megatron-LM logs to a scenario.

What a log tells depends on its timers:

- ``forward-compute`` and ``backward-compute`` of all ranks: F and BW of each stage, the
  median over its ranks, divided by the number of micro-batches. Megatron-LM numbers its
  ranks stage by stage: rank r of R is on stage r · S // R.
- the same as extremes: the longest is taken for every stage, as the slowest stage makes the
  pace.
- neither: F and BW are guessed from the iteration time, (N + S − 1)·(F + BW) of 1F1B with
  BW = 2 F.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath
from pipesim.formats.measurement import Measurement, OperatorTimes
from pipesim.formats.megatron_log import LoggedIteration, MegatronLog, read_megatron_log
from pipesim.scenario import Array, Kind, Scenario
from pipesim.wording import counted, plain

__all__ = ["import_megatron"]

_TIMERS: dict[Kind, str] = {"F": "forward-compute", "BW": "backward-compute"}
_START_UP = 1.5
"""The first iteration of a log, over this many times the median of the others, is start-up."""


def import_megatron(
    paths: Sequence[StrPath],
    *,
    stages: int,
    microbatches: int,
    iterations: Collection[int | str] | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read logs of one training run, or of several of the same shape.

    Parameters
    ----------
    paths : sequence of path
        Files as :mod:`pipesim.formats.megatron_log` describes.
    stages, microbatches : int
        Pipeline stages S and micro-batches N of an iteration, which no log tells.
    iterations : collection of int or str, optional
        The iterations to take. Default: all; without the first of a file if that is
        start-up, over 1.5 times the median of the others.
    message_bytes : float
        Size of a message, which no log tells.
    name, source : str
        Of the scenario. Default name: the first file's.

    Raises
    ------
    FormatError
        A file is damaged or foreign, its ranks cannot be shared out among the stages, or
        no file has a chosen iteration.
    ScenarioError
        There is no file, or the shape is none.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    scenario = Scenario(
        stages=stages, microbatches=microbatches, message_bytes=message_bytes, source=source
    )
    notes: list[str] = []
    logs = [read_megatron_log(path) for path in paths]
    found = {str(one.number) for log in logs for one in log.iterations}
    for label in map(str, iterations or ()):
        if label not in found:
            raise FormatError(f"there is no iteration {label}", file=logs[0].file)
    chosen = [(log, one) for log in logs for one in _choose(log, iterations, notes)]
    times = _operator_times(chosen, scenario, notes)
    elapsed_ms = tuple(one.elapsed_ms for _, one in chosen)
    low, middle, high = np.quantile(elapsed_ms, (0.25, 0.5, 0.75)).tolist()
    notes.insert(
        0,
        f"{counted(len(chosen), 'iteration')}: median {plain(middle)} ms, quartiles "
        f"{plain(low)} and {plain(high)} ms, with what follows the pipeline",
    )
    return Measurement(
        scenario.replaced(**times.fields(), name=name or Path(logs[0].file).stem),
        (),
        (*notes, *times.notes),
        elapsed_ms,
        times.spread_ms,
    )


def _choose(
    log: MegatronLog, wanted: Collection[int | str] | None, notes: list[str]
) -> Iterator[LoggedIteration]:
    if log.skipped:
        more = f", and {len(log.skipped) - 1} more" if len(log.skipped) > 1 else ""
        notes.append(f"{log.file}: skipped {log.skipped[0]}{more}")
    if wanted is not None:
        labels = {str(label) for label in wanted}
        yield from (one for one in log.iterations if str(one.number) in labels)
        return
    first, *others = log.iterations
    if others:
        usual_ms = float(np.median([one.elapsed_ms for one in others]))
        if first.elapsed_ms > _START_UP * usual_ms:
            notes.append(
                f"{log.file}: left out iteration {first.number} ({plain(first.elapsed_ms)} ms): "
                "start-up"
            )
            yield from others
            return
    yield from log.iterations


# -- operator times ----------------------------------------------------------------------


def _operator_times(
    chosen: Sequence[tuple[MegatronLog, LoggedIteration]], scenario: Scenario, notes: list[str]
) -> OperatorTimes:
    """Return F and BW of each stage, as far as the timers tell them."""
    for key, summary in (("ranks_ms", _by_stage), ("extremes_ms", _slowest)):
        timed = [(log, one) for log, one in chosen if _has_timers(getattr(one, key))]
        if timed:
            return summary(timed, len(chosen), scenario, notes)
    elapsed_ms = float(np.median([one.elapsed_ms for _, one in chosen]))
    stages, n = scenario.stages, scenario.microbatches
    pair_ms = elapsed_ms / (n + stages - 1)
    notes.append(
        "no timers of forward-compute and backward-compute: F and BW are guessed from the "
        f"iteration time by 1F1B, (N + S − 1)·(F + BW) with BW = 2 F, so F = "
        f"{plain(pair_ms / 3)} ms on every stage"
    )
    ones = np.ones((1, stages, n))
    return OperatorTimes.of({"F": ones * pair_ms / 3, "BW": ones * pair_ms * 2 / 3})


def _has_timers(timers: Collection[str]) -> bool:
    return all(name in timers for name in _TIMERS.values())


def _by_stage(
    timed: Sequence[tuple[MegatronLog, LoggedIteration]],
    chosen: int,
    scenario: Scenario,
    notes: list[str],
) -> OperatorTimes:
    stages = scenario.stages
    names = list(_TIMERS.values())
    ranks = 1 + max(rank for _, one in timed for name in names for rank in one.ranks_ms[name])
    if ranks % stages or ranks > 1_000_000:
        log, one = timed[0]
        raise FormatError(
            f"iteration {one.number} has timers of {ranks} ranks, which {stages} stages cannot "
            "share",
            file=log.file,
            line=one.line,
        )
    whole = [one for _, one in timed if all(len(one.ranks_ms[name]) == ranks for name in names)]
    if not whole:
        log, one = timed[0]
        missing = next(
            f"{name} of rank {rank}"
            for name in names
            for rank in range(ranks)
            if rank not in one.ranks_ms[name]
        )
        raise FormatError(
            f"iteration {one.number} lacks the {missing}, and no other is whole",
            file=log.file,
            line=one.line,
        )
    samples = {
        kind: np.array(
            [
                np.median(
                    np.reshape([one.ranks_ms[name][rank] for rank in range(ranks)], (stages, -1)),
                    axis=1,
                )
                for one in whole
            ]
        )
        for kind, name in _TIMERS.items()
    }
    each = f" of {ranks // stages}" if ranks > stages else ""
    notes.append(
        f"F and BW of each stage: median over its ranks{each} and over "
        f"{counted(len(whole), 'iteration')} with timers, divided by {scenario.microbatches} "
        "micro-batches"
    )
    if chosen > len(whole):
        notes.append(
            f"{counted(chosen - len(whole), 'iteration')} without the timers of all {ranks} "
            "ranks: only their iteration time is used"
        )
    return _shared(samples, scenario)


def _slowest(
    timed: Sequence[tuple[MegatronLog, LoggedIteration]],
    chosen: int,
    scenario: Scenario,
    notes: list[str],
) -> OperatorTimes:
    samples = {
        kind: np.array([[one.extremes_ms[name][1]] * scenario.stages for _, one in timed])
        for kind, name in _TIMERS.items()
    }
    notes.append(
        f"timers are extremes over the ranks: F and BW of every stage are guessed to be the "
        f"longest, over {len(timed)} of {counted(chosen, 'iteration')}; --timing-log-option all "
        "tells them apart"
    )
    return _shared(samples, scenario)


def _shared(samples: dict[Kind, Array], scenario: Scenario) -> OperatorTimes:
    """Share sums over micro-batches, shape [iterations, S], among these equally."""
    n = scenario.microbatches
    return OperatorTimes.of(
        {kind: np.repeat(sums[:, :, np.newaxis] / n, n, axis=2) for kind, sums in samples.items()}
    )
