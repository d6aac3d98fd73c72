"""What stands apart from its peers in a measured job, and its times if it did not.

- Compared are the usual operators of a stage: medians over steps and micro-batches, in which
  pauses and long micro-batches do not count. These are looked for in what remains.
- A message is compared with those over the same link in the other workers, and a link that is
  slow in all of them with the other links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipesim.fidelity.jobs.job import Job, Times
from pipesim.formats.production import ProductionTrace
from pipesim.formats.production.workers import (
    SlowPlace,
    slow_factors,
    slow_links,
    slow_places,
    slow_ranks,
    slow_stages,
    usual_times,
)
from pipesim.scenario import Array
from pipesim.text import counted, fixed

__all__ = ["ORDER", "PAUSE", "Suspect", "suspects"]

PAUSE = 1.5
"""An operator pauses if it takes this many times as long as its usual micro-batch would."""

_UNLIKE = 0.05
"""Micro-batches are of unlike length if their times stray by this part of the mean."""

ORDER = ("pauses", "micro-batches", "rank", "worker", "link", "stage")
"""In which order what is slow is replaced: peers are healthy before they are taken as such."""


@dataclass(frozen=True)
class Suspect:
    """Something that stands apart from its peers, and what the job's step is without it.

    Parameters
    ----------
    kind : str
        ``worker``, ``stage``, ``link``, ``rank``, ``pauses`` or ``micro-batches``.
    what : str
        Where and how much, for people.
    factor : float
        How many times as long as its peers it takes.
    dp_rank, stage, link, rank : int, optional
        Which one; None where it is all of them, or of no one.
    without_ms : float
        The job's step without it, all else as it is.
    alone_ms : float
        The job's step with it, and without all other suspects.
    in_order_ms : float
        The job's step without it and all suspects before it.
    """

    kind: str
    what: str
    factor: float
    dp_rank: int | None = None
    stage: int | None = None
    link: int | None = None
    rank: int | None = None
    without_ms: float = 0.0
    alone_ms: float = 0.0
    in_order_ms: float = 0.0
    change: Callable[[Times], Times] = field(default=lambda times: times, repr=False, compare=False)

    def as_dict(self) -> dict[str, object]:
        """Return it in JSON types."""
        names = ("kind", "what", "factor", "dp_rank", "stage", "link", "rank",
                 "without_ms", "alone_ms", "in_order_ms")  # fmt: skip
        return {name: getattr(self, name) for name in names}


def suspects(job: Job, trace: ProductionTrace, pause: float = PAUSE) -> Iterator[Suspect]:
    """Find what stands apart from its peers in a job.

    Parameters
    ----------
    job : Job
        The steps to look at.
    trace : ProductionTrace
        Where it is from: it tells ranks that share a stage apart.
    pause : float
        Over this many times its usual time an operator has paused.
    """
    times = job.times
    for one in _ranks(job, trace):  # which would look like slow workers or stages
        yield one
        times = one.change(times)
    yield from _places(job, times)
    yield from _stages(times)
    yield from _links(job)
    yield from _microbatches(job, times, pause)


def _typical(times: Times) -> Array:
    """What an operator of each worker, kind and stage usually takes, shape [W, 2, S]."""
    result: Array = np.median(times.operators_ms, axis=(0, 4))
    return result


def _ranks(job: Job, trace: ProductionTrace) -> Iterator[Suspect]:
    """Ranks that are slower than those with which they share a stage."""
    placement = np.array(job.schedules[0][0].placement)
    for one in slow_ranks(trace):
        if one.dp_rank not in job.workers or not one.read:
            continue
        w, stages = job.workers.index(one.dp_rank), np.flatnonzero(placement == one.device)

        def change(
            times: Times, w: int = w, stages: NDArray[np.int_] = stages, factor: float = one.factor
        ) -> Times:
            operators = times.operators_ms.copy()
            operators[:, w, :, stages] /= factor
            return replace(times, operators_ms=operators)

        what = f"rank {one.rank} (dp rank {one.dp_rank}, device {one.device})"
        yield Suspect(
            "rank", f"{what}: {fixed(one.factor, 2)}× its peers there", one.factor,
            dp_rank=one.dp_rank, stage=int(stages[0]) if len(stages) == 1 else None,
            rank=one.rank, change=change,
        )  # fmt: skip


def _slow(measured: Times) -> list[SlowPlace]:
    """Stages of single workers that stand apart, beyond what unlike micro-batches explain."""
    usual = [usual_times(one) for one in measured.operators_ms.swapaxes(0, 1)]
    return slow_places(np.stack([busy for busy, _ in usual]), [error for _, error in usual])


def _places(job: Job, measured: Times) -> Iterator[Suspect]:
    """Stages of one worker, or all of them, that are slower than those of the other workers."""
    typical, places = _typical(measured), _slow(measured)
    slow = {(place.worker, stage) for place in places for stage in place.stages}
    for place in places:
        w = place.worker

        def change(times: Times, w: int = w, stages: tuple[int, ...] = place.stages) -> Times:
            operators = times.operators_ms.copy()
            for s in stages:
                peers = [p for p in range(operators.shape[1]) if p != w and (p, s) not in slow]
                operators[:, w, :, s] = np.median(operators[:, peers][..., s, :], axis=1)
            return replace(times, operators_ms=operators)

        whole = len(place.stages) > 1
        where = f"dp rank {job.workers[w]}"
        if not whole:
            where += f", stage {place.stages[0]}"
        peers = [p for p in range(len(job.workers)) if (p, place.stages[0]) not in slow]
        ratio = typical[w] / np.maximum(np.median(typical[peers], axis=0), 1e-9)  # [2, S]
        forward, backward = np.median(ratio[:, list(place.stages)], axis=1)
        yield Suspect(
            "worker", f"{where}: {_kinds(forward, backward)} the other workers'", place.factor,
            dp_rank=job.workers[w], stage=None if whole else place.stages[0], change=change,
        )  # fmt: skip


def _kinds(forward: float, backward: float) -> str:
    if max(forward, backward) <= 1.1 * min(forward, backward):
        return f"forward and backward {fixed((forward + backward) / 2, 2)}×"
    return f"forward {fixed(forward, 2)}×, backward {fixed(backward, 2)}×"


def _stages(measured: Times) -> Iterator[Suspect]:
    """Stages that take longer than the others in every worker."""
    typical = _typical(measured)
    busy = typical.sum(axis=1)
    found = slow_stages(busy)
    slow = {stage for stage, _ in found}
    healthy = slow_factors(busy) == 1
    # Peers are the other stages of the worker, without those that are slow in it alone.
    usual = [
        [s for s in range(busy.shape[1]) if s not in slow and own[s]]
        or [s for s in range(busy.shape[1]) if s not in slow]
        for own in healthy
    ]
    of_peers = np.stack(
        [np.median(typical[w][:, peers], axis=1) for w, peers in enumerate(usual)]
    )  # [W, 2]
    for stage, factor in found:
        slower_here = typical[:, :, stage] > of_peers

        def change(
            times: Times, stage: int = stage, slower_here: NDArray[np.bool_] = slower_here
        ) -> Times:
            operators = times.operators_ms.copy()
            for w, kind in np.argwhere(slower_here).tolist():
                own = operators[:, w, kind]
                own[:, stage] = np.median(own[:, usual[w]], axis=1)
            return replace(times, operators_ms=operators)

        forward, backward = np.median(typical[:, :, stage] / np.maximum(of_peers, 1e-9), axis=0)
        yield Suspect(
            "stage",
            f"stage {stage}, in every worker: {_kinds(forward, backward)} the other stages'",
            factor, stage=stage, change=change,
        )  # fmt: skip


def _links(job: Job) -> Iterator[Suspect]:
    """Links whose messages take longer than those of the same link elsewhere, or of others."""
    typical = np.median(job.times.messages_ms, axis=0)  # [W, 2, S - 1]
    across, along = slow_links(typical)
    usual = np.median(typical / across, axis=0)

    def suspect(what: str, where: NDArray[np.bool_], factor: float, **which: int) -> Suspect:
        """Replace the times of some directions and links, [W, 2, S − 1], by the usual ones."""

        def change(times: Times) -> Times:
            healthy = usual / along if "dp_rank" not in which else usual
            messages = np.where(where, np.minimum(times.messages_ms, healthy), times.messages_ms)
            return replace(times, messages_ms=messages)

        return Suspect("link", what, factor, change=change, **which)

    for link in np.flatnonzero((along > 1).any(axis=0)).tolist():
        where = np.zeros(typical.shape, dtype=bool)
        where[:, :, link] = along[:, link] > 1
        ms = float(usual[:, link].max())
        yield suspect(
            f"link {link}, in every worker: messages take {fixed(ms, 2)} ms, "
            f"{fixed(float(along[:, link].max()), 1)}× the other links'",
            where, float(along[:, link].max()), link=link,
        )  # fmt: skip
    for w, link in np.argwhere((across > 1).any(axis=1)).tolist():
        where = np.zeros(typical.shape, dtype=bool)
        where[w, :, link] = across[w, :, link] > 1
        ms, factor = float(typical[w, :, link].max()), float(across[w, :, link].max())
        yield suspect(
            f"dp rank {job.workers[w]}, link {link}: messages take {fixed(ms, 2)} ms, "
            f"{fixed(factor, 1)}× the other workers'",
            where, factor, dp_rank=job.workers[w], link=link,
        )  # fmt: skip


def _microbatches(job: Job, measured: Times, pause: float) -> Iterator[Suspect]:
    """Operators that pause, and micro-batches that are longer than others on all stages."""
    typical = _typical(measured)
    factors = np.ones((typical.shape[0], 1, typical.shape[2]))
    for place in _slow(measured):
        for stage in place.stages:
            factors[place.worker, 0, stage] = slow_factors(typical.sum(axis=1))[place.worker, stage]
    # What a micro-batch of usual length takes: the same in all workers that are as fast.
    reference = np.median(typical / factors, axis=0) * factors
    relative = measured.operators_ms / np.maximum(reference, 1e-9)[None, ..., None]
    flat = np.sort(relative.reshape(*relative.shape[:2], -1, relative.shape[-1]), axis=2)
    length = flat[:, :, (flat.shape[2] - 1) // 2]  # lower medians over kinds and stages: [T, W, N]
    per_length = np.where(length > 0, length, np.inf)  # nothing stands apart from no time at all
    beyond = relative / per_length[:, :, None, None]
    paused = beyond > pause
    if paused.any():
        factor = float(np.median(beyond[paused]))
        by_worker = paused.sum(axis=(0, 2, 3, 4))
        worst = int(np.argmax(by_worker))
        count = int(paused.sum())
        owner = by_worker[worst] > count / 2 and len(job.workers) > 1

        def resumed(times: Times) -> Times:
            return replace(times, operators_ms=times.operators_ms / np.where(paused, beyond, 1.0))

        where = f"dp rank {job.workers[worst]}" if owner else "anywhere"
        yield Suspect(
            "pauses",
            f"pauses, {where}: {counted(count, 'operator')} of {paused.size:,} "
            f"take{'s' if count == 1 else ''} {fixed(factor, 1)}× as long as usual",
            factor, dp_rank=job.workers[worst] if owner else None, change=resumed,
        )  # fmt: skip
    mean = np.maximum(length.mean(axis=(1, 2), keepdims=True), 1e-9)
    stray = float(np.median(length.std(axis=(1, 2)) / mean[:, 0, 0]))
    if stray > _UNLIKE:

        def even(times: Times) -> Times:
            scale = np.where(length > 0, mean / per_length, 1.0)
            return replace(times, operators_ms=times.operators_ms * scale[:, :, None, None])

        factor = float(np.median(length.max(axis=(1, 2)) / mean[:, 0, 0]))
        yield Suspect(
            "micro-batches",
            f"micro-batches of unlike length: the longest of a step takes {fixed(factor, 1)}× the "
            "mean (without: all alike, the same work in all)",
            factor, change=even,
        )  # fmt: skip
