"""A whole step of a job: its pipelines, and what the ranks do before and after them.

The pipelines are the engine's. Around them, parameters are gathered before the first forward, and
gradients reduced after the last backward until the optimizer has run; most of it waits for other
ranks. Of this only the longest path counts, so that a stage has one time before its first forward
and one after its last backward.

The order is that of the published what-if analysis (*Understanding Stragglers in Large Model
Training Using What-if Analysis*). Messages block nobody, and nothing stands between an operation
and what it waits for: there are no launch delays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.orders import OrderEvaluator
from pipesim.fidelity.jobs.job import Job, Times, delays_ms, scenario_of
from pipesim.formats.production import ProductionTrace
from pipesim.formats.production.outside import outside_ms
from pipesim.scenario import Array
from pipesim.schedule import Schedule

__all__ = ["Durations", "measured_durations", "measured_steps_ms", "pipeline_ends_ms", "steps_ms"]


@dataclass(frozen=True, eq=False)
class Durations:
    """What everything in a step takes.

    Parameters
    ----------
    times : Times
        In the pipelines.
    outside : mapping of str to array, shape [steps, W, D, K]
        Outside them, see :mod:`pipesim.formats.production.outside`; NaN: there is none.
    """

    times: Times
    outside: Mapping[str, Array]

    def of(self, workers: NDArray[np.int_]) -> Durations:
        """Those of some workers, by position."""
        times = self.times
        return Durations(
            Times(times.operators_ms[:, workers], times.messages_ms[:, workers]),
            {name: own[:, workers] for name, own in self.outside.items()},
        )


def measured_durations(trace: ProductionTrace, job: Job) -> Durations:
    """Return what everything took in the steps of a job that a trace shows.

    An operation that is missing in some steps takes there what it usually takes.
    """
    steps = np.searchsorted(trace.steps, job.steps)
    workers = np.searchsorted(trace.workers, job.workers)
    outside = {}
    for name, all_ms in outside_ms(trace).items():
        own = all_ms[np.ix_(steps, workers)]
        some = np.isfinite(own).any(axis=0)
        if not some.any():  # it is in other steps only
            continue
        usual = np.full(own.shape[1:], np.nan)
        usual[some] = np.nanmedian(own[:, some], axis=0)
        outside[name] = np.where(np.isnan(own), usual, own)
    return Durations(job.times, outside)


def measured_steps_ms(trace: ProductionTrace, job: Job) -> Array:
    """Return how long each step of a job took, launch delays included, shape [steps].

    From the first start to the last end of any operation that was read.
    """
    steps = np.searchsorted(trace.steps, job.steps)
    workers = np.searchsorted(trace.workers, job.workers)
    grid = trace.grid[np.ix_(steps, workers)]
    starts, ends = (
        np.array(bounds)[grid]
        for bounds in (
            [one.start_ms.min() for one in trace.iterations],
            [one.end_ms.max() for one in trace.iterations],
        )
    )
    rows = trace.outside[trace.outside["dp_rank"].isin(job.workers)].groupby("step")
    first = rows["start_ms"].min().reindex(list(job.steps)).to_numpy()
    last = rows["end_ms"].max().reindex(list(job.steps)).to_numpy()
    result: Array = np.fmax(ends.max(axis=1), last) - np.fmin(starts.min(axis=1), first)
    return result


def pipeline_ends_ms(
    job: Job, durations: Durations, workers: NDArray[np.int_] | None = None
) -> Array:
    """Return when the last operator of each stage ends, from the beginning of the step on.

    Parameters
    ----------
    job : Job
        Whose orders the operators run in.
    durations : Durations
        What everything takes.
    workers : array of int, shape [W]
        Whose durations these are, by position. Default: of all.

    Returns
    -------
    array, shape [steps, W, S]
    """
    times = durations.times
    count, own, _, stages, _ = times.operators_ms.shape
    whose = range(own) if workers is None else workers.tolist()
    groups: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for t, w in np.ndindex(count, own):
        groups[job.schedules[t][whose[w]]].append((t, w))
    result = np.empty((count, own, stages))
    for schedule, group in groups.items():
        assert isinstance(schedule, Schedule)
        at = tuple(np.array(group).T)
        one = scenario_of(schedule, times, *group[0])
        result[at] = OrderEvaluator(one).stage_ends_ms(
            schedule,
            forward_ms=times.operators_ms[at][:, 0],
            fused_backward_ms=times.operators_ms[at][:, 1],
            latency_ms=delays_ms(schedule, times.messages_ms[at]),
        )
    return _before_ms(durations, _placement(job))[..., None] + result


def steps_ms(job: Job, outside: Mapping[str, Array], ends_ms: Array) -> Array:
    """Return how long each step takes, shape [steps].

    Parameters
    ----------
    job : Job
        Whose step it is.
    outside : mapping of str to array
        What all its workers do around their pipelines, see :class:`Durations`.
    ends_ms : array, shape [steps, W, S]
        The ends of their pipelines, see :func:`pipeline_ends_ms`.
    """
    result: Array = (ends_ms + _after_ms(outside, _placement(job))).max(axis=(1, 2))
    return result


def _placement(job: Job) -> Sequence[int]:
    return job.schedules[0][0].placement


def _chunks(placement: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return device, number on it, and number of stages there, of each stage."""
    return [
        (device, placement[:stage].count(device), placement.count(device))
        for stage, device in enumerate(placement)
    ]


def _before_ms(durations: Durations, placement: Sequence[int]) -> Array:
    """Return when each worker's pipeline begins, shape [steps, W].

    Parameters of a device's stages are gathered one after the other. A pipeline begins so that no
    stage waits for them when its first activations arrive.
    """
    times = durations.times
    if "params-all-gather" not in durations.outside:
        return np.zeros(times.operators_ms.shape[:2])
    gathered = np.nan_to_num(durations.outside["params-all-gather"]).cumsum(axis=-1)
    most = gathered.shape[-1]
    there = np.stack(
        [gathered[..., d, ((c + 1) * most - 1) // count] for d, c, count in _chunks(placement)],
        axis=-1,
    )
    first = times.operators_ms[:, :, 0, :-1, 0] + times.messages_ms[:, :, 0]
    arrives = np.zeros(there.shape)
    arrives[..., 1:] = first.cumsum(axis=-1)
    result: Array = (there - arrives).max(axis=-1)
    return result


def _after_ms(outside: Mapping[str, Array], placement: Sequence[int]) -> Array:
    """Return what follows the last backward of each stage up to the end of the step, [steps, W, S].

    A device frees memory, reduces the gradients of layer norms and embeddings, then all others,
    clips them and takes the optimizer's step. Where some gradients are reduced separately, the
    others are reduced beside the pipeline, each stage's after its last backward.

    It is gone through from its end; where ranks wait for each other the longest time counts.
    """

    def each(name: str) -> list[Array]:
        """The operations of a name, each [steps, W, D]."""
        return list(np.moveaxis(np.nan_to_num(outside[name]), -1, 0)) if name in outside else []

    of_device = np.zeros((1, 1, max(placement) + 1))
    after = sum(each("optimizer"), of_device)
    for own in each("optimizer-clip-main-grad"):
        after = (own + after).max(axis=(1, 2), keepdims=True)
    reduced, separate = each("grads-reduce-scatter"), each("separate-grads-all-reduce")
    for own in reversed(separate or reduced):
        after = (own + after).max(axis=1, keepdims=True)
    if "embedding-grads-all-reduce" in outside:
        own = outside["embedding-grads-all-reduce"].sum(axis=-1)
        together = np.fmax.reduce(own + after, axis=-1, keepdims=True)
        after = np.where(np.isnan(own), after, together)
    after = sum(each("layernorm-grads-all-reduce"), of_device + after)
    freed = sum(each("gc"), after)
    if not separate:
        return freed[..., list(placement)]
    of_stage = []
    for device, chunk, count in _chunks(placement):
        path = after
        for own in reversed(reduced[(count - 1 - chunk) * len(reduced) // count :]):
            path = (own + path).max(axis=1, keepdims=True)
        of_stage.append(np.maximum(path, freed)[..., device])
    return np.stack(np.broadcast_arrays(*of_stage), axis=-1)
