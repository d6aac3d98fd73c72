"""What the parts of one run share: the clock, the arrivals, and the record."""

from __future__ import annotations

from collections.abc import Callable

from simpy import Environment, Event

from pipesim.program import Compute, Message, Program
from pipesim.scenario import Scenario
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
    """

    def __init__(self, env: Environment, program: Program, scenario: Scenario) -> None:
        self.env = env
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
        self.delay_ms: list[list[float]] = scenario.delay_ms.tolist()
        self.latency_ms: list[list[float]] = scenario.latency_ms.tolist()
        self.occupancy_ms: list[list[float]] = scenario.occupancy_ms.tolist()

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
