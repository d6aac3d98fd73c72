"""Which steps and which worker of a production trace the scenario is of.

A job's step is that of its slowest worker. Where the operators of that worker take about as
long in each step, they get their medians over the usual steps. Where they do not (other
sequences, pauses, another slow worker in each step), medians would be the times of no step, and
the step of median length is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipesim.formats.production.trace import ProductionTrace
from pipesim.formats.production.workers import slower, usual_steps
from pipesim.formats.regimes import ranges
from pipesim.formats.tally import Dropped
from pipesim.scenario import Array
from pipesim.text import counted, listed

__all__ = ["Choice", "choose", "typical_ms"]

_SPREAD, _PAUSES = 0.1, 0.05
"""Operator times are steady if half of an operator's times are within 10 % of each other, and if
together they take longer than their medians by 5 % of a step at most."""

_MAKES = 1.1
"""The job's step is that of one worker if it takes at most this many times as long."""


@dataclass(frozen=True)
class Choice:
    """What the scenario is of.

    Parameters
    ----------
    iterations : tuple of int
        Numbers of the trace's iterations.
    job_ms : tuple of float
        The job's step in each of them: that of its slowest worker, unless one was named.
    worker : int
        The data-parallel rank.
    usual : tuple of int
        The steps, by position, that are like most.
    unlike : sequence of Dropped
        The steps that were not taken.
    notes : tuple of str
        For people.
    """

    iterations: tuple[int, ...]
    job_ms: tuple[float, ...]
    worker: int
    usual: tuple[int, ...]
    unlike: Sequence[Dropped]
    notes: tuple[str, ...]


def choose(trace: ProductionTrace, dp_rank: int | None) -> Choice:
    """Choose the iterations of a scenario.

    Parameters
    ----------
    trace : ProductionTrace
        With a complete iteration of ``dp_rank``.
    dp_rank : int, optional
        The worker to take. Default: the one that the others wait for.
    """
    spans = trace.spans_ms
    if dp_rank is not None:
        spans = np.where(np.array(trace.workers) == dp_rank, spans, np.nan)
    needed = len(trace.workers) if dp_rank is None else 1
    found = np.isfinite(spans).sum(axis=1)
    notes = []
    if (found == needed).any():
        whole = np.flatnonzero(found == needed)
    else:  # better than nothing, if it is said
        whole = np.flatnonzero(found > 0)
        notes.append(
            f"no step has all {needed} workers complete: one of those that lack may be slower"
        )
    job = np.nanmax(spans[whole], axis=1)
    usual, level = usual_steps(job)
    notes += _levels(trace, whole, job, usual, level)
    steps = whole[usual]
    typical = typical_ms(spans[steps])
    worker = int(np.argmax(typical))
    iterations = trace.grid[steps, worker]
    pairs = iterations >= 0
    job_ms, chosen = job[usual][pairs], iterations[pairs]
    makes = np.nanargmax(spans[steps], axis=1)
    reason = _unsteady(
        np.stack([trace.iterations[i].times_ms for i in chosen]), float(typical[worker])
    )
    if np.median(job[usual]) > _MAKES * typical[worker]:
        reason = f"in each step another worker is the slowest ({_named(trace, makes)})"
    if reason:
        t = int(np.argmin(np.abs(job[usual] - np.median(job[usual]))))
        worker = int(makes[t])
        chosen, job_ms = trace.grid[steps[t : t + 1], worker], job[usual][t : t + 1]
        notes.append(
            f"medians over the steps would be of none: {reason}. Taken as it is: step "
            f"{trace.steps[steps[t]]}, the median one ({job_ms[0]:,.0f} ms)"
        )
    else:
        notes.append(
            f"medians over {counted(len(chosen), 'step')} of dp rank {trace.workers[worker]}"
            f"{_span(job_ms)}"
        )
    if len(trace.workers) > 1:
        notes.append(_slowest(trace, typical, worker, dp_rank, bool(reason)))
    return Choice(
        tuple(chosen.tolist()),
        tuple(job_ms.tolist()),
        trace.workers[worker],
        tuple(steps.tolist()),
        tuple(_unlike(trace, {trace.iterations[i].step for i in chosen}, steps, spans)),
        tuple(notes),
    )


def _unlike(
    trace: ProductionTrace, taken: Set[int], usual: NDArray[np.int_], spans: Array
) -> Iterator[Dropped]:
    """Say why each of the other steps is not taken."""
    places: dict[str, list[str]] = {}
    for t, step in enumerate(trace.steps):
        times = spans[t][np.isfinite(spans[t])]
        if step in taken:
            continue
        if t in usual:
            why = "like the one that is taken"
        elif not len(times):
            why = "without a complete iteration"
        elif len(times) < spans.shape[1] and np.isfinite(spans).all(axis=1).any():
            why = "in which a worker is not complete"
        else:
            why = "that take longer or shorter than most"
        where = f"step {step}" + (f" ({times.max():,.0f} ms)" if len(times) else "")
        places.setdefault(why, []).append(where)
    yield from (Dropped(why, which) for why, which in places.items())
    yield Dropped("not asked for", [f"step {step}" for step in trace.unread])


def typical_ms(spans_ms: Array) -> Array:
    """Return the median of each worker over the steps, shape [W]; 0 if it has none.

    Parameters
    ----------
    spans_ms : array, shape [steps, W]
        NaN where an iteration is not complete.
    """
    return np.array(
        [
            np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else 0.0
            for column in spans_ms.T
        ]
    )


def _unsteady(times_ms: Array, span_ms: float) -> str:
    """Say why medians of operators, shape [n, 2, S, N], are the times of no step, if so."""
    if len(times_ms) < 3:
        return ""
    low, median, high = np.quantile(times_ms, (0.25, 0.5, 0.75), axis=0)
    spread = float(np.median((high - low) / np.maximum(median, 1e-9)))
    if spread > _SPREAD:
        return f"an operator's times differ by {100 * spread:.0f} % from step to step"
    totals = times_ms.sum(axis=(1, 2, 3))
    beyond = float(np.median(totals)) - float(median.sum())
    if beyond > _PAUSES * span_ms:
        return (
            f"operators take {beyond:,.0f} ms longer in all than usual ones do: some of them pause"
        )
    return ""


def _levels(
    trace: ProductionTrace,
    whole: NDArray[np.int_],
    job: Array,
    usual: NDArray[np.bool_],
    level: NDArray[np.int_],
) -> Iterator[str]:
    """Say how the steps differ, if they do."""
    if not usual.all():
        parts = []
        for number in range(int(level.max()) + 1):
            of = level == number
            parts.append(f"{counted(int(of.sum()), 'step')} of {np.median(job[of]):,.0f} ms")
        if len(parts) > 1:
            yield f"the steps are unlike: {listed(parts)}; taken: the {_which(usual, level)}"
        odd = [t for t in np.flatnonzero(~usual) if level[t] == level[np.flatnonzero(usual)[0]]]
        if odd:
            yield (
                f"{counted(len(odd), 'step')} stand{'s' if len(odd) == 1 else ''} apart: step "
                f"{ranges([trace.steps[whole[t]] for t in odd])} "
                f"({max(job[t] for t in odd):,.0f} ms at most, and usually "
                f"{np.median(job[usual]):,.0f})"
            )


def _which(usual: NDArray[np.bool_], level: NDArray[np.int_]) -> str:
    taken, last = level[np.flatnonzero(usual)[0]], level.max()
    return "shortest" if taken == 0 else "longest" if taken == last else "middle ones"


def _span(times_ms: Sequence[float] | Array) -> str:
    return (
        f" ({min(times_ms):,.0f} to {max(times_ms):,.0f} ms)"
        if len(times_ms) > 1
        else f" ({times_ms[0]:,.0f} ms)"
    )


def _named(trace: ProductionTrace, makes: NDArray[np.int_]) -> str:
    names = sorted({trace.workers[w] for w in makes.tolist()})
    return f"dp ranks {ranges(names)}"


def _slowest(
    trace: ProductionTrace, typical: Array, worker: int, dp_rank: int | None, one_step: bool
) -> str:
    """Say which worker the scenario is of, and how the others do."""
    name = f"dp rank {trace.workers[worker]}"
    if dp_rank is not None:
        return f"{name} was asked for: the job's step may be that of another"
    others = np.delete(typical, worker)
    others = others[others > 0]
    factor = slower(typical)[worker]
    if one_step or not len(others):
        return f"the scenario is of {name}, which made that step"
    if factor > 1:
        return (
            f"the job's step is that of its slowest worker, {name}: {typical[worker]:,.0f} ms, "
            f"and {np.median(others):,.0f} in the other{'s' if len(others) > 1 else ''}"
        )
    return (
        f"no worker stands apart ({len(typical)} of {_range(typical)} ms): the scenario is "
        f"of the slowest, {name}"
    )


def _range(times_ms: Array) -> str:
    present = times_ms[times_ms > 0]
    return f"{present.min():,.0f} to {present.max():,.0f}"
