"""What a job's stragglers cost it, all together and one part at a time.

The published what-if analysis (*Understanding Stragglers in Large Model Training Using What-if
Analysis*) simulates a job twice: with the measured durations, and *ideally*, with every operator
replaced by the mean of its kind and every communication by the median of its kind, over all
steps, workers and stages. The ratio of both mean step times is the job's slowdown. Two shares are
told of each part of the job (a stage, a worker, a rank, a kind of operation):

- *alone*: the slowdown if only this part keeps its measured durations and all else is ideal;
- *healed*: which part of the lost time comes back if only this part becomes ideal. Both published
  figures are of this sort: M_S of the last stage, M_W of the slowest 3 % of the ranks.

A message belongs to the device that receives it, as the published analysis has it: what waits for
it runs there. A stage that is faster than the mean is slowed down by healing, and its share is
below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipesim.fidelity.jobs.healing import KINDS, Cells, Healing, lost
from pipesim.fidelity.jobs.job import Job
from pipesim.fidelity.jobs.whole_step import measured_durations, measured_steps_ms
from pipesim.formats.production import ProductionTrace
from pipesim.scenario import Array

__all__ = ["WhatIf", "what_if"]

_SLOWEST = 0.03
"""Part of the ranks that M_W heals."""


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What stragglers cost a job.

    Parameters
    ----------
    steps, workers : tuple of int
        Their numbers; step times below are means over these steps.
    measured_ms : float
        From the first to the last operation of a step.
    step_ms : float
        The same simulated, without the gaps that nothing explains (launch delays).
    ideal_ms : float
        Simulated without stragglers.
    healed_stages, healed_workers, healed_ranks : array, shape [D], [W], [D, W]
        Share of the lost time that comes back if only this one is ideal. Ranks are device by
        device, as they stand in a pipeline; plain pipelines have a stage on each.
    healed_kinds : mapping of str to float
        The same by kind of operation.
    alone_stages, alone_workers : array, shape [D], [W]
        The slowdown if all others are ideal.
    slowest : tuple of tuple of int
        Device and worker, by position, of the slowest 3 % of the ranks, at least one.
    healed_slowest : float
        Share that comes back if these are ideal: M_W.
    """

    steps: tuple[int, ...]
    workers: tuple[int, ...]
    measured_ms: float
    step_ms: float
    ideal_ms: float
    healed_stages: Array
    healed_workers: Array
    healed_ranks: Array
    healed_kinds: Mapping[str, float]
    alone_stages: Array
    alone_workers: Array
    slowest: tuple[tuple[int, int], ...]
    healed_slowest: float

    @property
    def slowdown(self) -> float:
        """How many times as long as the ideal step the step takes."""
        return self.step_ms / self.ideal_ms

    @property
    def attributed(self) -> bool:
        """Whether enough is lost to say where; if not, all shares are 0."""
        return lost(self.step_ms, self.ideal_ms)

    def as_dict(self) -> dict[str, object]:
        """Return it in JSON types; shares are fractions of the lost time."""
        return {
            "slowdown": self.slowdown,
            "ideal_ms": self.ideal_ms,
            "step_ms": self.step_ms,
            "measured_ms": self.measured_ms,
            "attribution": {
                "workers_of": list(self.workers),
                "stages": self.healed_stages.tolist(),
                "workers": self.healed_workers.tolist(),
                "ranks": self.healed_ranks.tolist(),
                "kinds": dict(self.healed_kinds),
                "slowest_ranks": {
                    "ranks": [[device, self.workers[w]] for device, w in self.slowest],
                    "share": self.healed_slowest,
                },
            },
            "alone": {
                "stages": self.alone_stages.tolist(),
                "workers": self.alone_workers.tolist(),
            },
        }


def what_if(
    trace: ProductionTrace, job: Job, report: Callable[[str], None] = lambda _: None
) -> WhatIf:
    """Run a job without its stragglers: all of them, and one part at a time.

    Parameters
    ----------
    trace : ProductionTrace
        The trace.
    job : Job
        The job that it shows.
    report : callable
        Told what is being simulated.
    """
    report("the job as it is, and without stragglers")
    of = Healing(job, measured_durations(trace, job))
    shape = devices, workers = max(of.placement) + 1, len(job.workers)

    def ranks(device: int | None = None, worker: int | None = None) -> Cells:
        """Those of a device, of a worker, the one of both, or all."""
        cells = np.zeros(shape, dtype=bool)
        cells[
            slice(None) if device is None else device, slice(None) if worker is None else worker
        ] = True
        return cells

    report("the job with one stage or one worker at a time healed")
    alone_stages = np.array([of.alone(ranks(device=d)) for d in range(devices)])
    alone_workers = np.array([of.alone(ranks(worker=w)) for w in range(workers)])
    score = np.minimum.outer(alone_stages, alone_workers)
    most = int(np.ceil(_SLOWEST * score.size))
    slowest = np.zeros(shape, dtype=bool)
    slowest.flat[np.argsort(-score, axis=None, kind="stable")[:most]] = True
    healed_stages = np.array([of.healed(ranks(device=d)) for d in range(devices)])
    healed_workers = np.array([of.healed(ranks(worker=w)) for w in range(workers)])
    report("the job with one rank at a time healed")
    healed_ranks = np.array(
        [[of.healed(ranks(d, w)) for w in range(workers)] for d in range(devices)]
    )
    return WhatIf(
        job.steps,
        job.workers,
        float(measured_steps_ms(trace, job).mean()),
        of.step_ms,
        of.ideal_ms,
        healed_stages,
        healed_workers,
        healed_ranks,
        {kind: of.healed(ranks(), kind) for kind in KINDS},
        alone_stages,
        alone_workers,
        tuple((int(d), int(w)) for d, w in np.argwhere(slowest)),
        of.healed(slowest),
    )
