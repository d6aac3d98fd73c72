"""How soon slow links were known: what a job knew, beside what was so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipesim.adapt.loop import Iteration
from pipesim.delays import DelayTrace
from pipesim.scenario import Array

__all__ = ["LEAST_MS", "Detections"]

LEAST_MS = 1.0
"""Links with shorter delays count as healthy."""


@dataclass(frozen=True, eq=False)
class Detections:
    """When slow links became known.

    Attributes
    ----------
    delays_ms : array
        From each onset that was known in time to the end of the iteration that told it.
    missed : int
        Onsets of links that had recovered before.
    false_alarms : int
        Times that a link became known as slow in an iteration that delayed none of its messages.
    recovery : array of int
        After each recovery of all links, iterations that still started with another plan than that
        for healthy links.
    """

    delays_ms: Array
    missed: int
    false_alarms: int
    recovery: NDArray[np.int64]

    @property
    def mean_ms(self) -> float | None:
        """The mean delay; None without an onset that was known in time."""
        return float(self.delays_ms.mean()) if len(self.delays_ms) else None

    @classmethod
    def of(cls, trace: DelayTrace, iterations: Sequence[Iteration]) -> Detections:
        """Compare what a job knew with what was so."""
        starts = np.array([one.start_ms for one in iterations])
        ends = np.array([one.end_ms for one in iterations])
        known = np.array([one.estimate_ms > 0 for one in iterations])
        delayed = np.array([one.delayed for one in iterations])
        before = np.concatenate([np.zeros_like(known[:1]), known[:-1]])
        by_time = trace.by == "time"
        at = trace.starts if by_time else _when(trace.starts, starts)
        was, slow = (states >= LEAST_MS for states in (trace.states_ms[:-1], trace.delay_ms))
        delays, missed = [], 0
        for k, link, way in np.argwhere(slow & ~was).tolist():
            if at[k] >= ends[-1]:
                continue
            later = np.flatnonzero(~slow[k:, link, way])
            over = at[k + later[0]] if len(later) else np.inf
            first = int(np.searchsorted(ends, at[k], side="right"))
            told = first + np.flatnonzero(known[first:, link, way])[:1]
            if first and known[first - 1, link, way]:
                delays.append(0.0)
            elif len(told) and starts[told[0]] < over:
                delays.append(float(ends[told[0]] - at[k]))
            else:
                missed += 1
        return cls(
            np.array(delays),
            missed,
            int((known & ~before & ~delayed).sum()),
            _recovery(at, slow, iterations),
        )


def _when(indices: Array, starts: Array) -> Array:
    """When iterations of these indices start; those that never ran: never."""
    times: Array = np.append(starts, np.inf)[np.clip(indices, 0, len(starts)).astype(int)]
    return times


def _recovery(
    at: Array, slow: NDArray[np.bool_], iterations: Sequence[Iteration]
) -> NDArray[np.int64]:
    healthy: NDArray[np.bool_] = np.logical_not(slow.any(axis=(1, 2)))
    starts = np.array([one.start_ms for one in iterations])
    other = np.array([bool(one.plan.delay_ms.any()) for one in iterations])
    counts = []
    for k in (1 + np.flatnonzero(healthy[1:] & ~healthy[:-1])).tolist():
        end = at[k + 1] if k + 1 < len(at) else np.inf
        window = other[(starts >= at[k]) & (starts < end)]
        back = np.flatnonzero(~window)
        if len(back):
            counts.append(int(back[0]))
    return np.array(counts, dtype=np.int64)
