"""Messages under way, as the two ends of a lane return them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from pipesim.runtime.copies import Copies, Event, shown_as
from pipesim.runtime.delegates import Delegate, DelegateError

if TYPE_CHECKING:
    from pipesim.runtime.ends import Receiver

__all__ = ["Handle", "Received", "Sent"]


class Handle(Protocol):
    """A message under way, like what ``isend`` and ``irecv`` return."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensor may be changed, or holds the message; returns True."""

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would not have to."""


class Sent:
    """A message that is sent, in its slot.

    Attributes
    ----------
    number : int
        How many were sent before it.
    content : Tensor
        The slot, as bytes.
    handed_ns : int or None
        When it was handed to its delegate, on this host's monotonic clock.
    """

    def __init__(self, number: int, content: Tensor, delegate: Delegate) -> None:
        self.number, self.content = number, content
        self.handed_ns: int | None = None
        self._delegate = delegate
        self._copied: tuple[Copies, Event, Future[None]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensor may be changed: on CUDA, by what comes on the current stream."""
        if self._copied:
            copies, event, over = self._copied
            copies.wait(event)
            if over.done():
                over.result()
        return True

    def is_completed(self) -> bool:
        """Whether the message is in its slot."""
        return self._copied is None or self._copied[1].query()

    @property
    def occupied_ns(self) -> tuple[int, int] | None:
        """From when to when its delegate was occupied by it.

        None: that is not known yet, or not any more, as its slot was used again.
        """
        number = self.number
        with suppress(DelegateError):
            self._delegate.wait(lambda: number in self._delegate.said, 0.0)
        said = self._delegate.said.get(number)
        return (said[1], said[2]) if said else None


class Received:
    """A message that is received.

    Attributes
    ----------
    number : int
        How many were received before it.
    tag : int
        What the sender said with it; as all that follows, known once it has landed.
    size : int
        Its bytes.
    sent_ns : int
        When it was handed over, on this host's monotonic clock, as well as the two hosts'
        clocks agreed when the lane was opened: to some 0.05 ms, and what they drift since.
    due_ns : int or None
        When it was due, of one that had to occupy its delegates.
    landed_ns : int or None
        When it was on this host; None: it has not been seen there.
    """

    tag = size = sent_ns = 0
    due_ns: int | None = None
    landed_ns: int | None = None

    def __init__(self, receiver: Receiver, number: int, tensor: Tensor | None) -> None:
        self.number = number
        self._receiver, self._tensor = receiver, tensor
        self._once = threading.Lock()
        self._taken = False

    @property
    def content(self) -> Tensor:
        """The message's bytes in its slot, until :meth:`release`."""
        return self._receiver._slots[self.number][: self.size]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the message, and copy it into the tensor.

        Raises
        ------
        DelegateError
            A delegate or the other rank is gone, or does not answer in time.
        ValueError
            The message is not as large as the tensor.
        """
        patience = self._receiver.timeout_s if timeout is None else timeout.total_seconds()
        if not self._landed(time.monotonic() + patience):
            delegate = self._receiver._delegate(self.number)
            raise self._receiver._silence(delegate, patience)
        self._take()
        return True

    def is_completed(self) -> bool:
        """Whether the message has landed; if so it is in the tensor."""
        if not self._landed(0.0):
            return False
        self._take()
        return True

    def release(self) -> None:
        """Let the slot be used again."""
        self._receiver._free(self.number)

    def _landed(self, deadline_s: float) -> bool:
        return self.landed_ns is not None or self._receiver._hear(self, deadline_s)

    def _is_in(self, said: dict[int, tuple[int, ...]]) -> bool:
        """Whether it has landed; takes out what is said of it, so no two threads may ask."""
        if facts := said.pop(self.number, None):
            _, self.size, self.tag, self.sent_ns, due, landed = facts
            self.due_ns, self.landed_ns = due or None, landed
        return self.landed_ns is not None

    def _take(self) -> None:
        with self._once:
            if self._taken or self._tensor is None:
                return
            self._taken = True
            tensor = self._tensor.detach()
            if self.size != tensor.nbytes:
                self.release()
                raise ValueError(
                    f"lane {self._receiver.name}: message {self.number} has {self.size} bytes, "
                    f"the tensor to receive it {tensor.nbytes}"
                )
            if tensor.device.type == "cpu":
                tensor.copy_(shown_as(self.content, tensor))
                self.release()
            else:
                copied = self._receiver._copies_of(tensor.device).into(self.content, tensor)
                self._receiver._free_after(copied, self.number)
