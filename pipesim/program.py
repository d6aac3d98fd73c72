"""The Program: what each device launches, in order, compute and communication.

A program is a schedule under a transport. It holds no times: these come from the scenario that
it is run under, and it can be run under any number of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from pipesim.errors import ScheduleError
from pipesim.schedule import Op, Schedule
from pipesim.transport import Transport

__all__ = ["Compute", "Group", "Instruction", "Message", "Post", "Program"]


class Message(NamedTuple):
    """The result of one operator on its way to the operator that needs it.

    An F sends its activation down to the next stage's F; a B or BW sends its gradient up
    to the previous stage's backward.
    """

    producer: Op
    consumer: Op

    def __str__(self) -> str:
        return f"{self.producer}→{self.consumer}"

    @property
    def link(self) -> int:
        """The link it crosses."""
        return min(self.producer.stage, self.consumer.stage)

    @property
    def direction(self) -> int:
        """Column of a delay array: ``DOWN`` (0) or ``UP`` (1)."""
        return int(self.consumer.stage < self.producer.stage)


class Compute(NamedTuple):
    """Run an operator on the compute stream once its results have arrived."""

    op: Op
    receives: tuple[Message, ...] = ()

    def __str__(self) -> str:
        return str(self.op)


class Group(NamedTuple):
    """Launch one communication kernel that sends and receives, on a stream of its device.

    ``blocking``: the device launches nothing more until the kernel has ended, and the
    kernel waits for all earlier compute.
    """

    stream: Hashable
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    blocking: bool = False

    def __str__(self) -> str:
        parts = [f"send {m}" for m in self.sends] + [f"receive {m}" for m in self.receives]
        return "[" + ", ".join(parts) + "]"


class Post(NamedTuple):
    """Hand a message to a path that needs nothing more from the device."""

    message: Message

    @property
    def sends(self) -> tuple[Message, ...]:
        """The message, as a :class:`Group` has it."""
        return (self.message,)

    @property
    def receives(self) -> tuple[Message, ...]:
        """None: it arrives by itself."""
        return ()

    def __str__(self) -> str:
        return f"post {self.message}"


Instruction: TypeAlias = Compute | Group | Post


@dataclass(frozen=True)
class Program:
    """The instructions of each device, shape [D][…], in launch order.

    Made by :func:`pipesim.lowering.lower`, which sees to it that both ends of every stream
    agree on the order of their messages and gives a group one send at most. Programs made by
    hand may hold several, and may deadlock when they run.

    Raises
    ------
    ScheduleError
        A device does not compute its operators in the schedule's order, computes with a
        message for another one, sends what it has not computed yet, or a message leaves or
        arrives twice or on a device that is not its own.
    """

    schedule: Schedule
    transport: Transport
    instructions: tuple[tuple[Instruction, ...], ...]

    def __post_init__(self) -> None:
        orders, placement = self.schedule.orders, self.schedule.placement
        if len(self.instructions) != len(orders):
            raise ScheduleError(
                f"the program is for {len(self.instructions)} devices, "
                f"the schedule for {len(orders)}"
            )
        sent: set[Op] = set()  # by producer: no operator sends two messages
        received: set[Op] = set()
        for device, instructions in enumerate(self.instructions):
            self._check_computes(device)
            computed: set[Op] = set()
            for instruction in instructions:
                if isinstance(instruction, Compute):
                    computed.add(instruction.op)
                    continue
                for message in instruction.sends:
                    if message.producer not in computed:
                        raise ScheduleError(
                            f"device {device} sends {message} before it is computed"
                        )
                    if message.producer in sent:
                        raise ScheduleError(f"{message} is sent twice")
                    sent.add(message.producer)
                for message in instruction.receives:
                    if placement[message.consumer.stage] != device:
                        raise ScheduleError(
                            f"device {device} receives {message}, meant for another"
                        )
                    if message.producer in received:
                        raise ScheduleError(f"{message} is received twice")
                    received.add(message.producer)

    def _check_computes(self, device: int) -> None:
        computes = [i for i in self.instructions[device] if isinstance(i, Compute)]
        for compute, op in zip_longest(computes, self.schedule.orders[device]):
            if compute is None or compute.op != op:
                raise ScheduleError(
                    f"device {device} computes {compute}, where the schedule has {op}"
                )
            if any(message.consumer != op for message in compute.receives):
                raise ScheduleError(f"device {device}: {op} waits for another operator's message")

    def __str__(self) -> str:
        lines = (" ".join(map(str, device)) for device in self.instructions)
        return "\n".join(f"device {d}: {line}" for d, line in enumerate(lines))
