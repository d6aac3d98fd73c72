"""Shared memory between a worker and its delegates: rings of slots, one ring for each delegate.

The memory is a file without a name, so there is nothing to clean up, however a job ends.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Slots"]

_LINE = 64
"""Slots begin at multiples of it, as every dtype needs and caches like."""

_MEMINFO = Path("/proc/meminfo")
_GROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class Slots:
    """The slots of one end of a lane.

    Parameters
    ----------
    delegates, depth : int
        Rings, and slots of each.
    slot_bytes : int
        Largest message.

    Attributes
    ----------
    memory : int
        File descriptor of the memory, for delegates to map.
    room : int
        Bytes from a slot to the next.

    Raises
    ------
    MemoryError
        There is not enough.
    """

    def __init__(self, delegates: int, depth: int, slot_bytes: int) -> None:
        self.room = max(-(-slot_bytes // _LINE), 1) * _LINE
        self._delegates, self._depth = delegates, depth
        size = delegates * depth * self.room
        try:
            if size > _available():
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            self.memory = _nameless()
            try:
                if hasattr(os, "posix_fallocate"):
                    # Pages that are not there kill who touches them.
                    os.posix_fallocate(self.memory, 0, size)
                else:
                    os.ftruncate(self.memory, size)
                shared = mmap.mmap(self.memory, size)
            except BaseException:
                os.close(self.memory)
                raise
        except (OSError, OverflowError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MemoryError(
                f"no room for {size / 2**10:,.1f} KiB of messages in shared memory: {reason}"
            ) from None
        self._all = torch.frombuffer(shared, dtype=torch.uint8)
        self._pinned = False

    def __getitem__(self, number: int) -> Tensor:
        """Return the slot of a message as bytes; the memory itself, not a copy."""
        ring, place = number % self._delegates, number // self._delegates % self._depth
        return self._all[(ring * self._depth + place) * self.room :][: self.room]

    def pin(self) -> None:
        """Pin the memory, so that copies between it and a GPU need not be waited for."""
        if not self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(
                runtime.cudaHostRegister(self._all.data_ptr(), self._all.numel(), 0)
            )
            self._pinned = True

    def close(self) -> None:
        """Unpin the memory; it goes once no tensor shows it any more."""
        if self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._all.data_ptr())
            self._pinned = False
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


def _available() -> float:
    """Return the bytes of memory that may be had: who takes more is killed, not refused."""
    least = math.inf
    with suppress(OSError):
        if kib := re.search(r"^MemAvailable: *(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE):
            least = 1024 * int(kib[1])
    for group in _GROUPS:
        with suppress(OSError, ValueError):  # "max": there is no limit
            least = min(least, int(group.read_text()))
    return least


def _nameless() -> int:
    """Return a new file in memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("messages")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
