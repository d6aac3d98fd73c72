"""Which worker, which stage, which link: what holds a job up, and its step without it.

Whatever stands apart from its peers is a *suspect*: a stage of one worker, a whole worker, one of
the ranks that share a stage, a stage in all workers, a link, operators that pause, micro-batches
of unlike length. Its times are replaced by those of its peers, and all workers run again. Nothing
is estimated: each time that is told is one that the engine gives for the whole job.

What-if analysis of this kind is that of "Understanding Stragglers in Large Model Training Using
What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipesim.fidelity.job import Job, Times, job_of
from pipesim.formats.production import ProductionTrace
from pipesim.formats.production.workers import (
    slow_links,
    slow_places,
    slow_ranks,
    slow_stages,
)
from pipesim.scenario import Array
from pipesim.text import counted, fixed

__all__ = ["JobExplanation", "SlowStep", "Suspect", "explain_job"]

_PAUSE = 1.5
"""An operator pauses if it takes this many times as long as its usual micro-batch would."""

_UNLIKE = 0.05
"""Micro-batches are of unlike length if their times stray by this part of the mean."""

_MOST = 20
"""Suspects that are looked into, those that stand apart most."""


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


@dataclass(frozen=True)
class SlowStep:
    """A step that takes longer than most, and which stage of which worker stands out in it.

    Parameters
    ----------
    step : int
        Its number.
    measured_ms, simulated_ms, without_ms : float
        As measured, as simulated, and if that stage took what it usually takes.
    what : str
        The stage, the link or the worker, and how much longer than usual, for people.
    """

    step: int
    measured_ms: float
    simulated_ms: float
    without_ms: float
    what: str

    def as_dict(self) -> dict[str, object]:
        """Return it in JSON types."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class JobExplanation:
    """What holds a job up.

    Parameters
    ----------
    file : str
        The trace.
    shape : str
        Of the job, for people.
    steps : int
        How many usual steps the times are medians over.
    measured_ms, simulated_ms : float
        The job's step, as measured and as simulated from its own times.
    healthy_ms : float
        The same without any suspect.
    transport : str
        Over which it is simulated.
    workers : tuple of tuple of int and float
        Each data-parallel rank and its own step, as simulated.
    suspects : tuple of Suspect
        Those that cost most first.
    slow_steps : tuple of SlowStep
        Steps that take longer than most.
    notes : tuple of str
        For people.
    """

    file: str
    shape: str
    steps: int
    measured_ms: float
    simulated_ms: float
    healthy_ms: float
    transport: str
    workers: tuple[tuple[int, float], ...]
    suspects: tuple[Suspect, ...]
    slow_steps: tuple[SlowStep, ...]
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Simulated over measured − 1."""
        return self.simulated_ms / self.measured_ms - 1

    def as_dict(self) -> dict[str, object]:
        """Return it in JSON types."""
        return {
            "kind": "job",
            "file": self.file,
            "steps": self.steps,
            "measured_ms": self.measured_ms,
            "iteration_ms": self.simulated_ms,
            "error": self.error,
            "healthy_ms": self.healthy_ms,
            "transport": self.transport,
            "workers": [{"dp_rank": rank, "iteration_ms": ms} for rank, ms in self.workers],
            "suspects": [one.as_dict() for one in self.suspects],
            "slow_steps": [one.as_dict() for one in self.slow_steps],
            "notes": list(self.notes),
        }


def explain_job(
    trace: ProductionTrace, *, pause: float = _PAUSE, report: Callable[[str], None] = lambda _: None
) -> JobExplanation:
    """Find what stands apart in a job, and run the job without it.

    Parameters
    ----------
    trace : ProductionTrace
        The job's trace.
    pause : float
        Over this many times its usual time an operator has paused.
    report : callable
        Told what is being simulated.
    """
    whole, notes = job_of(trace)
    slow_steps = tuple(_slow_steps(whole, report))
    job = _only(whole, whole.usual)
    report("the job as it is")
    as_it_is = float(np.median(job.spans_ms.max(axis=1)))
    found = sorted(_suspects(job, trace, pause), key=lambda one: -one.factor)
    if len(found) > _MOST:
        notes += (f"{len(found) - _MOST} more stand apart, less than those below",)
        found = found[:_MOST]

    def step_ms(changes: Sequence[Suspect]) -> float:
        times = job.times
        for one in sorted(changes, key=lambda one: _ORDER.index(one.kind)):
            times = one.change(times)
        return float(np.median(job.steps_ms(times)))

    measured = []
    for one in found:
        report(f"the job without {one.what}")
        others = [other for other in found if other is not one]
        measured.append(replace(one, without_ms=step_ms([one]), alone_ms=step_ms(others)))
    measured.sort(key=lambda one: (-one.alone_ms, one.without_ms, -one.factor))
    in_order = [step_ms(measured[: n + 1]) for n in range(len(measured))]
    return JobExplanation(
        trace.file,
        f"{counted(job.schedules[0][0].stages, 'stage')} × "
        f"{counted(job.schedules[0][0].microbatches, 'micro-batch')} × "
        f"{counted(len(job.workers), 'worker')}",
        len(job.steps),
        float(np.median(job.measured_ms.max(axis=1))),
        as_it_is,
        in_order[-1] if in_order else as_it_is,
        job.transport,
        tuple(zip(job.workers, np.median(job.spans_ms, axis=0).tolist(), strict=True)),
        tuple(replace(one, in_order_ms=ms) for one, ms in zip(measured, in_order, strict=True)),
        slow_steps,
        notes,
    )


_ORDER = ("pauses", "micro-batches", "rank", "worker", "link", "stage")
"""In which order what is slow is replaced: peers are healthy before they are taken as such."""


def _only(job: Job, steps: NDArray[np.bool_]) -> Job:
    kept = np.flatnonzero(steps).tolist()
    return Job(
        tuple(job.steps[t] for t in kept),
        job.workers,
        Times(job.times.operators_ms[kept], job.times.messages_ms[kept]),
        job.measured_ms[kept],
        [job.schedules[t] for t in kept],
        job.usual[kept],
        job.left_out,
    )


# -- what stands apart -------------------------------------------------------------------


def _typical(times: Times) -> Array:
    """What an operator of each worker, kind and stage usually takes, shape [W, 2, S]."""
    result: Array = np.median(times.operators_ms, axis=(0, 4))
    return result


def _suspects(job: Job, trace: ProductionTrace, pause: float) -> Iterator[Suspect]:
    ranks = [*_ranks(job, trace)]
    yield from ranks
    taken = {(one.dp_rank, one.stage) for one in ranks}
    yield from (one for one in _places(job) if (one.dp_rank, one.stage) not in taken)
    yield from _stages(job)
    yield from _links(job)
    yield from _microbatches(job, pause)


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


def _places(job: Job) -> Iterator[Suspect]:
    """Stages of one worker, or all of them, that are slower than those of the other workers."""
    typical = _typical(job.times)
    places = slow_places(typical.sum(axis=1))
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
        ratio = typical[w] / np.median(typical[peers], axis=0)  # [2, S]
        forward, backward = np.median(ratio[:, list(place.stages)], axis=1)
        yield Suspect(
            "worker", f"{where}: {_kinds(forward, backward)} the other workers'", place.factor,
            dp_rank=job.workers[w], stage=None if whole else place.stages[0], change=change,
        )  # fmt: skip


def _kinds(forward: float, backward: float) -> str:
    if max(forward, backward) <= 1.1 * min(forward, backward):
        return f"forward and backward {fixed((forward + backward) / 2, 2)}×"
    return f"forward {fixed(forward, 2)}×, backward {fixed(backward, 2)}×"


def _stages(job: Job) -> Iterator[Suspect]:
    """Stages that take longer than the others in every worker."""
    typical = _typical(job.times)
    found = slow_stages(typical.sum(axis=1))
    usual = [s for s in range(typical.shape[2]) if s not in {stage for stage, _ in found}]
    for stage, factor in found:

        def change(times: Times, stage: int = stage) -> Times:
            operators = times.operators_ms.copy()
            operators[:, :, :, stage] = np.median(operators[:, :, :, usual], axis=3)
            return replace(times, operators_ms=operators)

        forward, backward = np.median(
            typical[:, :, stage] / np.median(typical[:, :, usual], axis=2), axis=0
        )
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


def _microbatches(job: Job, pause: float) -> Iterator[Suspect]:
    """Operators that pause, and micro-batches that are longer than others on all stages."""
    times = job.times.operators_ms
    relative = times / np.maximum(_typical(job.times), 1e-9)[None, ..., None]
    flat = np.sort(relative.reshape(*relative.shape[:2], -1, relative.shape[-1]), axis=2)
    length = flat[:, :, (flat.shape[2] - 1) // 2]  # lower medians over kinds and stages: [T, W, N]
    beyond = relative / np.maximum(length, 1e-9)[:, :, None, None]
    paused = beyond > pause
    if paused.any():
        factor = float(np.median(beyond[paused]))
        by_worker = paused.sum(axis=(0, 2, 3, 4))
        worst = int(np.argmax(by_worker))
        count = int(paused.sum())
        owner = by_worker[worst] > count / 2 and len(job.workers) > 1

        def resumed(times: Times) -> Times:
            typical = np.median(times.operators_ms, axis=(0, 4))[None, ..., None]
            healthy = typical * length[:, :, None, None]
            operators = np.where(paused, np.minimum(times.operators_ms, healthy),
                                 times.operators_ms)  # fmt: skip
            return replace(times, operators_ms=operators)

        where = f"dp rank {job.workers[worst]}" if owner else "anywhere"
        yield Suspect(
            "pauses",
            f"pauses, {where}: {counted(count, 'operator')} of {paused.size:,} "
            f"take{'s' if count == 1 else ''} {fixed(factor, 1)}× as long as usual",
            factor, dp_rank=job.workers[worst] if owner else None, change=resumed,
        )  # fmt: skip
    mean = length.mean(axis=(1, 2), keepdims=True)
    stray = float(np.median(length.std(axis=(1, 2)) / mean[:, 0, 0]))
    if stray > _UNLIKE:

        def even(times: Times) -> Times:
            scale = mean / np.maximum(length, 1e-9)
            return replace(times, operators_ms=times.operators_ms * scale[:, :, None, None])

        factor = float(np.median(length.max(axis=(1, 2)) / mean[:, 0, 0]))
        yield Suspect(
            "micro-batches",
            f"micro-batches of unlike length: the longest of a step takes {fixed(factor, 1)}× the "
            "mean (without: all alike, the same work in all)",
            factor, change=even,
        )  # fmt: skip


# -- steps that stand apart --------------------------------------------------------------


def _slow_steps(job: Job, report: Callable[[str], None]) -> Iterator[SlowStep]:
    """Steps over a tenth longer than most, and whose times are the most unusual in them."""
    job_ms = job.measured_ms.max(axis=1)
    slow = np.flatnonzero(~job.usual & (job_ms > 1.1 * np.median(job_ms[job.usual])))
    if not len(slow):
        return
    operators, messages = job.times.operators_ms, job.times.messages_ms
    usual_ops = np.median(operators[job.usual], axis=0)  # [W, 2, S, N]
    usual_messages = np.median(messages[job.usual], axis=0)
    for t in slow.tolist():
        report(f"step {job.steps[t]}")
        w = int(np.argmax(job.measured_ms[t]))
        busy = (operators[t, w] - usual_ops[w]).sum(axis=(0, 2))  # [S]
        waits = (messages[t, w] - usual_messages[w]).sum(axis=0) * operators.shape[-1]  # [S - 1]
        new_ops, new_messages = operators.copy(), messages.copy()
        if waits.size and waits.max() > busy.max():
            link = int(np.argmax(waits))
            new_messages[t, w, :, link] = usual_messages[w, :, link]
            ms = messages[t, w, :, link].max()
            what = f"dp rank {job.workers[w]}, link {link}: messages take {fixed(ms, 2)} ms"
        else:
            stage = int(np.argmax(busy))
            whole = bool((busy > busy[stage] / 2).all()) and len(busy) > 1
            of = np.full(len(busy), True) if whole else np.arange(len(busy)) == stage
            new_ops[t, w, :, of] = np.moveaxis(usual_ops[w], 1, 0)[of]
            factor = operators[t, w][:, of].sum() / max(usual_ops[w][:, of].sum(), 1e-9)
            place = f"dp rank {job.workers[w]}" + ("" if whole else f", stage {stage}")
            what = f"{place}: {fixed(float(factor), 2)}× its usual time"
        without = job.steps_ms(Times(new_ops, new_messages))[t]
        yield SlowStep(
            job.steps[t], float(job_ms[t]), float(job.spans_ms[t].max()), float(without), what
        )
