"""The two ends of a lane: like ``isend`` and ``irecv``, but other processes do it."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from pipesim.runtime.copies import Copies, Event, shown_as
from pipesim.runtime.delegate import END, FREED, HANDED, LANDED, LEAD, PASSED, Job
from pipesim.runtime.delegates import Delegate, DelegateError, SilenceError, is_stopped
from pipesim.runtime.handles import Handle, Received, Sent
from pipesim.runtime.slots import Slots

__all__ = ["Handle", "Receiver", "Sender"]

_PASS_ON_WITHIN_S = 5.0
_LOOK_S = 1e-3


class _End:
    """What both ends share: slots, delegates, and their end."""

    _news: struct.Struct

    def __init__(
        self,
        name: str,
        peer: int,
        depth: int,
        slot_bytes: int,
        timeout_s: float,
        connections: Sequence[socket.socket],
    ) -> None:
        self.name, self.peer, self.slot_bytes = name, peer, slot_bytes
        self.timeout_s = timeout_s
        self.delegates: list[Delegate] = []
        self._process = os.getpid()
        self._next = 0
        self._order = threading.RLock()
        self._copies: dict[torch.device, Copies] = {}
        self._copying: list[tuple[Event, int]] = []
        self._in_flight = len(connections) * depth
        try:
            self._slots = Slots(len(connections), depth, slot_bytes)
            # Also at the end of the interpreter; but not of one that was forked from it.
            self._end = weakref.finalize(self, _end, self._process, self.delegates, self._slots)
            for index, connection in enumerate(connections):
                job = Job(
                    sends=self._news is PASSED,
                    memory=self._slots.memory,
                    ring=index,
                    delegates=len(connections),
                    depth=depth,
                    room=self._slots.room,
                )
                called = f"delegate {index} of {name}"
                self.delegates.append(Delegate(called, job, connection, self._news))
        except BaseException:
            if hasattr(self, "_end"):
                self._end()
            raise
        finally:
            for connection in connections:
                connection.close()

    def check(self) -> None:
        """Raise DelegateError if a delegate is gone."""
        for delegate in self.delegates:
            delegate.check()

    def pin(self) -> None:
        """Pin the slots at once, not with the first tensor of a GPU."""
        self._slots.pin()

    def close(self) -> None:
        """End the delegates."""
        self.abandon()

    def abandon(self) -> None:
        """End the delegates at once, whatever is under way."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close() if error is None else self.abandon()

    def _delegate(self, number: int) -> Delegate:
        return self.delegates[number % len(self.delegates)]

    def _copies_of(self, device: torch.device) -> Copies:
        with self._order:
            if device not in self._copies:
                self._copies[device] = Copies(self._slots, device)
            return self._copies[device]

    def _silence(self, delegate: Delegate, seconds: float) -> SilenceError:
        if is_stopped(delegate.process.pid):
            return SilenceError(f"{delegate.name} is stopped (SIGSTOP)")
        return SilenceError(
            f"rank {self.peer} does not answer on lane {self.name} for {seconds:g} s"
        )


def _end(process: int, delegates: Sequence[Delegate], slots: Slots) -> None:
    if os.getpid() == process:
        for delegate in delegates:
            delegate.close()
        slots.close()


# -- sending -------------------------------------------------------------------------------


class Sender(_End):
    """The sending end of a lane; any thread may use it. A context manager that closes it.

    Attributes
    ----------
    name : str
        The lane's.
    peer : int
        The receiving rank.
    slot_bytes : int
        Largest message.
    delegates : list of Delegate
        Its processes.
    """

    _news = PASSED
    _hands: ThreadPoolExecutor | None = None

    def isend(self, tensor: Tensor, *, occupied_ms: float = 0.0, tag: int = 0) -> Sent:
        """Hand a tensor to a delegate; waits for a free slot, but not for anything else.

        Parameters
        ----------
        tensor : Tensor
            Of any shape and type, contiguous or not.
        occupied_ms : float
            How long it shall occupy its delegates, as over a link that takes that long; it
            lands when this time is over.
        tag : int
            What the receiver is told with it.

        Raises
        ------
        DelegateError
            A delegate or the other rank is gone, or no slot gets free.
        ValueError
            The tensor is larger than a slot.
        """
        if tensor.nbytes > self.slot_bytes:
            raise ValueError(
                f"lane {self.name}: a message has {tensor.nbytes} bytes, "
                f"more than the {self.slot_bytes} of a slot"
            )
        tensor = tensor.detach()
        with self._order:  # what is sent first is copied first
            sent = self.place()
            if tensor.device.type == "cpu":
                shown_as(sent.content, tensor).copy_(tensor)
                self.hand_over(sent, tensor.nbytes, occupied_ms=occupied_ms, tag=tag)
                return sent
            copies = self._copies_of(tensor.device)
            copied = copies.out(tensor, sent.content)
            self._hands = self._hands or ThreadPoolExecutor(1)

            def copied_then_handed_over() -> None:
                copied.synchronize()
                self.hand_over(sent, tensor.nbytes, occupied_ms=occupied_ms, tag=tag)

            sent._copied = copies, copied, self._hands.submit(copied_then_handed_over)
            return sent

    def place(self) -> Sent:
        """Return a free slot to be filled, for :meth:`hand_over`; waits for one."""
        with self._order:
            number = self._next
            delegate = self._delegate(number)
            before = number - self._in_flight
            if before >= 0:
                deadline = time.monotonic() + self.timeout_s
                if not delegate.wait(lambda: before in delegate.said, deadline):
                    raise self._silence(delegate, self.timeout_s)
                del delegate.said[before]
            self._next += 1
            return Sent(number, self._slots[number], delegate)

    def hand_over(
        self,
        sent: Sent,
        size: int,
        *,
        occupied_ms: float = 0.0,
        tag: int = 0,
        at_ns: int | None = None,
    ) -> None:
        """Give a filled slot to its delegate.

        Parameters
        ----------
        size : int
            Bytes of the message.
        at_ns : int, optional
            From when on it may occupy its delegate; now, if not given.
        """
        sent.handed_ns = time.monotonic_ns() if at_ns is None else at_ns
        facts = size, tag, round(1e6 * occupied_ms), sent.handed_ns
        self._delegate(sent.number).tell(HANDED.pack(sent.number, *facts))

    def close(self) -> None:
        """End the delegates once they have passed on what they were handed."""
        if self._hands:
            self._hands.shutdown()
        if self._end.alive and os.getpid() == self._process:
            for delegate in self.delegates:
                with suppress(DelegateError):
                    delegate.tell(HANDED.pack(END, 0, 0, 0, 0))
            deadline = time.monotonic() + _PASS_ON_WITHIN_S
            for delegate in self.delegates:
                delegate.close(max(deadline - time.monotonic(), 0.0))
        super().close()

    def abandon(self) -> None:
        """End the delegates at once, whatever is under way."""
        if self._hands:
            self._hands.shutdown(wait=False, cancel_futures=True)
        super().abandon()


# -- receiving -----------------------------------------------------------------------------


class Receiver(_End):
    """The receiving end of a lane; any thread may use it. A context manager that closes it.

    A slot is free again once its message was waited for: who does not wait for its messages
    stops the sender in the end.

    Attributes
    ----------
    name : str
        The lane's.
    peer : int
        The sending rank.
    slot_bytes : int
        Largest message.
    delegates : list of Delegate
        Its processes.
    """

    _news = LANDED

    def irecv(self, tensor: Tensor | None = None) -> Received:
        """Return what the next message can be waited for with: the n-th is the n-th sent.

        Parameters
        ----------
        tensor : Tensor, optional
            What it is copied into when it is waited for, of as many bytes. None: it stays in
            its slot until it is released.
        """
        with self._order:
            received = Received(self, self._next, tensor)
            self._next += 1
            return received

    def lead(self, early_ms: float) -> None:
        """Let messages that are due at a time land earlier, to make up for what comes after."""
        for delegate in self.delegates:
            delegate.tell(FREED.pack(LEAD, round(1e6 * early_ms)))

    def _hear(self, received: Received, deadline_s: float) -> bool:
        delegate = self._delegate(received.number)
        while True:
            copying = self._free_copied()
            look_again = min(deadline_s, time.monotonic() + _LOOK_S) if copying else deadline_s
            if delegate.wait(lambda: received._is_in(delegate.said), look_again):
                return True
            if time.monotonic() >= deadline_s:
                return False

    def _free(self, number: int) -> None:
        with suppress(DelegateError):  # the message is here: who waits for the next will hear
            self._delegate(number).tell(FREED.pack(number, 0))

    def _free_after(self, copied: Event, number: int) -> None:
        with self._order:
            self._copying.append((copied, number))

    def _free_copied(self) -> bool:
        """Free the slots that were copied to a GPU; returns whether some are still being."""
        with self._order:
            done = [number for copied, number in self._copying if copied.query()]
            self._copying = [entry for entry in self._copying if entry[1] not in done]
        for number in done:
            self._free(number)
        return bool(self._copying)
