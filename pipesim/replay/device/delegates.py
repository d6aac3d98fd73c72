"""Delegates: the processes that carry messages between hosts.

A delegate serves one route, on its sending or on its receiving host, and is paired with one
on the other host. Its worker rings its bell, a pipe, with the number of a filled slot; so
does a receiving delegate with its worker.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from pipesim.replay.device.slots import DONE, DUE, FILLED, HANDED, LEAD, TAKEN, Slots
from pipesim.replay.run import clocks
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.guard import Parent, end_with_parent, follow, hold_until
from pipesim.replay.run.run import Route

__all__ = ["LOST_PEER", "Bell", "Pair", "Store", "receive", "send"]

LOST_PEER = 3
"""Exit code of a delegate whose pair is gone."""

_FOREVER = timedelta(days=7)
_HEAD_BYTES = 24
_SMALL_BYTES = 2**16


class Store(NamedTuple):
    """Where the processes of a run find each other."""

    host: str
    port: int

    def connect(self, prefix: str) -> PrefixStore:
        """Return the store; waits until it is there."""
        client = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(minutes=1))
        return PrefixStore(prefix, client)


class Pair(NamedTuple):
    """Two delegates, one on each host of a route."""

    route: Route
    number: int
    store: Store
    worker: int
    """The process that this delegate works for."""

    def __str__(self) -> str:
        return f"delegate {self.number} of {self.route}"

    def join(self, rank: int) -> dist.ProcessGroup:
        """Become rank 0, which sends, or 1, which receives, of a group of two."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent()
        follow(Parent(self.worker))
        name = f"delegates/{'-'.join(map(str, self.route))}/{self.number}"
        dist.init_process_group(
            "gloo", store=self.store.connect(name), rank=rank, world_size=2, timeout=_FOREVER
        )
        assert dist.group.WORLD is not None
        return dist.group.WORLD


class Bell:
    """A pipe of slot numbers."""

    _NUMBER = struct.Struct("=i")

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        """The end to wait on."""
        return self._read

    def ring(self, slot: int) -> None:
        """Announce a slot."""
        os.write(self._write, self._NUMBER.pack(slot))

    def heard(self) -> int:
        """Wait for the next slot."""
        (slot,) = self._NUMBER.unpack(os.read(self._read, self._NUMBER.size))
        return int(slot)


class _Letter:
    """What delegates send: which slot, its flag, when it is due, and what is small, the message.

    A large message follows, straight from slot to slot; a small one saves that round trip.
    """

    def __init__(self, slots: Slots, group: dist.ProcessGroup) -> None:
        self._slots = slots
        self._group = group
        self._inside = slots.largest if slots.largest <= _SMALL_BYTES else 0
        self._bytes = torch.zeros(_HEAD_BYTES + self._inside, dtype=torch.uint8)
        self._head = self._bytes[:_HEAD_BYTES].numpy().view(np.int64)

    def _message(self, slot: int) -> tuple[Tensor, Tensor]:
        message = self._slots.payload(slot)
        return message, self._bytes[_HEAD_BYTES : _HEAD_BYTES + len(message)]

    def send(self, slot: int, flag: int, due_ns: int) -> None:
        self._head[:] = slot, flag, due_ns
        message, inside = self._message(slot)
        if self._inside:
            inside.copy_(message)
        self._group.send([self._bytes], 1, 0).wait()
        if not self._inside:
            self._group.send([message], 1, 0).wait()

    def receive(self) -> tuple[int, int, int]:
        self._group.recv([self._bytes], 0, 0).wait()
        slot, flag, due_ns = self._head.tolist()
        message, inside = self._message(slot)
        if self._inside:
            message.copy_(inside)
        else:
            self._group.recv([message], 0, 0).wait()
        return slot, flag, due_ns


def send(pair: Pair, slots: Slots, bell: Bell, occupied_ms: Sequence[float]) -> None:
    """Serve the sending host.

    A message occupies its delegates from when it was handed over, or they were free, for its
    link's delay. They send it at once, and the receiving one holds it until it is due: so the
    delay includes the time that this machine takes.
    """
    with _until_pair_ends():
        group = pair.join(0)
        clocks.answer(1, group)
        letter = _Letter(slots, group)
        due = 0
        while True:
            slot = bell.heard()
            header = slots.headers[slot]
            header[TAKEN] = max(int(header[HANDED]), due)
            due = int(header[TAKEN]) + round(occupied_ms[slot] * 1e6)
            letter.send(slot, int(header[FILLED]), due)
            header[DONE] = max(now_ns(), due)


def receive(pair: Pair, slots: Slots, bell: Bell) -> None:
    """Serve the receiving host: fill slots and raise their flags when they are due."""
    with _until_pair_ends():
        group = pair.join(1)
        offset = clocks.read(1, group).offset_ns
        letter = _Letter(slots, group)
        while True:
            slot, flag, due = letter.receive()
            header = slots.headers[slot]
            header[DUE] = due - offset
            hold_until(due - offset - int(header[LEAD]))
            header[FILLED] = flag
            bell.ring(slot)


@contextmanager
def _until_pair_ends() -> Iterator[None]:
    """End the process with :data:`LOST_PEER` when the other delegate is gone."""
    try:
        yield
    except RuntimeError:
        os._exit(LOST_PEER)
