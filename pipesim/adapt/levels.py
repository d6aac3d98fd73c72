"""How long a delay has each of its values: shares of time, and the quantiles over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pipesim.delays import DelayTrace
from pipesim.errors import PipesimError
from pipesim.scenario import Array

__all__ = ["Band", "Levels", "changes", "link_levels", "slow_levels", "slowest_levels"]

_FEW = 12
"""Up to so many levels are shown one by one, more in bands."""

_EDGES_MS = (0.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True)
class Band:
    """A part of the time: with delays above ``over_ms`` and up to ``to_ms``."""

    over_ms: float
    to_ms: float
    share: float


@dataclass(frozen=True, eq=False)
class Levels:
    """The values that a delay has, and for which part of the time.

    Attributes
    ----------
    delay_ms : array, shape [L]
        Distinct and increasing; infinite for a failed link.
    weights : array, shape [L]
        For how long: ms or iterations.
    """

    delay_ms: Array
    weights: Array

    @classmethod
    def of(cls, delay_ms: ArrayLike, weights: ArrayLike) -> Levels:
        """Return the levels of a delay that has these values for so long each.

        Examples
        --------
        >>> levels = Levels.of([0, 20, 0, 5], [30, 10, 50, 10])
        >>> levels.delay_ms.tolist(), levels.share.tolist()
        ([0.0, 5.0, 20.0], [0.8, 0.1, 0.1])
        >>> levels.quantile(0.8), levels.quantile(0.81), levels.while_slow.quantile(0.5)
        (0.0, 5.0, 5.0)
        """
        values, index = np.unique(np.asarray(delay_ms, dtype=np.float64), return_inverse=True)
        durations = np.zeros(len(values))
        np.add.at(durations, index.ravel(), np.ravel(weights))
        return cls(values, durations)

    @property
    def share(self) -> Array:
        """Part of the time of each, shape [L]."""
        total: float = self.weights.sum()
        return self.weights / total

    @property
    def slow_share(self) -> float:
        """Part of the time with any delay."""
        return float(self.share[self.delay_ms > 0].sum())

    @property
    def failed_share(self) -> float:
        """Part of the time without the link."""
        return float(self.share[np.isinf(self.delay_ms)].sum())

    @property
    def largest_ms(self) -> float:
        """The longest delay besides failures; 0 if there is none."""
        return float(self.delay_ms[np.isfinite(self.delay_ms)].max(initial=0.0))

    @property
    def while_slow(self) -> Levels:
        """The levels above 0, of the time with any delay only."""
        slow = self.delay_ms > 0
        return Levels(self.delay_ms[slow], self.weights[slow])

    def quantile(self, part: float) -> float:
        """Return the smallest level that the delay does not exceed for this part of the time.

        Not a number if there is no time.
        """
        if not self.weights.size:
            return float("nan")
        until = np.cumsum(self.weights)
        return float(self.delay_ms[np.searchsorted(until, part * until[-1])])

    def bands(self, edges_ms: Sequence[float] = _EDGES_MS) -> tuple[Band, ...]:
        """Return the share of time of each level, or of bands of levels if there are many.

        Bands end at ``edges_ms``; failed links are a band of their own. Empty ones are left out.

        Examples
        --------
        >>> Levels.of([0, 20], [3, 1]).bands()
        (Band(over_ms=0.0, to_ms=0.0, share=0.75), Band(over_ms=20.0, to_ms=20.0, share=0.25))
        """
        if len(self.delay_ms) <= _FEW:
            pairs = zip(self.delay_ms.tolist(), self.share.tolist(), strict=True)
            return tuple(Band(delay, delay, share) for delay, share in pairs)
        finite = self.delay_ms[np.isfinite(self.delay_ms)]
        edges = [*(edge for edge in edges_ms if edge < finite[-1]), float(finite[-1]), np.inf]
        shares = np.bincount(np.searchsorted(edges, self.delay_ms), self.share, len(edges))
        below = [0.0, *edges[:-2], np.inf]
        return tuple(
            Band(over, to, share)
            for over, to, share in zip(below, edges, shares.tolist(), strict=True)
            if share
        )


def slowest_levels(trace: DelayTrace) -> Levels:
    """Return the levels of the slowest link and direction at each moment, from 0 to the end.

    Raises
    ------
    PipesimError
        The trace has no end.
    """
    delays, weights = _pieces(trace)
    return Levels.of(delays.max(axis=1), weights)


def link_levels(trace: DelayTrace) -> tuple[Levels, ...]:
    """Return the levels of each link, in its slower direction; see :func:`slowest_levels`."""
    delays, weights = _pieces(trace)
    return tuple(Levels.of(column, weights) for column in delays.T)


def slow_levels(trace: DelayTrace) -> Levels:
    """Return the levels of all links together, each while it is slow."""
    delays, weights = _pieces(trace)
    return Levels.of(delays, np.broadcast_to(weights[:, None], delays.shape)).while_slow


def changes(trace: DelayTrace) -> list[int]:
    """Return how often each link's delay changes; what it is at 0 is no change."""
    states = trace.states_ms
    changed = (states[1:] != states[:-1]).any(axis=2)[trace.starts > 0]
    counts: list[int] = changed.sum(axis=0).tolist()
    return counts


def _pieces(trace: DelayTrace) -> tuple[Array, Array]:
    """Delays of each link's slower direction between changes, [K+1, links], and for how long."""
    if trace.end is None:
        raise PipesimError("the trace has no end: say up to where it counts")
    times = np.clip([0.0, *trace.starts, trace.end], 0.0, None)
    lasting = np.diff(times) > 0
    return trace.states_ms[lasting].max(axis=2), np.diff(times)[lasting]
