"""The Program: what each device launches, in order, compute and communication.

A program is a schedule under a transport. It still holds no time: it is run under a
scenario, and under as many as you like.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

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
    """Hand a message to a path that needs nothing of the device any more."""

    message: Message

    def __str__(self) -> str:
        return f"post {self.message}"


Instruction: TypeAlias = Compute | Group | Post


@dataclass(frozen=True)
class Program:
    """The instructions of each device, shape [D][…], in launch order.

    Made by :func:`pipesim.lowering.lower`, which sees to it that both ends of every stream
    agree on the order of their messages.
    """

    schedule: Schedule
    transport: Transport
    instructions: tuple[tuple[Instruction, ...], ...]

    def __str__(self) -> str:
        lines = (" ".join(map(str, device)) for device in self.instructions)
        return "\n".join(f"device {d}: {line}" for d, line in enumerate(lines))
