"""Delays that change while iterations run: what a link's delay is, at which time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pipesim.errors import ScenarioError
from pipesim.scenario import LARGEST, Array

__all__ = ["DelayTrace"]


@dataclass(frozen=True, eq=False, init=False)
class DelayTrace:
    """Delays of every link and direction over time, constant between the times of changes.

    Parameters
    ----------
    times_ms : array_like, shape [K]
        When the delays change, in increasing order. Before the first time there is no delay.
    delay_ms : array_like, shape [K, S−1] or [K, S−1, 2]
        The delays from each of these times on; a number for a link counts in both directions.

    Raises
    ------
    ScenarioError
        Times that do not increase, or delays of another shape or that are no times.

    Examples
    --------
    Link 1 of three stages has 20 ms from 100 ms on, and 5 ms from 250 ms on:

    >>> trace = DelayTrace([100, 250], [[0, 20], [0, 5]])
    >>> [trace.at(time)[1] for time in (0, 99.9, 100, 300)]
    [(0.0, 0.0), (0.0, 0.0), (20.0, 20.0), (5.0, 5.0)]
    """

    times_ms: Array
    delay_ms: Array

    def __init__(self, times_ms: ArrayLike, delay_ms: ArrayLike) -> None:
        try:
            times = np.array(times_ms, dtype=np.float64)
            delays = np.array(delay_ms, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ScenarioError("a delay trace must hold numbers, in rows of one length") from None
        if times.ndim != 1 or not (np.abs(times) <= LARGEST).all() or (np.diff(times) <= 0).any():
            raise ScenarioError("the times of a delay trace must be numbers that increase")
        if delays.ndim == 2:
            delays = np.repeat(delays[..., None], 2, axis=2)
        if delays.ndim != 3 or delays.shape[::2] != (len(times), 2):
            raise ScenarioError(
                f"the delays of a trace have shape {list(delays.shape)}, expected "
                f"[{len(times)}, links] or [{len(times)}, links, 2]"
            )
        if not ((delays >= 0) & (delays <= LARGEST)).all():
            raise ScenarioError("the delays of a trace must be times of at least 0")
        for field, array in {"times_ms": times, "delay_ms": delays}.items():
            array.setflags(write=False)
            object.__setattr__(self, field, array)
        healthy = ((0.0, 0.0),) * delays.shape[1]
        rows = [tuple((down, up) for down, up in row) for row in delays.tolist()]
        object.__setattr__(self, "_times", times.tolist())
        object.__setattr__(self, "_rows", [healthy, *rows])

    @property
    def links(self) -> int:
        """Number of links, S − 1."""
        return int(self.delay_ms.shape[1])

    def at(self, time_ms: float) -> tuple[tuple[float, float], ...]:
        """Return the delays at a time, [link][direction]."""
        row: tuple[tuple[float, float], ...] = self._rows[bisect_right(self._times, time_ms)]  # type: ignore[attr-defined]
        return row
