"""Which workers, stages and ranks of a job stand apart from their peers.

A *worker* is a data-parallel rank: its own pipeline over all stages. Workers meet after each
step, to reduce the gradients, so that the job's step is that of its slowest worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipesim.formats.regimes import levels
from pipesim.scenario import Array

if TYPE_CHECKING:
    from pipesim.formats.production.trace import ProductionTrace

__all__ = [
    "SlowPlace",
    "SlowRank",
    "mean_known",
    "slow_factors",
    "slow_links",
    "slow_places",
    "slow_ranks",
    "slow_stages",
    "slower",
    "usual_steps",
    "usual_times",
]

_SURE = 4.0
"""Standard errors by which a worker's times must be over those of the others."""


class SlowPlace(NamedTuple):
    """Stages of one worker that compute slower than its peers: by position, not by number.

    ``stages`` are those of the model, all of them if the whole worker is slow.
    """

    worker: int
    stages: tuple[int, ...]
    factor: float


class SlowRank(NamedTuple):
    """One of the ranks that share a stage of a worker, and is slower than the others.

    ``read``: whether the operators of the trace are its own, in most steps.
    """

    rank: int
    dp_rank: int
    device: int
    factor: float
    read: bool


def slower(times: ArrayLike) -> Array:
    """How many times as long as the usual ones the times above them are; 1 for the others.

    Usual is the level that most of them have; if two have as many, the shorter one.

    Parameters
    ----------
    times : array-like, shape [n]
        Not negative.

    Examples
    --------
    >>> slower([90, 180]).tolist(), slower([30, 91, 90, 89]).tolist(), slower([90, 0]).tolist()
    ([1.0, 2.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0])
    """
    values = np.asarray(times, dtype=float)
    result = np.ones(len(values))
    positive = np.flatnonzero(values > 0)
    if len(positive):
        level = levels(values[positive], smallest=1)
        base = np.argmax(np.bincount(level))
        usual = np.median(values[positive[level == base]])
        above = positive[level > base]
        result[above] = values[above] / usual
    return result


def usual_steps(job_ms: Array) -> tuple[NDArray[np.bool_], NDArray[np.int_]]:
    """Tell the usual steps of a job from the others.

    Parameters
    ----------
    job_ms : array, shape [steps]
        The time of each, above 0.

    Returns
    -------
    usual : array of bool, shape [steps]
        Those on the level that most steps are on, the fastest of several, up to a tenth over
        their median.
    level : array of int, shape [steps]
    """
    level = levels(job_ms)
    usual = level == np.argmax(np.bincount(level))
    return usual & (job_ms <= 1.1 * np.median(job_ms[usual])), level


def usual_times(times_ms: Array) -> tuple[Array, float]:
    """Return what a micro-batch usually takes on each stage of one worker, and how sure that is.

    Medians over steps and micro-batches, in which pauses and single long sequences do not count.

    Parameters
    ----------
    times_ms : array, shape [steps, 2, S, N]
        Of forwards and backwards.

    Returns
    -------
    busy_ms : array, shape [S]
        Forward and backward together.
    error : float
        Standard error of such a median, relative to it, from the quartiles.
    """
    busy: Array = np.median(times_ms, axis=(0, 3)).sum(axis=0)
    totals = times_ms.sum(axis=(1, 2)).ravel()
    low, median, high = np.quantile(totals, (0.25, 0.5, 0.75))
    deviation = (high - low) / 1.349  # of normal noise
    return busy, float(1.2533 * deviation / max(median, 1e-9) / np.sqrt(totals.size))


def slow_places(busy_ms: Array, errors: ArrayLike = 0.0) -> list[SlowPlace]:
    """Find workers of which one stage or all are slower than those of the others.

    Parameters
    ----------
    busy_ms : array, shape [W, S]
        How long each stage computes in each worker.
    errors : array-like, shape [W]
        How sure that is, relative to it: micro-batches of unlike length are no slow worker.
    """
    workers, stages = busy_ms.shape
    factors = slow_factors(busy_ms)
    sure = factors > 1 + _SURE * np.broadcast_to(errors, workers)[:, None]
    found = []
    for w in range(workers):
        slow = np.flatnonzero(sure[w])
        if len(slow) == stages > 1 and np.ptp(factors[w]) <= 0.1 * factors[w].min():
            found.append(SlowPlace(w, tuple(range(stages)), float(np.median(factors[w]))))
        else:
            found += [SlowPlace(w, (int(s),), float(factors[w, s])) for s in slow]
    return sorted(found, key=lambda one: -one.factor)


def slow_stages(busy_ms: Array) -> list[tuple[int, float]]:
    """Find stages that take longer than the others in the usual worker.

    Parameters
    ----------
    busy_ms : array, shape [W, S]
        How long each stage computes in each worker.

    Returns
    -------
    list of stage and factor
        How many times as long as the others.
    """
    factors = slower(np.median(busy_ms / slow_factors(busy_ms), axis=0))
    return [(int(s), float(factors[s])) for s in np.flatnonzero(factors > 1)]


def slow_factors(busy_ms: Array) -> Array:
    """How many times as long each worker's stage takes as the other workers', shape [W, S]."""
    return np.stack([slower(busy_ms[:, s]) for s in range(busy_ms.shape[1])], axis=1)


def slow_ranks(trace: ProductionTrace) -> list[SlowRank]:
    """Find ranks that are slower than those with which they share a stage."""
    ranks = trace.ranks_ms
    found = []
    places = ranks.groupby(["dp_rank", "stage", "rank"])
    typical = places[["busy_ms", "read"]].agg({"busy_ms": "median", "read": "mean"}).reset_index()
    for _, part in typical.groupby(["dp_rank", "stage"]):
        factors = slower(part["busy_ms"].to_numpy()).tolist()
        names = part[["rank", "dp_rank", "stage"]].to_numpy().tolist()
        read = (part["read"] > 0.5).tolist()
        found += [
            SlowRank(rank, dp_rank, device, factor, whether)
            for (rank, dp_rank, device), factor, whether in zip(names, factors, read, strict=True)
            if factor > 1
        ]
    return sorted(found, key=lambda one: -one.factor)


def slow_links(messages_ms: Array) -> tuple[Array, Array]:
    """Find links whose messages take longer than usual.

    Parameters
    ----------
    messages_ms : array, shape [W, 2, S − 1]
        Of forward and backward messages over each link in each worker.

    Returns
    -------
    across : array, shape [W, 2, S − 1]
        How many times as long as over the same link in the other workers; 1: as long.
    along : array, shape [2, S − 1]
        How many times as long as over the other links, in every worker; 1: as long.
    """
    if not messages_ms.size:
        return np.ones(messages_ms.shape), np.ones(messages_ms.shape[1:])
    across: Array = np.apply_along_axis(slower, 0, messages_ms)
    usual = np.median(messages_ms / across, axis=0)
    return across, slower(usual.ravel()).reshape(usual.shape)


def mean_known(transfers_ms: Array) -> Array:
    """Return the means of messages over the micro-batches; what is not known is usual, or 0.

    Parameters
    ----------
    transfers_ms : array, shape [..., 2, S − 1, N]
        NaN: not known.
    """
    known = np.isfinite(transfers_ms)
    total = np.where(known, transfers_ms, 0).sum(axis=-1)
    count = known.sum(axis=-1)
    mean: Array = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    if np.isnan(mean).any() and np.isfinite(mean).any():
        mean = np.where(np.isnan(mean), np.nanmedian(mean), mean)
    return np.nan_to_num(mean)
