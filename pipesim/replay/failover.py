"""Fail-over: from the message on whose direct path fails, a link goes through delegates.

The sender decides, message by message, so none is lost. The receiver takes a message from
whichever path brings it first, so none is doubled, even where a direct path that was given
up for dead delivers after all. Whoever notices that a link has failed, by an error, by a
send that does not end or by a message that comes through a delegate while its receive
waits, uses delegates for that link from then on.

A send may also be late because its receiver is: then both paths deliver, and the sender
goes back to the direct one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from functools import partial
from typing import NamedTuple

from torch import Tensor

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.clocks import now_ns
from pipesim.replay.delegation import Delegation
from pipesim.replay.direct import Direct, Finish, complete
from pipesim.replay.run import LinkFault, Run
from pipesim.replay.work import Payload

__all__ = ["Failover", "Switch"]

_GRACE_S = 0.02
"""How much later than through a delegate a message may come by a direct path that works."""


class Switch(NamedTuple):
    """A link that has gone over to delegates.

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


class _FailedError(Exception):
    """A direct path raised."""


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

    Attributes
    ----------
    switches : list of Switch
        What this process has switched.
    """

    def __init__(self, run: Run, direct: Direct, delegation: Delegation) -> None:
        assert run.failover_ms is not None
        self._run = run
        self._direct = direct
        self._delegation = delegation
        self._patience_s = run.failover_ms / 1e3
        self._failed: set[int] = set()
        self._deserted: set[tuple[int, int]] = set()  # links and directions that bring no more
        self._broken: int | None = None
        self._iteration = -1
        self.switches: list[Switch] = []

    def begin(self, iteration: int) -> None:
        """Get ready for an iteration: before anybody may send."""
        self._iteration = iteration
        self._direct.begin(iteration)
        self._received: dict[Message, _Received] = {
            message: _Received() for message in self._run.messages
        }

    def is_direct(self, link: int) -> bool:
        """Whether the link's own path is used."""
        return link not in self._failed

    def land(self, message: Message) -> None:
        """Take a message that a delegate has brought."""
        received = self._received[message]
        content = self._delegation.fetch(message)
        received.offer(self._direct.payload(message.link).of_bytes(content))
        if received.posted:
            judge = partial(self._judge, message, received)
            threading.Timer(_GRACE_S, judge).start()

    def _judge(self, message: Message, received: _Received) -> None:
        """Give up a link whose direct path has not brought what its receive waited for."""
        if not received.came_directly:
            self._failed.add(message.link)
            self._deserted.add((message.link, message.direction))

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
                except (NotInTime, _FailedError):
                    self._dispatch(message, sends[message], start)
                    sent.add_done_callback(partial(self._late, message))
            return {message: self._wait(message, future) for message, future in receiving.items()}

        return finish

    # -- sending -------------------------------------------------------------------------

    def _send(self, message: Message, tensor: Tensor) -> Future[None]:
        sent: Future[None] = Future()
        if message.link in self._failed:
            self._dispatch(message, tensor, now_ns())
            sent.set_result(None)
            return sent
        match self._fault(message):
            case LinkFault(how="raise"):
                sent.set_exception(_FailedError())
            case LinkFault(how="stop"):
                pass
            case _:
                work = self._direct.send(message, tensor)
                peer = self._direct.receiver(message)
                _settle(sent, lambda: complete(work, message, peer))
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

    def _dispatch(self, message: Message, tensor: Tensor, tried_ns: int) -> None:
        self._failed.add(message.link)
        if message.link not in {switch.message.link for switch in self.switches}:
            at = now_ns()
            self.switches.append(Switch(self._iteration, message, at, at - tried_ns))
        self._delegation.slot(message).copy_(Payload.bytes_of(tensor))
        self._delegation.dispatch(message, now_ns())

    def _late(self, message: Message, sent: Future[None]) -> None:
        """Go back to a direct path whose send has ended after all: its receiver was late."""
        if sent.exception() is None:
            self._failed.discard(message.link)
            self.switches = [switch for switch in self.switches if switch.message != message]

    # -- receiving -----------------------------------------------------------------------

    def _receive(self, message: Message) -> Future[Tensor]:
        """Return what will hold the message, from whichever path is first."""
        received = self._received[message]
        received.posted = True
        if (message.link, message.direction) not in self._deserted:
            room = self._direct.room(message)
            work = self._direct.receive(message, room)
            peer = self._direct.sender(message)

            def arrive(arrived: Future[None]) -> None:
                if arrived.exception() is None:
                    received.came_directly = True
                    received.offer(room)

            arrived: Future[None] = Future()
            arrived.add_done_callback(arrive)
            _settle(arrived, lambda: complete(work, message, peer))
        return received.future

    def _wait(self, message: Message, received: Future[Tensor]) -> Tensor:
        try:
            return received.result(self._run.timeout_s)
        except NotInTime:
            peer = self._direct.sender(message)
            raise ReplayError(f"rank {peer} does not answer for {message}") from None


def _settle(future: Future[None], wait: Callable[[], None]) -> None:
    """End ``future`` when ``wait``, called in a thread of its own, returns or raises."""

    def run() -> None:
        try:
            wait()
        except ReplayError:
            future.set_exception(_FailedError())
        else:
            future.set_result(None)

    threading.Thread(target=run, daemon=True).start()
