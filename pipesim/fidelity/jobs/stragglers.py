"""Which worker, which stage, which link: what holds a job up, and its step without it.

Whatever stands apart from its peers is a *suspect* (see :mod:`.suspects`): a stage of one worker,
a whole worker, one of the ranks that share a stage, a stage in all workers, a link, operators that
pause, micro-batches of unlike length. Its times are replaced by those of its peers, and all
workers run again. Nothing is estimated: each time that is told is one that the engine gives for
the whole job.

What-if analysis of this kind is that of "Understanding Stragglers in Large Model Training Using
What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipesim.fidelity.jobs.job import Job, Times, job_of
from pipesim.fidelity.jobs.suspects import ORDER, PAUSE, Suspect, suspects
from pipesim.formats.production import ProductionTrace
from pipesim.text import counted, fixed

__all__ = ["JobExplanation", "SlowStep", "explain_job"]

_MOST = 20
"""Suspects that are looked into, those that stand apart most."""

_NOTHING = 1e-3
"""Part of the step that a suspect costs at least, alone or beside the others, to be one."""


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
        return asdict(self)


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
    trace: ProductionTrace, *, pause: float = PAUSE, report: Callable[[str], None] = lambda _: None
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
    notes = (*trace.notes, *notes)
    slow_steps = tuple(_slow_steps(whole, report))
    job = _only(whole, whole.usual)
    report("the job as it is")
    as_it_is = float(np.median(job.spans_ms.max(axis=1)))
    found = sorted(suspects(job, trace, pause), key=lambda one: -one.factor)
    if len(found) > _MOST:
        notes += (f"{len(found) - _MOST} more stand apart, less than those below",)
        found = found[:_MOST]

    def step_ms(changes: Sequence[Suspect]) -> float:
        times = job.times
        for one in sorted(changes, key=lambda one: ORDER.index(one.kind)):
            times = one.change(times)
        return float(np.median(job.steps_ms(times)))

    measured = []
    for one in found:
        report(f"the job without {one.what}")
        others = [other for other in found if other is not one]
        measured.append(replace(one, without_ms=step_ms([one]), alone_ms=step_ms(others)))
    healthy_ms = step_ms(found)
    free = [one for one in measured if not _costs(one, as_it_is, healthy_ms)]
    notes += tuple(f"costs nothing: {one.what}" for one in free)
    measured = [one for one in measured if one not in free]
    measured.sort(
        key=lambda one: (-round(one.alone_ms, 6), round(one.without_ms, 6), ORDER.index(one.kind))
    )
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


def _costs(one: Suspect, as_it_is_ms: float, healthy_ms: float) -> bool:
    """Whether the step is shorter without it, or would be longer with it alone."""
    gains_ms = as_it_is_ms - one.without_ms, one.alone_ms - healthy_ms
    return max(gains_ms) > _NOTHING * as_it_is_ms


def _only(job: Job, steps: NDArray[np.bool_]) -> Job:
    kept = np.flatnonzero(steps).tolist()
    return replace(
        job,
        steps=tuple(job.steps[t] for t in kept),
        times=Times(job.times.operators_ms[kept], job.times.messages_ms[kept]),
        measured_ms=job.measured_ms[kept],
        schedules=[job.schedules[t] for t in kept],
        usual=job.usual[kept],
    )


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
