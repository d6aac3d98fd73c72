"""Paths that take a message off a device's hands: wires, and CPU delegation."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable
from typing import Protocol

from simpy import Event

from pipesim.engine.senders import senders
from pipesim.engine.simpy.state import State, after, on
from pipesim.program import Compute, Message, Post
from pipesim.timeline import PathKind
from pipesim.transport import Delegated

__all__ = ["Delegation", "Paths", "Wires"]


class Paths(Protocol):
    """Brings posted messages to their consumers."""

    def post(self, message: Message, produced: Event) -> None:
        """Take over ``message``, which exists once ``produced`` has happened."""

    def fetch_ms(self, message: Message) -> float:
        """How long the operator that needs ``message`` has to wait once it has arrived."""


class Wires:
    """Any number of messages in flight, each for its link's delay and transfer time."""

    def __init__(self, state: State) -> None:
        self.state = state

    def post(self, message: Message, produced: Event) -> None:
        """Send ``message`` the moment that it is produced."""
        state = self.state

        def send() -> None:
            now, sender = state.env.now, state.device_of(message)
            flight = state.flight_ms(message, sender)
            state.record(message, "wire", sender, now, now + flight)
            after(state.env, flight, state.arrived[message].succeed)

        on(produced, send)

    def fetch_ms(self, message: Message) -> float:
        """Return 0: what has arrived is there."""
        return 0.0


class Delegation:
    """Device → host copy engine → a delegate process → host → device copy engine.

    The last of these is the operator's own business where copies are made on demand. Every step
    serves its messages in a fixed order: the copy engines in program order, the delegates of one
    neighbour and direction in turn. So no order depends on time, and a
    longer delay can never shorten a run.
    """

    def __init__(self, state: State, transport: Delegated) -> None:
        self.state = state
        self.transport = transport
        program = state.program
        posts = [
            [i.message for i in device if isinstance(i, Post)] for device in program.instructions
        ]
        posted = {message for device in posts for message in device}
        self._produced = {message: Event(state.env) for message in posted}
        self._on_sending_host = {message: Event(state.env) for message in posted}
        self._on_receiving_host = {message: Event(state.env) for message in posted}
        self._on_demand = posted if transport.copy_on_demand else set()
        self._landed = state.arrived if transport.copy_on_demand else self._on_receiving_host
        for d, device in enumerate(program.instructions):
            fetched = [
                message
                for instruction in device
                if isinstance(instruction, Compute)
                for message in instruction.receives
                if message in posted
            ]
            state.env.process(self._copy_out(d, posts[d]))
            if not transport.copy_on_demand:
                state.env.process(self._copy_in(d, fetched))
        for sender, messages in senders(program).items():
            if isinstance(sender, tuple):
                state.env.process(self._delegate(sender, messages))

    def post(self, message: Message, produced: Event) -> None:
        """Queue ``message`` for the copy to host memory."""
        on(produced, self._produced[message].succeed)

    def fetch_ms(self, message: Message) -> float:
        """The time of its copy to the device, where that is made on demand."""
        return self._copy_ms(message) if message in self._on_demand else 0.0

    def _copy_ms(self, message: Message) -> float:
        return self.transport.copy_ms(self.state.message_bytes(message))

    def _copy_out(self, device: int, messages: list[Message]) -> Generator[Event, object, None]:
        for message in messages:
            yield self._produced[message]
            yield from self._hold(message, "copy-out", device, self._copy_ms(message))
            self._on_sending_host[message].succeed()

    def _delegate(
        self, sender: tuple[int, Hashable], messages: Iterable[Message]
    ) -> Generator[Event, object, None]:
        for message in messages:
            yield self._on_sending_host[message]
            held_ms = self.state.flight_ms(message, sender)
            yield from self._hold(message, "delegate", sender[0], held_ms)
            self._landed[message].succeed()

    def _copy_in(self, device: int, messages: list[Message]) -> Generator[Event, object, None]:
        for message in messages:
            yield self._on_receiving_host[message]
            yield from self._hold(message, "copy-in", device, self._copy_ms(message))
            self.state.arrived[message].succeed()

    def _hold(
        self, message: Message, path: PathKind, device: int, time_ms: float
    ) -> Generator[Event, object, None]:
        if time_ms > 0:
            now = self.state.env.now
            self.state.record(message, path, device, now, now + time_ms)
            yield self.state.env.timeout(time_ms)
