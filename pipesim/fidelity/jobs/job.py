"""A measured data-parallel job, to be run again with other operator and message times.

Each worker (data-parallel rank) runs its own pipeline, in its measured order. Workers meet after
each step, in the reduction of the gradients: the job's step is that of its slowest worker.

Messages take what they took once both ends were there, the mean over the micro-batches of a
step. They either block nobody (*ideal*) or hold up both devices (Megatron's *exchange*): of the
two, the one is taken that comes closer to the measured steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipesim.engine import Runs
from pipesim.errors import DeadlockError
from pipesim.formats.production import ProductionTrace
from pipesim.formats.production.workers import mean_known, usual_steps
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule

__all__ = ["Job", "Times", "delays_ms", "job_of", "scenario_of"]

_MOST_OPERATORS = 2_000_000
"""Of more, only steps that lie evenly among all are run again: what-ifs take seconds then."""

_GOOD_ENOUGH = 0.02
"""Where ideal messages come this close to the measured steps, no other transport is tried."""


@dataclass(frozen=True, eq=False)
class Times:
    """What operators and messages take in each step of each worker.

    Parameters
    ----------
    operators_ms : array, shape [steps, W, 2, S, N]
        Of forwards and full backwards.
    messages_ms : array, shape [steps, W, 2, S − 1]
        Of forward and backward messages over each link; 0 where nothing is known.
    """

    operators_ms: Array
    messages_ms: Array


@dataclass(frozen=True, eq=False)
class Job:
    """A job as it was measured, over steps in which all workers are complete.

    Parameters
    ----------
    steps, workers : tuple of int
        Their numbers.
    times : Times
        As measured.
    measured_ms : array, shape [steps, W]
        The span of each worker's pipeline in each step.
    schedules : sequence of Schedule, shape [steps][W]
        The order in which each ran.
    usual : array of bool, shape [steps]
        The steps that take about as long as most.
    left_out : tuple of int
        Complete steps that are not run again because there are very many.
    """

    steps: tuple[int, ...]
    workers: tuple[int, ...]
    times: Times
    measured_ms: Array
    schedules: Sequence[Sequence[Schedule]]
    usual: NDArray[np.bool_]
    left_out: tuple[int, ...]

    @cached_property
    def transport(self) -> str:
        """``ideal`` or ``exchange``: over which the steps come out closer to the measured ones."""
        ideal = self._error("ideal")
        plain = self.schedules[0][0].placement == tuple(range(self.schedules[0][0].stages))
        if ideal <= _GOOD_ENOUGH or not plain or not self.times.messages_ms.any():
            return "ideal"
        try:
            return "exchange" if self._error("exchange") < ideal else "ideal"
        except DeadlockError:
            return "ideal"

    def _error(self, over: str) -> float:
        job_ms = self._spans_ms(self.times, over).max(axis=1)
        measured = self.measured_ms.max(axis=1)
        return float(np.median(np.abs(job_ms / measured - 1)))

    @cached_property
    def spans_ms(self) -> Array:
        """The span of each worker's pipeline in each step, simulated, shape [steps, W]."""
        return self._spans_ms(self.times, self.transport)

    def steps_ms(self, times: Times) -> Array:
        """Return how long each step takes with other times, shape [steps].

        Only workers and steps whose times differ from the measured ones are run.
        """
        same = (times.operators_ms == self.times.operators_ms).all(axis=(2, 3, 4))
        same &= (times.messages_ms == self.times.messages_ms).all(axis=(2, 3))
        spans = self._spans_ms(times, self.transport, ~same)
        result: Array = np.where(same, self.spans_ms, spans).max(axis=1)
        return result

    def _spans_ms(self, times: Times, over: str, needed: NDArray[np.bool_] | None = None) -> Array:
        shape = len(self.steps), len(self.workers)
        cells = np.argwhere(np.ones(shape, dtype=bool) if needed is None else needed)
        groups: dict[Hashable, list[tuple[int, int]]] = {}
        for t, w in cells.tolist():
            groups.setdefault(self.schedules[t][w], []).append((t, w))
        result = np.zeros(shape)
        for schedule, group in groups.items():
            assert isinstance(schedule, Schedule)
            scenarios = [scenario_of(schedule, times, t, w) for t, w in group]
            spans = Runs(schedule, over).makespans_ms(scenarios)
            result[tuple(np.array(group).T)] = spans
        return result


def scenario_of(schedule: Schedule, times: Times, t: int, w: int) -> Scenario:
    """Return the scenario of a worker in a step, both by position, in which nothing blocks."""
    forward, backward = times.operators_ms[t, w]
    return Scenario(
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        placement=schedule.placement,
        forward_ms=forward,
        backward_ms=backward / 2,
        weight_ms=backward / 2,
        fused_backward_ms=backward,
        latency_ms=delays_ms(schedule, times.messages_ms[t, w]),
    )


def delays_ms(schedule: Schedule, messages_ms: Array) -> Array:
    """Return delays of links, shape […, S − 1, 2], over which messages take such times.

    A message takes its time once both its ends are there; inside a device nothing is sent.

    Parameters
    ----------
    schedule : Schedule
        Which says where stages are.
    messages_ms : array, shape […, 2, S − 1]
    """
    devices = np.array(schedule.placement)
    result: Array = np.where(devices[1:] == devices[:-1], 0.0, messages_ms).swapaxes(-1, -2)
    return result


def job_of(trace: ProductionTrace) -> tuple[Job, tuple[str, ...]]:
    """Return the job that a production trace shows, and what to know about it.

    Where no step has all workers complete, it is that of the workers that are.
    """
    notes = []
    grid, workers = trace.grid, list(trace.workers)
    if not (grid >= 0).all(axis=1).any():
        best = int(np.argmax((grid >= 0).sum(axis=1)))
        there = grid[best] >= 0
        missing = [str(w) for w, here in zip(workers, there, strict=True) if not here]
        notes.append(
            f"no step has all workers complete: dp rank {', '.join(missing)} is left out, and "
            "may be slower than the others"
        )
        grid, workers = grid[:, there], [w for w, here in zip(workers, there, strict=True) if here]
    whole = np.flatnonzero((grid >= 0).all(axis=1))
    size = trace.iterations[0].times_ms.size * len(workers)
    most = max(_MOST_OPERATORS // size, 1)
    kept = whole
    if len(whole) > most:
        kept = whole[np.linspace(0, len(whole) - 1, most).round().astype(int)]
        notes.append(f"{most} of {len(whole)} complete steps are run again")
    chosen = [[trace.iterations[i] for i in row] for row in grid[kept]]
    measured = np.array([[one.iteration_ms for one in row] for row in chosen])
    usual, _ = usual_steps(measured.max(axis=1))
    job = Job(
        tuple(trace.steps[t] for t in kept),
        tuple(workers),
        Times(
            np.array([[one.times_ms for one in row] for row in chosen]),
            mean_known(np.array([[one.transfers_ms for one in row] for row in chosen])),
        ),
        measured,
        [[one.schedule for one in row] for row in chosen],
        usual,
        tuple(trace.steps[t] for t in sorted({*whole.tolist()} - {*kept.tolist()})),
    )
    return job, tuple(notes)
