"""Fail-over: from the first message whose direct path fails, a link goes through delegates.

The sender decides, message by message, so none is lost. The receiver takes a message from
whichever path brings it first, so none is duplicated, even if a direct path that was given
up delivers after all. Whoever notices that a link has failed, by an error, by a
send that does not end or by a message that comes through a delegate while its receive
waits, uses delegates for that link from then on.

A send may also be late because its receiver is: then both paths deliver, and both ends go
back to the direct one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from functools import partial
from typing import NamedTuple

from torch import Tensor

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.compute.work import Payload
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.device.direct import Direct, Finish, complete
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.guard import SilentPeerError
from pipesim.replay.run.run import LinkFault, Run

__all__ = ["Failover", "Link", "Switch", "Transfer"]

_GRACE_S = 0.02
"""How much later than a delegate's a message of a working direct path may come."""


class Transfer(NamedTuple):
    """A message of an iteration."""

    iteration: int
    message: Message


class Switch(NamedTuple):
    """A link that has switched to delegates.

    Attributes
    ----------
    iteration : int
        In which iteration.
    message : Message
        The first that its sender gave to a delegate.
    at_ns : int
        When, on this process's clock.
    waited_ns : int
        How long after its direct path was tried.
    """

    iteration: int
    message: Message
    at_ns: int
    waited_ns: int


class Link:
    """What one process knows of a link; any thread may ask or tell.

    Attributes
    ----------
    switch : Switch or None
        Since when this process uses delegates for it.
    """

    def __init__(self) -> None:
        self.switch: Switch | None = None
        self._lost: set[Transfer] = set()
        self._lock = threading.Lock()

    @property
    def is_direct(self) -> bool:
        """Whether no direct transfer was lost, in either direction."""
        return not self._lost

    def brings(self, direction: int) -> bool:
        """Whether no direct transfer in this direction was lost."""
        with self._lock:
            return all(lost.message.direction != direction for lost in self._lost)

    def lose(self, transfer: Transfer) -> None:
        """Note that a direct transfer has failed, or does not end."""
        with self._lock:
            self._lost.add(transfer)

    def find(self, transfer: Transfer) -> None:
        """Note that a direct transfer has ended well, after all: it was only late."""
        with self._lock:
            self._lost.discard(transfer)
            if not self._lost:
                self.switch = None

    def go_over(self, switch: Switch) -> None:
        """Note the first message that goes through a delegate."""
        with self._lock:
            if self._lost and self.switch is None:
                self.switch = switch


class _Received:
    """The first of what two paths bring."""

    def __init__(self) -> None:
        self.future: Future[Tensor] = Future()
        self.posted = False
        self.came_directly = False
        self._only_one = threading.Lock()

    def offer(self, tensor: Tensor) -> None:
        with self._only_one:
            if not self.future.done():
                self.future.set_result(tensor)


class Failover:
    """A path of groups that uses direct transfers until they fail.

    Parameters
    ----------
    run : Run
        With fail-over.
    direct : Direct
        Over a group whose transfers never time out: some will be given up.
    delegation : Delegation
        With delegates for every route.
    """

    def __init__(self, run: Run, direct: Direct, delegation: Delegation) -> None:
        assert run.failover_ms is not None
        self._run = run
        self._direct = direct
        self._delegation = delegation
        self._patience_s = run.failover_ms / 1e3
        self._links = [Link() for _ in range(run.scenario.stages - 1)]
        self._broken: int | None = None
        self._iteration = -1
        # One thread for each transfer that is waited for, or was given up.
        self._waits = ThreadPoolExecutor(run.total_iterations * len(run.messages) + 1)

    @property
    def switches(self) -> list[Switch]:
        """What this process has switched."""
        return [link.switch for link in self._links if link.switch]

    def begin(self, iteration: int) -> None:
        """Get ready for an iteration: before anybody may send."""
        self._iteration = iteration
        self._direct.begin(iteration)
        self._received: dict[Message, _Received] = {
            message: _Received() for message in self._run.messages
        }

    def is_direct(self, link: int) -> bool:
        """Whether the link's own path is used."""
        return self._links[link].is_direct

    # -- sending -------------------------------------------------------------------------

    def start(self, sends: Mapping[Message, Tensor], receives: tuple[Message, ...]) -> Finish:
        """Start to send and receive, all at once, by whichever path."""
        start = now_ns()
        receiving = {message: self._receive(message) for message in receives}
        sending = {message: self._send(message, tensor) for message, tensor in sends.items()}

        def finish() -> dict[Message, Tensor]:
            for message, sent in sending.items():
                left = start / 1e9 + self._patience_s - now_ns() / 1e9
                try:
                    sent.result(max(left, 0.0))
                except (NotInTime, ReplayError):
                    self._give_up(message, sends[message], sent, start)
            return {message: self._wait(message, future) for message, future in receiving.items()}

        return finish

    def _send(self, message: Message, tensor: Tensor) -> Future[None]:
        sent: Future[None] = Future()
        if not self.is_direct(message.link):
            self._dispatch(message, tensor, now_ns())
            sent.set_result(None)
            return sent
        match self._fault(message):
            case LinkFault(how="raise"):
                sent.set_exception(ReplayError("injected"))
            case LinkFault(how="stop"):
                pass
            case _:
                try:
                    work = self._direct.send(message, tensor)
                except ReplayError as error:
                    sent.set_exception(error)
                else:
                    peer = self._direct.receiver(message)
                    return self._waits.submit(complete, work, message, peer)
        return sent

    def _fault(self, message: Message) -> LinkFault | None:
        """Return the injected fault that ``message`` meets."""
        fault = self._run.fault
        if fault is None:
            return None
        when = fault.iteration + self._run.warmup
        if (self._iteration, message.producer) == (when, fault.producer):
            self._broken = message.link
        return fault if self._broken == message.link else None

    def _give_up(self, message: Message, tensor: Tensor, sent: Future[None], tried: int) -> None:
        """Send through a delegate what was not sent directly; it may be late, though."""
        link, transfer = self._links[message.link], Transfer(self._iteration, message)
        link.lose(transfer)
        self._dispatch(message, tensor, tried)

        def late(sent: Future[None]) -> None:
            if sent.exception() is None:
                link.find(transfer)

        sent.add_done_callback(late)

    def _dispatch(self, message: Message, tensor: Tensor, tried_ns: int) -> None:
        at = now_ns()
        switch = Switch(self._iteration, message, at, at - tried_ns)
        self._links[message.link].go_over(switch)
        self._delegation.slot(message).copy_(Payload.bytes_of(tensor))
        self._delegation.dispatch(message, now_ns())

    # -- receiving -----------------------------------------------------------------------

    def _receive(self, message: Message) -> Future[Tensor]:
        """Return what will hold the message, from whichever path is first."""
        received = self._received[message]
        link, transfer = self._links[message.link], Transfer(self._iteration, message)
        if link.brings(message.direction):
            received.posted = True
            room = self._direct.room(message)
            work = self._direct.receive(message, room)

            def arrive(arrived: Future[None]) -> None:
                if arrived.exception() is None:
                    received.came_directly = True
                    received.offer(room)
                    link.find(transfer)

            arrived = self._waits.submit(complete, work, message, self._direct.sender(message))
            arrived.add_done_callback(arrive)
        return received.future

    def land(self, message: Message) -> None:
        """Take a message that a delegate has brought."""
        received = self._received[message]
        content = self._delegation.fetch(message)
        received.offer(self._direct.payload(message.link).of_bytes(content))
        if received.posted:
            judge = partial(self._judge, Transfer(self._iteration, message), received)
            threading.Timer(_GRACE_S, judge).start()

    def _judge(self, transfer: Transfer, received: _Received) -> None:
        """Give up a link whose direct path has not brought what its receive waited for."""
        link = self._links[transfer.message.link]
        if not received.came_directly:
            link.lose(transfer)
            if received.came_directly:  # and was found before it was lost
                link.find(transfer)

    def _wait(self, message: Message, received: Future[Tensor]) -> Tensor:
        try:
            return received.result(self._run.timeout_s)
        except NotInTime:
            peer = self._direct.sender(message)
            raise SilentPeerError(f"rank {peer} does not answer for {message}") from None
