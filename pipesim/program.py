"""The Program: what each device launches, in order, compute and communication.

A program is a schedule under a transport. It holds no times: these come from the scenario that
it is run under, and it can be run under any number of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple, TypeAlias

from pipesim.actions import End
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

    @property
    def sending(self) -> End:
        """Where it is sent, as a schedule's own communication names it."""
        result: Literal["F", "B"] = "F" if self.producer.kind == "F" else "B"
        return End("SEND", result, self.producer.stage, self.producer.microbatch)


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

    Its text names its ends of messages.

    Examples
    --------
    >>> sent = Message(Op("F", 0, 1), Op("F", 1, 1))
    >>> received = Message(Op("BW", 1, 0), Op("BW", 0, 0))
    >>> str(Group(0, (sent,), ())), str(Group(0, (sent,), (received,)))
    ('0SEND_F1', '[0SEND_F1, 0RECV_B0]')
    """

    stream: Hashable
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    blocking: bool = False

    def __str__(self) -> str:
        ends = [m.sending for m in self.sends] + [m.sending.other for m in self.receives]
        return str(ends[0]) if len(ends) == 1 else f"[{', '.join(map(str, ends))}]"


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

    Made by :func:`pipesim.lowering.lower`. Where that chooses the order of messages, both ends
    of every stream agree on it, and a group has one send at most. In a schedule's own order,
    and in programs made by hand, a group may hold several, and a run may deadlock.

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

    def waits(self, device: int, messages: Iterable[Message]) -> str:
        """Say that a device waits for the other ends of messages that it sends or receives."""
        ends = [message.sending for message in messages]
        sends = [self.schedule.placement[end.stage] == device for end in ends]
        own = [end if here else end.other for end, here in zip(ends, sends, strict=True)]
        return (
            f"device {device} waits in {' and '.join(map(str, own))} "
            f"for {' and '.join(str(end.other) for end in own)}"
        )

    def __str__(self) -> str:
        lines = (" ".join(map(str, device)) for device in self.instructions)
        return "\n".join(f"device {d}: {line}" for d, line in enumerate(lines))
