"""What came of a job: its pace, its plans, and how soon slow links were known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipesim.adapt.detections import Detections
from pipesim.adapt.loop import Iteration, Job
from pipesim.adapt.strategy import Strategy
from pipesim.scenario import Array

__all__ = ["RANGES_MS", "Outcome", "Pace"]

RANGES_MS = (0.0, 10.0, 30.0, 60.0)
"""Upper ends of the ranges of the slowest link's delay; the last has none."""

_MINUTE = 60_000.0


@dataclass(frozen=True)
class Pace:
    """The iterations that started while the slowest link's delay was in a range.

    Attributes
    ----------
    above_ms, upto_ms : float
        The range; the first is 0 to 0, the last has no upper end.
    share : float
        Part of the job's time.
    per_minute : float
        Iterations a minute in it; NaN where there were none.
    """

    above_ms: float
    upto_ms: float
    share: float
    per_minute: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a job under one strategy.

    Attributes
    ----------
    job : Job
        What happened.
    strategy : Strategy
        What it did about it.
    adapts : bool
        Whether slow links led to other plans.
    iterations : sequence of Iteration
        All that ended.
    """

    job: Job
    strategy: Strategy
    adapts: bool
    iterations: Sequence[Iteration]

    @cached_property
    def start_ms(self) -> Array:
        """When each iteration started, shape [I]."""
        return np.array([one.start_ms for one in self.iterations])

    @cached_property
    def duration_ms(self) -> Array:
        """How long each took, shape [I]."""
        return np.array([one.duration_ms for one in self.iterations])

    @cached_property
    def elapsed_ms(self) -> float:
        """How long the job ran; to the end of the trace where a link failed for ever."""
        return self.job.end if self.stalled else self._ended_ms

    @property
    def stalled(self) -> bool:
        """Whether an iteration never ended, because a link failed for ever."""
        early = self.job.trace.by == "time" and self._ended_ms < self.job.end
        return early and len(self.iterations) != self.job.most

    @property
    def _ended_ms(self) -> float:
        return self.iterations[-1].end_ms if self.iterations else 0.0

    @property
    def per_minute(self) -> float:
        """Iterations a minute."""
        return len(self.iterations) / self.elapsed_ms * _MINUTE if self.elapsed_ms else 0.0

    def quantile_ms(self, q: float) -> float:
        """Return a quantile of the iterations' times; NaN without iterations."""
        return float(np.quantile(self.duration_ms, q)) if self.iterations else float("nan")

    @property
    def replans(self) -> int:
        """How often plans were swapped."""
        return sum(one.swapped for one in self.iterations)

    @cached_property
    def paces(self) -> tuple[Pace, ...]:
        """Time and pace in each range of the slowest link's delay."""
        slowest = np.array(
            [max(map(max, self._delays(one)), default=0.0) for one in self.iterations]
        )
        ends = (*RANGES_MS, np.inf)
        which = np.searchsorted(RANGES_MS, slowest)
        found = []
        for level, upto_ms in enumerate(ends):
            times_ms = self.duration_ms[which == level] if len(which) else self.duration_ms
            spent_ms = float(times_ms.sum())
            pace = len(times_ms) / spent_ms * _MINUTE if spent_ms else float("nan")
            total_ms = float(self.duration_ms.sum())
            share = spent_ms / total_ms if total_ms else 0.0
            found.append(Pace(ends[max(level - 1, 0)], upto_ms, share, pace))
        return tuple(found)

    def _delays(self, one: Iteration) -> tuple[tuple[float, float], ...]:
        trace = self.job.trace
        return trace.at(one.start_ms if trace.by == "time" else float(one.index))

    # -- detection --------------------------------------------------------------------------

    @cached_property
    def detections(self) -> Detections | None:
        """How soon slow links were known; None where nobody looked."""
        if not self.adapts or self.strategy.knows == "delays" or not self.iterations:
            return None
        return Detections.of(self.job.trace, self.iterations)

    # -- what it cost -----------------------------------------------------------------------

    @property
    def costs_ms(self) -> dict[str, float]:
        """What adaptation cost in all.

        ``profiling``, ``switching`` and ``delegation`` are parts of the iterations; ``planning``
        goes on beside them.
        """
        return {
            "profiling": sum(one.profile_ms for one in self.iterations),
            "planning": sum(one.planning_ms for one in self.iterations),
            "switching": sum(one.switch_ms for one in self.iterations),
            "delegation": sum(one.plan.delegation_ms for one in self.iterations),
        }

    @cached_property
    def peak_activations(self) -> Array:
        """Most activations held for each device at any time, shape [D]."""
        scenario = self.job.scenario
        if not self.iterations:
            return np.zeros(scenario.devices)
        peaks: Array = np.max([one.peak_activations for one in self.iterations], axis=0)
        return peaks

    @property
    def host_activations(self) -> Array:
        """Most activations beyond each device's limit, in host memory, at any time, shape [D]."""
        return np.maximum(0.0, self.peak_activations - self.job.scenario.activation_limit)

    @property
    def host_bytes(self) -> Array:
        """The same in bytes, shape [D]."""
        return self.host_activations * self.job.scenario.activation_bytes
