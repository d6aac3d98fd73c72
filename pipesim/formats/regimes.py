"""Unlike samples, told apart: one median over several levels of a time is the time of none.

Iterations on healthy and on slow links, batch sizes of a ramp-up, workers of which one is slow:
their times lie on levels, each with a little noise around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["levels", "ranges"]

_APART = 1.1
"""Medians of two levels differ by this factor at least: less changes no plan."""

_CLEARLY = 5.0
"""And by this many times the noise. Cut in two, even normal noise is 2.3 of its own apart."""

_NORMAL = 1.4826
"""Standard deviations in a median absolute deviation of normal noise."""


def levels(times: ArrayLike, *, smallest: int = 3) -> NDArray[np.int_]:
    """Number the level of each time, 0 the shortest.

    A level is cut in two where the parts together stray least from their own medians, in the
    logarithm of the times (the natural breaks of Fisher and Jenks), if the medians differ by
    10 % and by five times the noise, which is that on the levels of each part.

    Parameters
    ----------
    times : array-like, shape [n]
        Times above 0, in any order.
    smallest : int
        How few samples make a level; fewer are outliers of the next one. Of few samples, half
        do: the median of two and two is the time of none.

    Returns
    -------
    array of int, shape [n]

    Examples
    --------
    >>> levels([430, 428, 620, 431, 615, 622, 429]).tolist()
    [0, 0, 1, 0, 1, 1, 0]
    >>> levels([90, 180], smallest=1).tolist(), levels([430, 431, 428, 950]).tolist()
    ([0, 1], [0, 0, 0, 0])
    >>> levels([430, 950, 428, 951]).tolist()
    [0, 1, 0, 1]
    >>> levels([90, 135, 90, 162], smallest=1).tolist()
    [0, 1, 0, 2]
    """
    values = np.log(np.asarray(times, dtype=float))
    smallest = min(smallest, max(len(values) // 2, 1))
    ascending = np.argsort(values, kind="stable")
    result = np.empty(len(values), dtype=np.int_)
    for level, part in enumerate(_parts(values[ascending], smallest)):
        result[ascending[part]] = level
    return result


def _parts(ascending: NDArray[np.float64], smallest: int) -> list[slice]:
    """Cut sorted values into levels."""
    n = len(ascending)
    if n >= 2 * smallest:
        sizes = np.arange(smallest, n - smallest + 1)
        cut = int(sizes[np.argmin(_strays(ascending, sizes))])
        low, high = ascending[:cut], ascending[cut:]
        apart = float(np.median(high) - np.median(low))
        if apart > np.log(_APART):
            above = (slice(cut + part.start, cut + part.stop) for part in _parts(high, smallest))
            parts = [*_parts(low, smallest), *above]
            # Several levels in a part are no noise: two slow workers need not be equally slow.
            if apart > _CLEARLY * max(_deviation(ascending[part]) for part in parts):
                return parts
    return [slice(0, n)]


def _strays(ascending: NDArray[np.float64], sizes: NDArray[np.int_]) -> NDArray[np.float64]:
    """How far the values stray in all from their part's median, for each size of the first part."""
    sums = np.concatenate([[0.0], np.cumsum(ascending)])

    def stray(begin: NDArray[np.int_] | int, end: NDArray[np.int_] | int) -> NDArray[np.float64]:
        length = np.asarray(end) - begin
        lower, upper = begin + length // 2, end - length // 2  # a middle one counts for neither
        result: NDArray[np.float64] = (sums[end] - sums[upper]) - (sums[lower] - sums[begin])
        return result

    return stray(0, sizes) + stray(sizes, len(ascending))


def _deviation(values: NDArray[np.float64]) -> float:
    return _NORMAL * float(np.median(np.abs(values - np.median(values))))


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers with the runs among them drawn together.

    Examples
    --------
    >>> ranges([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    ascending = np.unique(np.asarray(numbers, dtype=int))
    runs = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
