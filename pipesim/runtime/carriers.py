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
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pipesim.runtime.handles import Handle

__all__ = ["Arriving", "Direct", "Incoming", "Late", "Outgoing", "wall_ns"]

_NS_PER_MS, _NS_PER_S = 10**6, 10**9


class Arriving(Handle, Protocol):
    """A message that is received."""

    @property
    def landed_ns(self) -> int | None:
        """When it was on this host, by ``time.monotonic_ns``; known after ``wait``."""


class Outgoing(Protocol):
    """The sender's end of a carrier."""

    def isend(self, tensor: Tensor) -> Handle:
        """Start to send a tensor."""


class Incoming(Protocol):
    """The receiver's end of a carrier."""

    def irecv(self, tensor: Tensor) -> Arriving:
        """Start to receive into a tensor; the n-th of these gets the n-th that was sent."""


def wall_ns(monotonic_ns: int) -> int:
    """Return a time of ``time.monotonic_ns`` by the clock that hosts share, ``time.time_ns``."""
    return monotonic_ns + time.time_ns() - time.monotonic_ns()


@dataclass(frozen=True)
class _SentDirectly:
    work: dist.Work
    tensor: Tensor  # kept until it has been sent

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self.work.wait() if timeout is None else self.work.wait(timeout)

    def is_completed(self) -> bool:
        return self.work.is_completed()


@dataclass(frozen=True)
class _ReceivedDirectly:
    landed: Future[int]

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.landed.result(None if timeout is None else timeout.total_seconds())
        return True

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

    def isend(self, tensor: Tensor) -> Handle:
        """Start to send a tensor, which may not be changed before it has been sent."""
        work = dist.isend(tensor, group=self.group, tag=self.tag, group_dst=self.peer)
        assert work is not None, "this rank is in the group"
        return _SentDirectly(work, tensor)

    def irecv(self, tensor: Tensor) -> Arriving:
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
class _SentLate:
    sent: Future[Handle]

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = None if timeout is None else timeout.total_seconds()
        return self.sent.result(seconds).wait(timeout)

    def is_completed(self) -> bool:
        return self.sent.done() and self.sent.result().is_completed()


class _Waiting(NamedTuple):
    due_ns: int
    tensor: Tensor
    sent: Future[Handle]


class Late:
    """Another carrier whose messages are late in flight, for tests and benchmarks.

    The sender goes on, and any number of messages may be under way: a thread hands each to the
    carrier when it is due, in their order. Received messages are passed through.

    Parameters
    ----------
    carrier : Outgoing or Incoming
        What really carries the messages.
    late_ms : float
        For messages that are sent from now on; may be changed.
    """

    def __init__(self, carrier: Outgoing | Incoming, late_ms: float) -> None:
        self.carrier: Any = carrier
        self.late_ms = late_ms
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()

    def isend(self, tensor: Tensor) -> Handle:
        """Start to send a tensor, which may not be changed before it has been sent."""
        due_ns = time.monotonic_ns() + round(self.late_ms * _NS_PER_MS)
        waiting = _Waiting(due_ns, tensor, Future())
        with self._lock:
            self._waiting.append(waiting)
            if len(self._waiting) == 1:  # the thread ends whenever nothing is under way
                threading.Thread(target=self._hand_over, daemon=True).start()
        return _SentLate(waiting.sent)

    def irecv(self, tensor: Tensor) -> Arriving:
        """Start to receive into a tensor."""
        received: Arriving = self.carrier.irecv(tensor)
        return received

    def _hand_over(self) -> None:
        more = True
        while more:
            due_ns, tensor, sent = self._waiting[0]
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / _NS_PER_S)
            try:
                sent.set_result(self.carrier.isend(tensor))
            except BaseException as error:
                sent.set_exception(error)
            with self._lock:
                self._waiting.popleft()
                more = bool(self._waiting)
