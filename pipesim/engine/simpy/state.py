"""What the parts of one run share: the clock, the arrivals, and the record."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf

import numpy as np
from simpy import Environment, Event

from pipesim.engine.injection import Injection
from pipesim.program import Compute, Message, Program
from pipesim.scenario import Array, Scenario
from pipesim.timeline import CommSpan, PathKind

__all__ = ["State", "after", "on"]


class State:
    """Shared by the devices, kernels and paths of one run.

    Attributes
    ----------
    arrived : dict of Message to Event
        Happens when the consumer of a message may start.
    comm : list of CommSpan
        What the messages did.
    sent_ms : array, shape [S−1, 2, N]
        Under an injection, the delay of each message that was sent, by link, direction and
        micro-batch; elsewhere nan.
    """

    def __init__(
        self,
        env: Environment,
        program: Program,
        scenario: Scenario,
        injection: Injection | None = None,
    ) -> None:
        self.env = env
        self.injection = injection
        self.program = program
        self.scenario = scenario
        self.comm: list[CommSpan] = []
        self.arrived: dict[Message, Event] = {
            message: Event(env)
            for device in program.instructions
            for instruction in device
            if isinstance(instruction, Compute)
            for message in instruction.receives
        }
        self.latency_ms: list[list[float]] = scenario.latency_ms.tolist()
        self.sent_ms: Array = np.full((scenario.stages - 1, 2, scenario.microbatches), np.nan)
        self._delay_ms: list[list[float]] = scenario.delay_ms.tolist()
        self._occupancy_ms: list[list[float]] = scenario.occupancy_ms.tolist()

    def occupancy_ms(self, message: Message, sender: Hashable) -> float:
        """Time that a send which starts now keeps ``sender`` busy."""
        link, direction = message.link, message.direction
        if self.injection is None:
            return self._occupancy_ms[link][direction]
        if self.env.now == inf:  # after a message that waits for ever
            return 0.0
        delay_ms = self.injection.delay_ms(sender, link, direction, self.env.now)
        self.sent_ms[link, direction, message.producer.microbatch] = delay_ms
        return delay_ms

    def flight_ms(self, message: Message, sender: Hashable) -> float:
        """Time that a send which starts now takes: transfer, latency and occupancy."""
        link, direction = message.link, message.direction
        if self.injection is None:
            return self._delay_ms[link][direction] + self.transfer_ms(message)
        latency_ms = self.latency_ms[link][direction]
        return latency_ms + self.transfer_ms(message) + self.occupancy_ms(message, sender)

    def transfer_ms(self, message: Message) -> float:
        """Time that a message's bytes take under the transport, without the link's delay."""
        return self.program.transport.transfer_ms(self.message_bytes(message))

    def message_bytes(self, message: Message) -> float:
        """Size of a message."""
        return float(self.scenario.message_bytes[message.link])

    def device_of(self, message: Message) -> int:
        """The device that sends ``message``."""
        return self.scenario.placement[message.producer.stage]

    def record(
        self, message: Message, path: PathKind, device: int, start_ms: float, end_ms: float
    ) -> None:
        """Note one step of a message's way."""
        self.comm.append(CommSpan(message, path, device, start_ms, end_ms))


def after(env: Environment, delay_ms: float, action: Callable[[], object]) -> None:
    """Do ``action`` in ``delay_ms``; now, if that is nothing."""
    if delay_ms > 0:
        on(env.timeout(delay_ms), action)
    else:
        action()


def on(event: Event, action: Callable[[], object]) -> None:
    """Do ``action`` when ``event``, which must be still to come, happens."""
    assert event.callbacks is not None

    def call(_: Event) -> None:
        action()

    event.callbacks.append(call)
