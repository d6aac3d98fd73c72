"""From Megatron-LM logs to a scenario.

What a log tells:

- the shape: pipeline stages and micro-batches, from what it prints before the iterations.
- ``forward-compute`` and ``backward-compute`` of all ranks: F and BW of each stage, the
  median over its ranks, divided by the number of micro-batches. Megatron-LM numbers its
  ranks stage by stage: rank r of R is on stage r · S // R. Where the log tells R, the timers
  of an iteration count only if they are of all R ranks.
- the same as extremes: the longest is taken for every stage, as the slowest stage sets the
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
from pipesim.formats.megatron.log import LoggedIteration, MegatronLog, read_megatron_log
from pipesim.scenario import Array, Kind, Scenario
from pipesim.text import counted, plain

__all__ = ["import_megatron"]

_TIMERS: dict[Kind, str] = {"F": "forward-compute", "BW": "backward-compute"}
_MOST_OPERATORS = 1_000_000
_START_UP = 1.5
"""The first iteration of a log, over this many times the median of the others, is start-up."""


def import_megatron(
    paths: Sequence[StrPath],
    *,
    stages: int | None = None,
    microbatches: int | None = None,
    iterations: Collection[int | str] | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read logs of one training run, or of several of the same shape.

    Parameters
    ----------
    paths : sequence of path
        Files as :mod:`pipesim.formats.megatron.log` describes.
    stages, microbatches : int, optional
        Pipeline stages S and micro-batches N of an iteration. Default: as the logs tell.
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
        A file is damaged or foreign, tells another shape than the given one, or none where
        none is given; its ranks cannot be shared out among the stages; no iteration has the
        timers of all ranks; or no file has a chosen iteration.
    ScenarioError
        There is no file, or the given shape is none.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    notes: list[str] = []
    logs = [read_megatron_log(path) for path in paths]
    told = {
        "stages": _needed(logs, "stages", stages, notes),
        "micro-batches": _needed(logs, "micro-batches", microbatches, notes),
    }
    _told(logs, "ranks")
    operators = told["stages"] * told["micro-batches"]
    if operators > _MOST_OPERATORS:
        raise FormatError(
            f"stages × micro-batches is {operators:,}: more than {_MOST_OPERATORS:,} operators "
            "of a kind",
            file=logs[0].file,
        )
    scenario = Scenario(
        stages=told["stages"],
        microbatches=told["micro-batches"],
        message_bytes=message_bytes,
        source=source,
    )
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
        f"{plain(low)} and {plain(high)} ms, including what follows the pipeline",
    )
    return Measurement(
        scenario.replaced(**times.fields(), name=name or Path(logs[0].file).stem),
        (),
        (*notes, *times.notes),
        elapsed_ms,
        times.spread_ms,
    )


def _needed(logs: Sequence[MegatronLog], what: str, given: int | None, notes: list[str]) -> int:
    """Return the number of stages or micro-batches, as given or as the logs tell it."""
    option = f"--{what.replace('-', '')}"
    if given is None:
        told = _told(logs, what)
        if told is None:
            raise FormatError(
                f"does not say the number of {what}: give {option}", file=logs[0].file
            )
        log, value = told
        notes.append(f"{log.file}: the number of {what} is {value}, by line {log.shape[what].line}")
        return value
    _told(logs, what, given, f"{option} is {given}")
    return given


def _told(
    logs: Sequence[MegatronLog], what: str, value: int | None = None, origin: str = ""
) -> tuple[MegatronLog, int] | None:
    """Return the first log that tells a number; none may tell another, or another than given."""
    telling = [log for log in logs if what in log.shape]
    for log in telling:
        own, line = log.shape[what]
        if value is None:
            value, origin = own, f"{log.file} says {own}"
        elif own != value:
            raise FormatError(
                f"says that the number of {what} is {own}, but {origin}", file=log.file, line=line
            )
    return (telling[0], telling[0].shape[what].value) if telling else None


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
    seen = 1 + max(rank for _, one in timed for name in names for rank in one.ranks_ms[name])
    told = [log.shape["ranks"].value for log, _ in timed if "ranks" in log.shape]
    ranks = told[0] if told else seen
    if seen > ranks:
        log, one = next(
            (log, one)
            for log, one in timed
            if any(seen - 1 in one.ranks_ms[name] for name in names)
        )
        raise FormatError(
            f"iteration {one.number} has timers of rank {seen - 1}, but there are "
            f"{counted(ranks, 'rank')}",
            file=log.file,
            line=one.line,
        )
    if ranks % stages or ranks > 1_000_000:
        log, one = timed[0]
        raise FormatError(
            f"iteration {one.number} has timers of {counted(ranks, 'rank')}, which "
            f"{counted(stages, 'stage')} cannot share",
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
            f"iteration {one.number} lacks the {missing}, and no other iteration is complete",
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
        f"{counted(len(whole), 'iteration')} with timers, divided by "
        f"{counted(scenario.microbatches, 'micro-batch')}"
    )
    if chosen > len(whole):
        notes.append(
            f"{counted(chosen - len(whole), 'iteration')} without the timers of all "
            f"{counted(ranks, 'rank')}: only the iteration time is used"
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
