"""F and BW of each stage, from the timers of a log or from its iteration times.

Timers are sums over the micro-batches, and over the chunks of a device. In the order in which
they are preferred:

- of all ranks: the times of each stage. Data-parallel copies of a stage whose times stand apart
  are kept apart, as a step takes as long as the slowest copy of the pipeline.
- extremes over the ranks: the longest, for every stage, as the slowest sets the pace.
- of the last rank, or DeepSpeed's of the first: that stage's, and the same for all.
- ``forward-backward`` alone, the time of the pipeline: F and BW are guessed from it, 1F1B or its
  interleaved form, with BW = 2 F.
- none: the same from the iteration time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from pipesim.errors import FormatError
from pipesim.formats.megatron.dialects import AFTER
from pipesim.formats.megatron.guess import pair_ms
from pipesim.formats.megatron.layout import Layout
from pipesim.formats.megatron.ranks import of_all_ranks
from pipesim.formats.megatron.record import UNREAD, LoggedIteration
from pipesim.formats.megatron.sums import Chosen, Operators, alike, both, divided, spread
from pipesim.scenario import Array, Kind
from pipesim.text import counted, milliseconds, percent, plain

__all__ = ["operators_of"]

_PIPELINE = "forward-backward"

T = TypeVar("T")


def operators_of(
    chosen: Chosen, layout: Layout, microbatches: int, dp_rank: int | None = None
) -> Operators:
    """Find the operator times that some iterations tell.

    Parameters
    ----------
    chosen : sequence of (MegatronLog, LoggedIteration)
        The iterations, at least one.
    layout : Layout
        Where the ranks and layers are.
    microbatches : int
        N.
    dp_rank : int, optional
        The data-parallel rank whose times are wanted. Default: all, or the slowest if they
        stand apart.

    Raises
    ------
    FormatError
        Ranks cannot be shared out among the stages, no iteration has the timers of all ranks,
        or there is no such data-parallel rank.
    """
    ranks = [(log, one) for log, one in chosen if both("Megatron-LM", one.ranks_ms)]
    if dp_rank is not None and not ranks:
        raise FormatError(
            f"has no timers of all ranks, so none of data-parallel rank {dp_rank} alone "
            "(--timing-log-option all prints them)",
            file=chosen[0][0].file,
        )
    found = (
        of_all_ranks(ranks, len(chosen), layout, microbatches, dp_rank)
        if ranks
        else _of_extremes(chosen, layout, microbatches)
        or _of_last_rank(chosen, layout, microbatches)
        or _of_first_rank(chosen, layout, microbatches)
    )
    if found:
        return _followed(found, chosen, AFTER)
    found = _guessed(chosen, layout, microbatches)
    # forward-backward holds the reduction of gradients, but in early versions
    return found if found.guessed else _followed(found, chosen, AFTER[1:])


# -- timers of some ranks ------------------------------------------------------------------


def _of_extremes(chosen: Chosen, layout: Layout, microbatches: int) -> Operators | None:
    timed = [one.extremes_ms for _, one in chosen if both("Megatron-LM", one.extremes_ms)]
    if not timed:
        return None
    longest = _samples(timed, "Megatron-LM", lambda one: one[1])
    times = spread(
        {kind: np.repeat(ms[:, None], layout.devices, 1) for kind, ms in longest.items()},
        layout,
        microbatches,
    )
    shortest = _samples(timed, "Megatron-LM", lambda one: one[0])
    low_ms, high_ms = (float(np.median(ms["F"] + ms["BW"])) for ms in (shortest, longest))
    others = (  # of "max time across ranks" alone, the shortest is not known
        f"F and BW of the shortest take {milliseconds(low_ms / microbatches)} of "
        f"{milliseconds(high_ms / microbatches)}, "
        if low_ms < high_ms
        else ""
    )
    note = (
        "timers are extremes over the ranks: F and BW of every stage are guessed to be the "
        f"longest, over {len(timed)} of {counted(len(chosen), 'iteration')}, divided by "
        f"{divided(layout, microbatches)}; {others}--timing-log-option all tells them apart"
    )
    return Operators(times, (note, *times.notes))


def _of_last_rank(chosen: Chosen, layout: Layout, microbatches: int) -> Operators | None:
    timed = [
        one.last_ms
        for _, one in chosen
        if (names := both("Megatron-LM", one.last_ms)) and all(one.last_ms[n] for n in names)
    ]
    if not timed:
        return None
    sums_ms = _samples(timed, "Megatron-LM", lambda ms: ms)
    how = f"the last rank's alone, over {len(timed)} of {counted(len(chosen), 'iteration')}"
    return _of_one_stage(sums_ms, layout.devices - 1, how, layout, microbatches)


def _of_first_rank(chosen: Chosen, layout: Layout, microbatches: int) -> Operators | None:
    timed = [
        (log, one.first_ms)
        for log, one in chosen
        if (names := both("DeepSpeed", one.first_ms)) and all(one.first_ms[n] for n in names)
    ]
    periods = {log.period for log, _ in timed}
    if not timed or len(periods) > 1 or None in periods:
        return None
    period = periods.pop() or 1
    sums_ms = {
        kind: ms / period
        for kind, ms in _samples([ms for _, ms in timed], "DeepSpeed", lambda ms: ms).items()
    }
    how = f"DeepSpeed's of rank 0 alone, summed over {counted(period, 'iteration')}"
    return _of_one_stage(sums_ms, 0, how, layout, microbatches)


def _of_one_stage(
    sums_ms: Mapping[Kind, Array], stage: int, how: str, layout: Layout, microbatches: int
) -> Operators:
    """Guess all stages by one of them: like it, or in proportion to their layers."""
    devices = layout.devices
    share = np.ones(devices)
    like = "like it"
    if layout.layers:
        layers = np.reshape(layout.layers, (-1, devices)).sum(axis=0)
        if layers[stage] > 0:
            share, like = layers / layers[stage], "in proportion to their layers"
    times = spread(
        {kind: ms[:, None] * share for kind, ms in sums_ms.items()}, layout, microbatches
    )
    others = f"; the other stages are guessed to be {like}" if devices > 1 else ""
    f_ms, bw_ms = (float(np.median(sums_ms[kind])) / microbatches for kind in ("F", "BW"))
    note = (
        f"timers are {how}: on stage {stage} F {plain(f_ms)} ms and BW {plain(bw_ms)} ms, divided "
        f"by {counted(microbatches, 'micro-batch')}{others}"
    )
    return Operators(times, (note, *times.notes))


def _samples(
    timed: Sequence[Mapping[str, T]], whose: str, value: Callable[[T], float]
) -> dict[Kind, Array]:
    """Return the sums of F and BW, each of shape [iterations]."""
    kinds: tuple[Kind, Kind] = ("F", "BW")
    samples: dict[Kind, list[float]] = {"F": [], "BW": []}
    for timers in timed:
        names = both(whose, timers)
        assert names is not None  # the caller has looked
        for kind, name in zip(kinds, names, strict=True):
            samples[kind].append(value(timers[name]))
    return {kind: np.array(ms, dtype=float) for kind, ms in samples.items()}


# -- guesses -------------------------------------------------------------------------------


def _guessed(chosen: Chosen, layout: Layout, microbatches: int) -> Operators:
    pipeline_ms = [ms for _, one in chosen if (ms := _longest(one, _PIPELINE))]
    whole_ms = float(np.median(pipeline_ms or [one.elapsed_ms for _, one in chosen]))
    weights = layout.layers or [1.0] * layout.stages
    pairs_ms = np.array(pair_ms(whole_ms, microbatches, layout.devices, weights))
    missing = (
        f"timers of forward-backward alone, {milliseconds(whole_ms)}: F and BW are guessed from "
        "them"
        if pipeline_ms
        else "no timers of forward-compute and backward-compute: F and BW are guessed from the "
        "iteration time"
    )
    notes = [f"{missing} by {_formula(layout)} with BW = 2 F, so {_so(pairs_ms / 3, layout)}"]
    if any(one.first_ms for _, one in chosen):
        notes.append(
            "DeepSpeed's timers are not used: the log does not tell over how many iterations they "
            "are summed (steps_per_print)"
        )
    notes += _unread(chosen)
    times = alike({"F": pairs_ms[None] / 3, "BW": pairs_ms[None] * 2 / 3}, microbatches)
    return Operators(times, (*notes, *times.notes), not pipeline_ms)


def _unread(chosen: Chosen) -> list[str]:
    """Say so where a log may have told what was guessed."""
    for log, _ in chosen:
        if UNREAD in log.fates:
            line = log.fates.index(UNREAD) + 1
            return [
                f"{log.file}: line {line} names a timer of F or BW, but in no form that is read"
            ]
    return []


def _formula(layout: Layout) -> str:
    if layout.chunks > 1:
        about = " (about, as its chunks differ)" if layout.layers else ""
        return f"interleaved 1F1B, (N + (S − 1)/{layout.chunks})·(F + BW){about},"
    if layout.layers:
        return "1F1B, in proportion to the layers of each stage,"
    return "1F1B, (N + S − 1)·(F + BW)"


def _so(forward_ms: Array, layout: Layout) -> str:
    of_devices_ms = forward_ms.reshape(layout.chunks, -1).sum(axis=0)
    if layout.layers:
        low, high = float(of_devices_ms.min()), float(of_devices_ms.max())
        return f"F = {plain(low)} to {plain(high)} ms on a stage"
    chunk = f", {plain(float(forward_ms[0]))} ms on each of its chunks" if layout.chunks > 1 else ""
    return f"F = {plain(float(of_devices_ms[0]))} ms on every stage{chunk}"


def _followed(found: Operators, chosen: Chosen, names: Sequence[str]) -> Operators:
    """Add what follows the pipeline, as far as timers tell: no operator time can explain it."""
    whole_ms = float(np.median([one.elapsed_ms for _, one in chosen]))
    after_ms = {
        name: usual_ms
        for name in names
        if (usual_ms := float(np.median([_longest(one, name) for _, one in chosen])))
    }
    if not after_ms:
        return found
    parts = [
        f"{name} {milliseconds(ms)} ({percent(ms / whole_ms, 0)})" for name, ms in after_ms.items()
    ]
    note = f"of the iteration time, after the pipeline: {', '.join(parts)}"
    return replace(found, notes=(*found.notes, note), after_ms=sum(after_ms.values()))


def _longest(one: LoggedIteration, name: str) -> float:
    """A timer, the longest over its ranks; 0 without."""
    low_and_high = one.extremes_ms.get(name, (0.0, 0.0))
    return max([*one.ranks_ms.get(name, {}).values(), *low_and_high, one.last_ms.get(name, 0.0)])
