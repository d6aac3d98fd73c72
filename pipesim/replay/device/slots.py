"""Shared memory between a worker and its delegates: a slot for each message of an iteration.

As many slots as messages: nobody waits for a free one, as in the model. The memory is a
file in the host's shared memory that has no name from its birth on, mapped before the
delegates are forked; so there is nothing to clean up, however a run ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipesim.errors import ReplayError

__all__ = ["DONE", "DUE", "FILLED", "HANDED", "LEAD", "TAKEN", "Slots"]

FILLED, HANDED, TAKEN, DONE, DUE, LEAD = range(6)
"""Fields of a slot's header. Its flag: the number of the iteration (from 1) whose message it
holds. On the sending host: when the message was handed to a delegate, when that took it, when
it had passed it on. On the receiving host: when the message is due, and how much earlier the
delegate must raise the flag for it to be there then. Times are in nanoseconds."""

_LINE = 64
_SHARED = Path("/dev/shm")


class Slots:
    """The slots of one route on one host.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each slot's message.

    Raises
    ------
    ReplayError
        There is not enough shared memory.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        rooms = [-(-size // _LINE) * _LINE for size in sizes]
        self._sizes = tuple(sizes)
        self._offsets = tuple(accumulate(rooms, initial=_LINE * len(sizes)))
        self._map = _shared(self._offsets[-1])
        # Flags are read and written as whole aligned words, in one cache line a slot.
        self.headers: NDArray[np.int64] = np.frombuffer(
            self._map, dtype=np.int64, count=len(sizes) * _LINE // 8
        ).reshape(len(sizes), _LINE // 8)
        self._payloads = [
            torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)
            for size, offset in zip(sizes, self._offsets, strict=False)
        ]

    def payload(self, slot: int) -> Tensor:
        """Return a slot's message as bytes, shape [size]; the memory itself, not a copy."""
        return self._payloads[slot]

    @property
    def largest(self) -> int:
        """Bytes of the largest message."""
        return max(self._sizes)

    def register(self) -> None:
        """Pin the memory for copies to and from a GPU."""
        everything = torch.frombuffer(self._map, dtype=torch.uint8)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(
            runtime.cudaHostRegister(everything.data_ptr(), everything.numel(), 0)
        )


def _shared(size: int) -> mmap.mmap:
    folder = _SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                # Pages that are not there kill who touches them.
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                os.ftruncate(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReplayError(
            f"no room for {size / 2**10:,.1f} KiB of messages in shared memory, {folder}: {reason}"
        ) from None
