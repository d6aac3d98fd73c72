"""Transfer times: from when messages were handed over to when they landed."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["WAYS", "Log", "transfer_ms"]

WAYS = ("down", "up")
"""Directions of messages: activations, and gradients."""

_CLOCKS_DIFFER_NS = 1_000_000


class Log(NamedTuple):
    """What a rank saw of the messages of one iteration; times are nanoseconds of the wall clock.

    Attributes
    ----------
    sent : list of (link, direction, number, handed)
        The ``number``-th message of this kind in the iteration.
    received : list of (link, direction, number, posted, landed)
        From when on this rank was ready for it, and when it was there.
    """

    sent: Sequence[tuple[int, str, int, int]]
    received: Sequence[tuple[int, str, int, int, int]]


def transfer_ms(logs: Iterable[Log], links: int) -> NDArray[np.float64]:
    """Return the transfer time of each link and direction in one iteration.

    It is the median over the messages that the receiver was ready for when they were handed over.
    A backend that lets messages wait for their receiver says of the others only that they took no
    longer: where there are no more, it is the shortest of their times.

    Parameters
    ----------
    logs : iterable of Log
        Of all ranks.
    links : int
        S − 1.

    Returns
    -------
    array, shape [S−1, 2]
        In ms; NaN where nothing was sent. A message never takes less than no time, whatever clocks
        say; where they say so, what is late by less than they differ cannot be seen.

    Warns
    -----
    RuntimeWarning
        A message landed more than a millisecond before it was handed over: clocks differ.

    Examples
    --------
    >>> ms = 1_000_000
    >>> sender = Log([(0, "down", 0, 5 * ms), (0, "down", 1, 9 * ms)], [])
    >>> receiver = Log([], [(0, "down", 0, 1 * ms, 8 * ms), (0, "down", 1, 20 * ms, 20 * ms)])
    >>> transfer_ms([sender, receiver], links=1)
    array([[ 3., nan]])
    """
    logs = list(logs)
    handed = {(link, way, number): at for log in logs for link, way, number, at in log.sent}
    awaited: dict[tuple[int, str], list[float]] = {}
    bounds: dict[tuple[int, str], list[float]] = {}
    early_ns = 0
    for log in logs:
        for link, way, number, posted, landed in log.received:
            if (link, way, number) not in handed:
                continue
            sent = handed[link, way, number]
            early_ns = max(early_ns, sent - landed)
            times = awaited if posted <= sent else bounds
            times.setdefault((link, way), []).append(max(0, landed - sent) / 1e6)
    if early_ns > _CLOCKS_DIFFER_NS:
        warnings.warn(
            f"clocks of two ranks differ by at least {early_ns / 1e6:.0f} ms: "
            "what is late by less may not be seen",
            RuntimeWarning,
            stacklevel=2,
        )
    result = np.full((links, len(WAYS)), math.nan)
    for link in range(links):
        for column, way in enumerate(WAYS):
            if times_ms := awaited.get((link, way)):
                result[link, column] = statistics.median(times_ms)
            elif times_ms := bounds.get((link, way)):
                result[link, column] = min(times_ms)
    return result
