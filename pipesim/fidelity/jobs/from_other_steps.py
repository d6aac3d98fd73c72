"""A step of a job, predicted from its other steps only.

Every operator takes the median of what it took in the other steps, every message as well, and the
pipelines run in the order that most other steps had. Beside it stands the naive prediction: the
median length of the other steps. Where all steps do the same work the naive one is hard to beat:
it has in it what the medians of single operators leave out, such as pauses that move about. What
the simulation has to offer is that something in it can be changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from pipesim.fidelity.jobs.job import Job, Times
from pipesim.scenario import Array
from pipesim.schedule import Schedule

__all__ = ["FromOtherSteps", "from_other_steps", "medians_of_others"]


@dataclass(frozen=True, eq=False)
class FromOtherSteps:
    """How far off predictions of steps from the other steps are.

    Parameters
    ----------
    steps : tuple of int
        Their numbers.
    measured_ms, predicted_ms, naive_ms : array, shape [steps]
        The span of the slowest worker's pipeline: as measured, simulated with the medians of the
        other steps' operators, and the median of the other steps' spans.
    """

    steps: tuple[int, ...]
    measured_ms: Array
    predicted_ms: Array
    naive_ms: Array

    def error(self, predicted_ms: Array) -> Array:
        """Return relative errors, signed, shape [steps]."""
        result: Array = predicted_ms / self.measured_ms - 1
        return result

    @property
    def mape(self) -> float:
        """Mean absolute error of the simulation, as a fraction."""
        return float(np.abs(self.error(self.predicted_ms)).mean())

    @property
    def naive_mape(self) -> float:
        """Mean absolute error of the naive prediction."""
        return float(np.abs(self.error(self.naive_ms)).mean())

    def as_dict(self) -> dict[str, object]:
        """Return it in JSON types; errors are fractions."""
        return {
            "mape": self.mape,
            "bias": float(self.error(self.predicted_ms).mean()),
            "naive_mape": self.naive_mape,
            "naive_bias": float(self.error(self.naive_ms).mean()),
            "rows": [
                {"step": step, "measured_ms": measured, "predicted_ms": own, "naive_ms": naive}
                for step, measured, own, naive in zip(
                    self.steps,
                    self.measured_ms.tolist(),
                    self.predicted_ms.tolist(),
                    self.naive_ms.tolist(),
                    strict=True,
                )
            ],
        }


def from_other_steps(job: Job) -> FromOtherSteps | None:
    """Predict each step of a job from the others; None where there is one step only."""
    if len(job.steps) < 2:
        return None
    # Whether messages block is told from all steps: it is no time of any of them.
    transport = job.transport
    orders = replace(job, schedules=_orders_of_others(job))
    orders.__dict__["transport"] = transport
    times = Times(
        medians_of_others(job.times.operators_ms), medians_of_others(job.times.messages_ms)
    )
    measured = job.measured_ms.max(axis=1)
    return FromOtherSteps(job.steps, measured, orders.steps_ms(times), medians_of_others(measured))


def _orders_of_others(job: Job) -> list[list[Schedule]]:
    """Return the commonest order of each worker in all steps but one, shape [steps][W]."""
    counts = [Counter(row[w] for row in job.schedules) for w in range(len(job.workers))]
    return [
        [
            max(of_worker, key=lambda order, own=own: of_worker[order] - (order == own))  # type: ignore[misc]
            for of_worker, own in zip(counts, row, strict=True)
        ]
        for row in job.schedules
    ]


def medians_of_others(values: Array) -> Array:
    """Return for each entry the median over all others along the first axis.

    Parameters
    ----------
    values : array, shape [n, …]
        At least two.

    Examples
    --------
    >>> medians_of_others(np.array([1.0, 2.0, 3.0, 10.0])).tolist()
    [3.0, 3.0, 2.0, 2.0]
    """
    ascending = np.sort(values, axis=0)
    place = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    others = len(values) - 1
    # In what remains, entries from the own place on move up by one.
    low, high = (
        np.take_along_axis(ascending, np.where(place <= middle, middle + 1, middle), axis=0)
        for middle in ((others - 1) // 2, others // 2)
    )
    result: Array = (low + high) / 2
    return result
