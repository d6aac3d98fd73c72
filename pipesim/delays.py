"""Delays that change while iterations run: what a link's delay is, from when on."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from pipesim.errors import ScenarioError
from pipesim.scenario import LARGEST, Array

__all__ = ["By", "DelayTrace"]

By: TypeAlias = Literal["time", "iteration"]
"""What a trace counts in: milliseconds, or iterations of the job that it delays."""


@dataclass(frozen=True, eq=False, init=False)
class DelayTrace:
    """Delays of every link and direction, constant from one change to the next.

    Parameters
    ----------
    starts : array_like, shape [K]
        When the delays change, in increasing order: in ms, or iterations from 0. Before the first
        change there is no delay.
    delay_ms : array_like, shape [K, S−1] or [K, S−1, 2]
        The delays from each of these on; a number for a link counts in both directions. ``inf``:
        the link has failed. What is sent over it waits until it has recovered.
    by : {"time", "iteration"}
        What ``starts`` and ``end`` count.
    end : float, optional
        Where the trace ends, after 0 and the last change. Default: nowhere.

    Raises
    ------
    ScenarioError
        Changes that do not increase, or are no numbers of iterations; delays of another shape or
        that are no times; a link that fails for whole iterations, which would never end.

    Examples
    --------
    Link 1 of three stages has 20 ms from 100 ms on, and 5 ms from 250 ms on:

    >>> trace = DelayTrace([100, 250], [[0, 20], [0, 5]])
    >>> [trace.at(time)[1] for time in (0, 99.9, 100, 300)]
    [(0.0, 0.0), (0.0, 0.0), (20.0, 20.0), (5.0, 5.0)]
    """

    starts: Array
    delay_ms: Array
    by: By
    end: float | None

    def __init__(
        self,
        starts: ArrayLike,
        delay_ms: ArrayLike,
        *,
        by: By = "time",
        end: float | None = None,
    ) -> None:
        try:
            times = np.array(starts, dtype=np.float64)
            delays = np.array(delay_ms, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ScenarioError("a delay trace must hold numbers, in rows of one length") from None
        if by not in get_args(By):
            raise ScenarioError(f"a delay trace counts by {' or '.join(get_args(By))}, not {by!r}")
        if times.ndim != 1 or not (np.abs(times) <= LARGEST).all() or (np.diff(times) <= 0).any():
            raise ScenarioError("the times of a delay trace must be numbers that increase")
        if delays.ndim == 2:
            delays = np.repeat(delays[..., None], 2, axis=2)
        if delays.ndim != 3 or delays.shape[::2] != (len(times), 2):
            raise ScenarioError(
                f"the delays of a trace have shape {list(delays.shape)}, expected "
                f"[{len(times)}, links] or [{len(times)}, links, 2]"
            )
        if not ((delays >= 0) & ((delays <= LARGEST) | (delays == np.inf))).all():
            raise ScenarioError("the delays of a trace must be times of at least 0")
        if by == "iteration" and not np.isfinite(delays).all():
            raise ScenarioError("a link fails at a time: an iteration without it would never end")
        if by == "iteration" and (times % 1 != 0).any():
            raise ScenarioError("a trace by iteration must change at whole iterations")
        if end is not None and not (end <= LARGEST and end > times.max(initial=0.0)):
            raise ScenarioError(f"a trace must end after 0 and its last change, not at {end:g}")
        if by == "iteration" and end is not None and end % 1 != 0:
            raise ScenarioError("a trace by iteration must end at a whole iteration")
        for field, array in {"starts": times, "delay_ms": delays}.items():
            array.setflags(write=False)
            object.__setattr__(self, field, array)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "end", None if end is None else float(end))
        rows = [tuple((down, up) for down, up in row) for row in self.states_ms.tolist()]
        object.__setattr__(self, "_starts", times.tolist())
        object.__setattr__(self, "_rows", rows)

    @property
    def links(self) -> int:
        """Number of links, S − 1."""
        return int(self.delay_ms.shape[1])

    @property
    def states_ms(self) -> Array:
        """The delays before the first change, which are none, and from each on: [K + 1, S−1, 2]."""
        return np.concatenate([np.zeros((1, self.links, 2)), self.delay_ms])

    def at(self, point: float) -> tuple[tuple[float, float], ...]:
        """Return the delays at a time in ms, or in an iteration: [link][direction]."""
        row: tuple[tuple[float, float], ...] = self._rows[bisect_right(self._starts, point)]  # type: ignore[attr-defined]
        return row

    def next_change(self, point: float) -> float:
        """Return the first change after a point; infinite if there is none."""
        index = bisect_right(self._starts, point)  # type: ignore[attr-defined]
        return float(self.starts[index]) if index < len(self.starts) else float("inf")

    def sliced(self, start: float = 0.0, end: float | None = None) -> DelayTrace:
        """Return a window of the trace, moved to begin at 0.

        Parameters
        ----------
        start, end : float
            In ms, or iterations. Default: from 0, to the end of the trace.

        Raises
        ------
        ScenarioError
            The window is empty, or starts after the end of the trace.

        Examples
        --------
        >>> window = DelayTrace([100, 250], [[0, 20], [0, 5]]).sliced(200, 300)
        >>> window.starts.tolist(), window.at(0)[1], window.at(60)[1], window.end
        ([0.0, 50.0], (20.0, 20.0), (5.0, 5.0), 100.0)
        """
        end = min((x for x in (end, self.end) if x is not None), default=None)
        if end is not None and not start < end:
            raise ScenarioError(f"there is nothing of the trace from {start:g} to {end:g}")
        inside = (self.starts > start) & (self.starts < (np.inf if end is None else end))
        return DelayTrace(
            [0.0, *(self.starts[inside] - start)],
            np.concatenate([[self.at(start)], self.delay_ms[inside]]),
            by=self.by,
            end=None if end is None else end - start,
        )
