"""What can carry messages of one direction between two ranks.

A lane of delegates (`pipesim.runtime.open_lanes`) is one; here are the process group itself, which
then says when each message came, and one that is late on purpose::

    carrier = Direct(group, peer=1, tag=7)
    sent = carrier.isend(tensor)            # on rank 0
    received = Direct(group, 0, 7).irecv(tensor)  # on rank 1
    received.wait()
    wall_ns(received.landed_ns)             # when, by the clock that all hosts share
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Direct", "Handle", "Incoming", "Late", "Outgoing", "Received", "Sent", "wall_ns"]

_NS_PER_MS = 1_000_000


class Handle(Protocol):
    """A message under way at one of its ends."""

    def wait(self) -> None:
        """Wait until the tensor may be used again: changed by who sends, read by who receives."""

    def is_completed(self) -> bool:
        """Whether ``wait`` would return at once."""


class Sent(Handle, Protocol):
    """What ``isend`` returns."""

    @property
    def handed_ns(self) -> int:
        """When it was handed over, by this host's ``time.monotonic_ns``."""


class Received(Handle, Protocol):
    """What ``irecv`` returns."""

    @property
    def landed_ns(self) -> int:
        """When the message was on this host, by its ``time.monotonic_ns``; known after ``wait``."""


class Outgoing(Protocol):
    """The sender's end of a carrier."""

    def isend(self, tensor: Tensor) -> Sent:
        """Start to send a tensor."""


class Incoming(Protocol):
    """The receiver's end of a carrier."""

    def irecv(self, tensor: Tensor) -> Received:
        """Start to receive into a tensor; the n-th of these gets the n-th that was sent."""


def wall_ns(monotonic_ns: int) -> int:
    """Return a time of ``time.monotonic_ns`` by the clock that hosts share, ``time.time_ns``."""
    return monotonic_ns + time.time_ns() - time.monotonic_ns()


@dataclass(frozen=True)
class _SentDirectly:
    work: dist.Work
    tensor: Tensor  # kept until it has been sent
    handed_ns: int

    def wait(self) -> None:
        self.work.wait()

    def is_completed(self) -> bool:
        return self.work.is_completed()


@dataclass(frozen=True)
class _ReceivedDirectly:
    landed: Future[int]

    def wait(self) -> None:
        self.landed.result()

    def is_completed(self) -> bool:
        return self.landed.done()

    @property
    def landed_ns(self) -> int:
        return self.landed.result()


@dataclass(frozen=True)
class Direct:
    """The messages of a process group as a carrier: ``isend`` and ``irecv`` to a peer.

    A thread of its own waits for each message, since torch tells only whoever waits when it came.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default one if there is none.
    peer : int
        The other end's rank in the group.
    tag : int
        Tells these messages from others between the same ranks. NCCL has no tags: there, all
        messages from one rank to another arrive in the order in which they were sent.
    """

    group: dist.ProcessGroup | None
    peer: int
    tag: int = 0

    def isend(self, tensor: Tensor) -> Sent:
        """Start to send a tensor, which may not be changed before it has been sent."""
        handed_ns = time.monotonic_ns()
        work = dist.isend(tensor, group=self.group, tag=self.tag, group_dst=self.peer)
        assert work is not None, "this rank is in the group"
        return _SentDirectly(work, tensor, handed_ns)

    def irecv(self, tensor: Tensor) -> Received:
        """Start to receive into a tensor."""
        work = dist.irecv(tensor, group=self.group, tag=self.tag, group_src=self.peer)
        assert work is not None, "this rank is in the group"
        landed: Future[int] = Future()
        threading.Thread(target=_wait, args=(work, tensor, landed), daemon=True).start()
        return _ReceivedDirectly(landed)


def _wait(work: dist.Work, tensor: Tensor, landed: Future[int]) -> None:
    try:
        if tensor.is_cuda:  # to wait only makes the current stream wait
            stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                work.wait()
                stream.synchronize()
        else:
            work.wait()
    except BaseException as error:
        landed.set_exception(error)
    else:
        landed.set_result(time.monotonic_ns())


@dataclass(frozen=True)
class _ReceivedLate:
    received: Received
    late_ns: int

    def wait(self) -> None:
        self.received.wait()
        while (left_ns := self.landed_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)

    def is_completed(self) -> bool:
        return self.received.is_completed() and self.landed_ns <= time.monotonic_ns()

    @property
    def landed_ns(self) -> int:
        return self.received.landed_ns + self.late_ns


@dataclass
class Late:
    """Another carrier whose messages are late in flight, for tests and benchmarks.

    Nobody is held up but who waits for a message, and any number may be under way: each lands
    ``late_ms`` after it has come.

    Parameters
    ----------
    carrier : Outgoing or Incoming
        What really carries the messages. Only the receiver's end needs to be late.
    late_ms : float
        For messages that are received from now on; may be changed.
    """

    carrier: Outgoing | Incoming
    late_ms: float

    def isend(self, tensor: Tensor) -> Sent:
        """Start to send a tensor."""
        return self.carrier.isend(tensor)  # type: ignore[union-attr]

    def irecv(self, tensor: Tensor) -> Received:
        """Start to receive into a tensor."""
        received = self.carrier.irecv(tensor)  # type: ignore[union-attr]
        return _ReceivedLate(received, round(self.late_ms * _NS_PER_MS))
