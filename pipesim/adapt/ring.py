"""The ring all-reduce of gradients: buckets, steps, and what one slow link makes of them.

D nodes in a ring send to the next one. A bucket of M bytes takes 2(D−1) steps: D−1 that sum it up
in parts (reduce-scatter) and D−1 that spread the sums (all-gather). In each step every node sends
one chunk of M/D bytes, which takes the delay of its link and the time of the bytes. It can send a
chunk once the one before has left, and once it has received the chunk that it passes on:

    end[r, k] = max(end[r, k−1], end[r−1, k−1]) + t[r, k]

for link r from node r to node r+1. Buckets follow each other on the links.

An end is so a longest path that in every step stays at a link or moves on to the next one, and
its length the sum of t[r, k] on the way. All chunks of a step have the same size, hence one link,
that of the largest delay, is the slowest in all steps, and the longest of all paths stays there:
the ring ends after Σ over buckets of 2(D−1) · (largest delay + M / (D · bandwidth)), exactly. One
slow link bounds all of them, and a second one that is no slower costs nothing more.

What a delay of c stands for. Here it is what one chunk takes longer, however large it is, as a
pipeline message does. An injector that delays every send of a network plug-in, as the one of the
published data-parallel experiments does, delays in proportion to bytes: 0.375 ms a send are the
nominal 30 ms for a pipeline message of 10 MiB in 80 sends of 128 KiB, and, as a collective sends
512 KiB at once, 30 ms for each 40 MiB on a ring link. That is this model with buckets of
D · 40 MiB. For the 7B model and D = 2 the two are nearly the same: :data:`GRADIENT_BYTES` are 48
buckets, 96 steps; half of them (those runs trained in fp16) in buckets of 80 MiB are 45 buckets, 90
steps. Megatron-LM itself fills buckets with whole tensors, so that they are larger and fewer where
tensors are large, and without ``--overlap-grad-reduce`` makes no buckets at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pipesim.errors import ScenarioError
from pipesim.scenario import LARGEST

__all__ = ["GRADIENT_BYTES", "AllReduce", "bucket_bytes"]

_FP32 = 4
GRADIENT_BYTES = 12 * 5120**2 * 6 * _FP32
"""Gradients of one stage where nobody says: the published 7B model's.

12 h² parameters a layer of hidden size h = 5120, 6 layers a stage, gradients of 4 bytes: 7.0 GiB.
"""


def bucket_bytes(ranks: int) -> int:
    """Return Megatron-LM's default bucket: max(40 M, 1 M · D) parameters, of 4 bytes here.

    Examples
    --------
    >>> bucket_bytes(2), bucket_bytes(64)
    (160000000, 256000000)
    """
    return max(40_000_000, 1_000_000 * ranks) * _FP32


@dataclass(frozen=True)
class AllReduce:
    """The gradients of one stage, summed up over D data-parallel ranks in a ring.

    Parameters
    ----------
    gradient_bytes : float
        Gradients of one rank. 0: there is nothing to do.
    bucket_bytes : float, optional
        Size of a bucket, at least 1; the last one may be smaller. Default: :func:`bucket_bytes`.
    bytes_per_ms : float
        Bandwidth of a link in each direction. Default: only delays count.

    Raises
    ------
    ScenarioError
        A size or the bandwidth cannot be.

    Examples
    --------
    100 MB in buckets of 40 MB, so 3 buckets of 2 · (2 − 1) steps; 5 ms and 20, 20 and 10 MB a step:

    >>> AllReduce(100e6, 40e6).duration_ms([5.0, 0.0])
    30.0
    >>> AllReduce(100e6, 40e6, bytes_per_ms=10e6).duration_ms([5.0, 0.0])
    40.0
    """

    gradient_bytes: float = GRADIENT_BYTES
    bucket_bytes: float | None = None
    bytes_per_ms: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.gradient_bytes <= LARGEST:
            raise ScenarioError(f"gradients cannot have {self.gradient_bytes:g} bytes")
        if self.bucket_bytes is not None and not 1 <= self.bucket_bytes <= LARGEST:
            raise ScenarioError(f"a bucket cannot have {self.bucket_bytes:g} bytes")
        if not self.bytes_per_ms > 0:
            raise ScenarioError(f"a bandwidth must be above 0, not {self.bytes_per_ms:g}")

    def buckets(self, ranks: int) -> int:
        """Return how many buckets the gradients fill."""
        return math.ceil(self.gradient_bytes / self._bucket(ranks))

    def duration_ms(self, delay_ms: ArrayLike) -> float:
        """Return the time from the start on all nodes to the end of the last.

        Parameters
        ----------
        delay_ms : array_like, shape [D]
            Of the ring links; link r goes from rank r to r+1, the last one back to rank 0.

        Raises
        ------
        ScenarioError
            A delay is negative or not finite, or the time is longer than any here can be.
        """
        delays = np.asarray(delay_ms, dtype=np.float64)
        if not (np.isfinite(delays) & (delays >= 0)).all():
            raise ScenarioError("delays of ring links must be finite and not negative")
        ranks = len(delays)
        if ranks < 2:
            return 0.0
        steps = 2 * (ranks - 1)
        bytes_ms = self.gradient_bytes / ranks / self.bytes_per_ms
        duration_ms = steps * (self.buckets(ranks) * float(delays.max()) + bytes_ms)
        if not duration_ms <= LARGEST:
            raise ScenarioError(f"an all-reduce would take {duration_ms:g} ms, which is too long")
        return duration_ms

    def as_dict(self, ranks: int) -> dict[str, object]:
        """Sizes and steps, in JSON types; a bandwidth without limit is null."""
        return {
            "gradient_bytes": self.gradient_bytes,
            "bucket_bytes": self._bucket(ranks),
            "buckets": self.buckets(ranks),
            "steps_per_bucket": 2 * (ranks - 1),
            "bytes_per_ms": self.bytes_per_ms if math.isfinite(self.bytes_per_ms) else None,
        }

    def _bucket(self, ranks: int) -> float:
        return bucket_bytes(ranks) if self.bucket_bytes is None else self.bucket_bytes
