"""Clocks: how a time of one process reads on the clock of another.

As in NTP: a process asks and notes when it asked and when the answer came; the answer holds
the other's time. The quickest of many exchanges is the most accurate: it is off by at
most half of its duration. Two such measurements, before and after a run, give the drift.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

__all__ = ["Clock", "Reading", "answer", "measure", "now_ns", "read"]

_EXCHANGES = 50

now_ns = time.monotonic_ns
"""This process's time, the same for all processes of a host, in nanoseconds."""


class Reading(NamedTuple):
    """One measurement of an offset.

    Attributes
    ----------
    at_ns : int
        When, on this process's clock.
    offset_ns : int
        The reference's clock minus this one.
    uncertainty_ns : int
        Half the quickest exchange.
    """

    at_ns: int
    offset_ns: int
    uncertainty_ns: int


def measure(ask: Callable[[], int], exchanges: int = _EXCHANGES) -> Reading:
    """Measure the offset to the clock that ``ask`` reads, in nanoseconds.

    Examples
    --------
    >>> reading = measure(lambda: now_ns() + 5_000_000_000)
    >>> abs(reading.offset_ns - 5_000_000_000) <= reading.uncertainty_ns
    True
    """

    def exchange() -> tuple[int, int, int]:
        asked = now_ns()
        answer = ask()
        answered = now_ns()
        middle = (asked + answered) // 2
        return answered - asked, middle, answer - middle

    took, at, offset = min(exchange() for _ in range(exchanges))
    return Reading(at, offset, -(-took // 2))


def read(rank: int, group: dist.ProcessGroup) -> Reading:
    """Measure the offset of every rank of a group to rank 0, one after the other."""
    if rank == 0:
        for other in range(1, group.size()):
            answer(other, group)
        return Reading(now_ns(), 0, 0)
    return measure(lambda: _ask(group))


def _ask(group: dist.ProcessGroup) -> int:
    time = torch.zeros(1, dtype=torch.int64)
    group.send([time], 0, 0).wait()
    group.recv([time], 0, 0).wait()
    return int(time)


def answer(rank: int, group: dist.ProcessGroup) -> None:
    """Tell a rank of a group the time, as often as it asks to :func:`measure`."""
    time = torch.zeros(1, dtype=torch.int64)
    for _ in range(_EXCHANGES):
        group.recv([time], rank, 0).wait()
        group.send([torch.tensor([now_ns()])], rank, 0).wait()


class Clock(NamedTuple):
    """A process's clock on the reference's, straight between two readings."""

    first: Reading
    last: Reading

    @property
    def offset_ms(self) -> float:
        """The reference's clock minus this one, at the first reading."""
        return self.first.offset_ns / 1e6

    @property
    def drift_ppm(self) -> float:
        """By how much the reference's clock runs faster, in millionths."""
        elapsed = self.last.at_ns - self.first.at_ns
        return 1e6 * (self.last.offset_ns - self.first.offset_ns) / elapsed if elapsed else 0.0

    @property
    def uncertainty_ms(self) -> float:
        """By how much an aligned time may be wrong."""
        return max(self.first.uncertainty_ns, self.last.uncertainty_ns) / 1e6

    def aligned_ns(self, time_ns: int) -> int:
        """Return a time of this process on the reference's clock.

        Examples
        --------
        >>> Clock(Reading(0, 100, 1), Reading(1_000, 110, 1)).aligned_ns(500)
        605
        """
        since = (time_ns - self.first.at_ns) * self.drift_ppm / 1e6
        return time_ns + self.first.offset_ns + round(since)
