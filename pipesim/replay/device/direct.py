"""Direct transfers between CPU workers: gloo, whose sends wait for their receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.compute.work import Payload
from pipesim.replay.run.guard import LostPeerError, SilentPeerError
from pipesim.replay.run.run import Run

__all__ = ["Direct", "Finish", "Path", "complete"]

Finish: TypeAlias = Callable[[], dict[Message, Tensor]]
"""Waits until transfers have ended, and returns what was received."""

_CPU = torch.device("cpu")


class Path(Protocol):
    """Carries the transfers of a group."""

    def begin(self, iteration: int) -> None:
        """Get ready for an iteration: before anybody may send."""

    def is_direct(self, link: int) -> bool:
        """Whether the link's own path is used, with its injected delay."""

    def land(self, message: Message) -> None:
        """Take a message that belongs to a group but came through a delegate."""

    def start(self, sends: Mapping[Message, Tensor], receives: tuple[Message, ...]) -> Finish:
        """Start to send and receive, all at once, without waiting."""


class Direct:
    """Transfers over a group of all workers; iteration and message are the tag."""

    def __init__(
        self, run: Run, payload: Callable[[int], Payload], group: dist.ProcessGroup
    ) -> None:
        self._run = run
        self._group = group
        self._first_tag = 0
        self.payload = payload

    def begin(self, iteration: int) -> None:
        """Use other tags than in the iteration before."""
        self._first_tag = iteration * len(self._run.messages)

    def is_direct(self, link: int) -> bool:
        """No other path is used."""
        return True

    def land(self, message: Message) -> None:
        """No group is served by delegates."""
        raise ReplayError(f"a delegate brought {message}")

    def start(self, sends: Mapping[Message, Tensor], receives: tuple[Message, ...]) -> Finish:
        """Start to send and receive, all at once, without waiting."""
        received = {message: self.room(message) for message in receives}
        pending = [
            (self.receive(message, tensor), message, self.sender(message))
            for message, tensor in received.items()
        ]
        pending += [
            (self.send(message, tensor), message, self.receiver(message))
            for message, tensor in sends.items()
        ]

        def finish() -> dict[Message, Tensor]:
            for work, message, peer in pending:
                complete(work, message, peer)
            return received

        return finish

    def room(self, message: Message) -> Tensor:
        """Return a tensor to receive a message in."""
        return self.payload(message.link).empty(_CPU)

    def sender(self, message: Message) -> int:
        """The rank that sends a message."""
        return self._run.route(message).sender

    def receiver(self, message: Message) -> int:
        """The rank that receives a message."""
        return self._run.route(message).receiver

    def send(self, message: Message, tensor: Tensor) -> dist.Work:
        """Start to send a message."""
        with _named(message, self.receiver(message)):
            tag = self._first_tag + self._run.number[message]
            return self._group.send([Payload.bytes_of(tensor)], self.receiver(message), tag)

    def receive(self, message: Message, tensor: Tensor) -> dist.Work:
        """Start to receive a message."""
        with _named(message, self.sender(message)):
            tag = self._first_tag + self._run.number[message]
            return self._group.recv([Payload.bytes_of(tensor)], self.sender(message), tag)


def complete(work: dist.Work, message: Message, peer: int) -> None:
    """Wait for the end of a transfer.

    Raises
    ------
    SilentPeerError
        The peer does not answer.
    LostPeerError
        It has gone.
    """
    with _named(message, peer):
        work.wait()


class _named:  # noqa: N801
    """Turn what gloo raises into an error that names the message and the peer."""

    def __init__(self, message: Message, peer: int) -> None:
        self.message, self.peer = message, peer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, RuntimeError):
            return
        if "timed out" in str(error).lower():
            raise SilentPeerError(f"rank {self.peer} does not answer for {self.message}") from None
        raise LostPeerError(f"lost rank {self.peer} in {self.message}") from None
