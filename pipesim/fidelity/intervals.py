"""Intervals by conformal prediction: how far off predictions of a kind have been, nine of ten."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["around", "spread"]

_COVERED = 0.9
"""The part of measurements that an interval holds."""

_FEWEST = 4
"""Errors below which nothing is said."""


def spread(errors: Iterable[float]) -> float | None:
    """Return how far off a further prediction is at most, 90 % of the time.

    Of n absolute errors of predictions that have not seen what they predict, a further one is at
    most the k-th smallest with probability k / (n + 1). Below nine errors the largest is taken,
    which holds n / (n + 1) of them.

    Parameters
    ----------
    errors : iterable of float
        Relative to the prediction: measured / predicted − 1.

    Returns
    -------
    float or None
        A part of the prediction; None where fewer than four errors are known.

    Examples
    --------
    >>> spread(size / 100 for size in range(1, 20))
    0.18
    """
    sizes = sorted(map(abs, errors))
    if len(sizes) < _FEWEST:
        return None
    return sizes[min(math.ceil(_COVERED * (len(sizes) + 1)), len(sizes)) - 1]


def around(predicted_ms: float, spread: float | None) -> tuple[float, float] | None:
    """Return where the measured time is 90 % of the time; None where no spread is known.

    Examples
    --------
    >>> around(400.0, 0.05)
    (380.0, 420.0)
    """
    return None if spread is None else (predicted_ms * (1 - spread), predicted_ms * (1 + spread))
