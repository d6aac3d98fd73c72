"""Lowering: from a schedule and a transport to a program.

The question is where on each device a message is sent and received. Asynchronous
transports post a message after its operator and are done. NCCL kernels queue up: both ends
of a stream must meet their messages in the same order, or the run deadlocks. The order is
that of the *expected* completion of the operators that send, under healthy links.

Why this cannot deadlock: give every instruction its expected time (a compute its start, a
message its sender's end). Everything that an instruction waits for, through data, stream or
launch queue, has an earlier time, because a receive is posted no earlier than before the
compute during which it is expected, and nothing arrives the moment that it leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pipesim.program import Compute, Group, Instruction, Message, Post, Program
from pipesim.scenario import KINDS, Scenario
from pipesim.schedule import Op, Schedule
from pipesim.transport import Delegated, Exchange, Nccl, Transport

__all__ = ["lower"]

ORDERING_COST = 0.05
"""Time of a message, in mean operator times, that the expected times are computed under.

Zero would leave ties between stages that say nothing about who is really first; 0.5 ms on
10 ms operators matches the order that measured runs show."""


def lower(schedule: Schedule, scenario: Scenario, transport: Transport) -> Program:
    """Return the program that runs ``schedule`` over ``transport``.

    Delays do not matter here: a program is made for the healthy pipeline and then meets
    the slow one. The one exception is ``Delegated(only_slow=True)``, which has to know
    which links are slow.

    Raises
    ------
    ScheduleError
        The schedule does not fit the scenario.
    """
    schedule.check_fits(scenario)
    messages = _Messages.of(schedule)
    match transport:
        case Nccl():
            instructions = _queued(messages, scenario, transport)
        case Delegated(only_slow=True):
            slow = {
                message
                for message in messages.sent.values()
                if scenario.delay_ms[message.link, message.direction] > 0
            }
            instructions = _queued(messages, scenario, Nccl(), posted=slow)
        case Exchange():
            instructions = _paired(messages)
            if not _progresses(instructions):
                instructions = _in_expected_order(messages, scenario)
        case _:
            instructions = _posted(messages)
    return Program(schedule, transport, instructions)


Instructions = tuple[tuple[Instruction, ...], ...]


class _Messages(NamedTuple):
    """Every message between devices, by the operator that sends and that receives it."""

    schedule: Schedule
    sent: dict[Op, Message]
    received: dict[Op, Message]

    @classmethod
    def of(cls, schedule: Schedule) -> _Messages:
        placement = schedule.placement
        messages = [
            Message(need, op)
            for order in schedule.orders
            for op in order
            for need in schedule.needs(op)
            if placement[need.stage] != placement[op.stage]
        ]
        return cls(schedule, {m.producer: m for m in messages}, {m.consumer: m for m in messages})

    def compute(self, op: Op) -> Compute:
        message = self.received.get(op)
        return Compute(op, (message,) if message else ())

    def of_device(self, device: int) -> Iterator[Message]:
        """The messages that a device sends or receives, by operator."""
        for op in self.schedule.orders[device]:
            for book in (self.received, self.sent):
                if op in book:
                    yield book[op]


def _posted(messages: _Messages) -> Instructions:
    """Send everything along paths that block nobody."""

    def device(order: tuple[Op, ...]) -> Iterator[Instruction]:
        for op in order:
            yield messages.compute(op)
            if op in messages.sent:
                yield Post(messages.sent[op])

    return tuple(tuple(device(tuple(order))) for order in messages.schedule.orders)


# -- NCCL: one queue, ordered by expected completion ---------------------------------------


class _Expected(NamedTuple):
    """Expected start and end of each operator, and the total order of messages."""

    start: dict[Op, float]
    end: dict[Op, float]
    rank: dict[Op, tuple[float, int, int]]

    @classmethod
    def of(cls, schedule: Schedule, scenario: Scenario) -> _Expected:
        times = {kind: scenario.durations_ms(kind).tolist() for kind in KINDS}
        ops = schedule.topological_order
        durations = [times[op.kind][op.stage][op.microbatch] for op in ops]
        cost = ORDERING_COST * sum(durations) / len(durations) or 1.0
        free = [0.0] * schedule.devices
        start: dict[Op, float] = {}
        end: dict[Op, float] = {}
        rank: dict[Op, tuple[float, int, int]] = {}
        for position, (op, duration) in enumerate(zip(ops, durations, strict=True)):
            device = schedule.placement[op.stage]
            begin = free[device]
            for need in schedule.needs(op):
                remote = schedule.placement[need.stage] != device
                begin = max(begin, end[need] + cost * remote)
            start[op], end[op] = begin, begin + duration
            free[device] = end[op]
            # Equal times on one device keep its order; between devices any rule will do,
            # as long as both ends use the same one.
            rank[op] = (end[op], device, position)
        return cls(start, end, rank)


def _queued(
    messages: _Messages, scenario: Scenario, nccl: Nccl, posted: Container[Message] = ()
) -> Instructions:
    """Queue kernels in expected order, receives ahead of the compute that they overlap.

    The messages in ``posted`` stay out of the queue.
    """
    schedule = messages.schedule
    expected = _Expected.of(schedule, scenario)

    def stream(message: Message, device: int) -> Hashable:
        sending = schedule.placement[message.producer.stage] == device
        other = message.consumer if sending else message.producer
        peer = schedule.placement[other.stage]
        return {"device": 0, "peer": peer, "direction": (peer, sending)}[nccl.p2p_streams]

    def device(d: int) -> Iterator[Instruction]:
        order = schedule.orders[d]
        ends = [expected.end[op] for op in order]
        queued = [message for message in messages.of_device(d) if message not in posted]
        slots = _slots(
            order, queued, expected, lambda m: bisect_left(ends, expected.end[m.producer])
        )
        for op, run in zip(order, slots, strict=False):
            yield from kernels(d, run, messages.received.get(op))
            yield messages.compute(op)
            sent = messages.sent.get(op)
            if sent and sent in posted:
                yield Post(sent)
        yield from kernels(d, slots[-1], None)

    def kernels(d: int, run: list[Message], consumed: Message | None) -> Iterator[Instruction]:
        batches = _split_after(run, consumed) if nccl.fused else [[message] for message in run]
        for batch in batches:
            streams: dict[Hashable, list[Message]] = {}
            for message in batch:
                streams.setdefault(stream(message, d), []).append(message)
            for key, fused in streams.items():
                yield _group(schedule, d, fused, stream=key)

    return tuple(tuple(device(d)) for d in range(schedule.devices))


def _slots(
    order: Sequence[Op],
    messages: Iterable[Message],
    expected: _Expected,
    receive_slot: Callable[[Message], int],
) -> list[list[Message]]:
    """Sort a device's messages into the gaps before each operator, and after the last.

    A send goes right after its operator, a receive where ``receive_slot`` says; the common
    order of messages wins over both.
    """
    position = {op: i for i, op in enumerate(order)}
    slots: list[list[Message]] = [[] for _ in range(len(order) + 1)]
    slot = 0
    for message in sorted(messages, key=lambda m: expected.rank[m.producer]):
        sent_by = position.get(message.producer)
        slot = max(slot, receive_slot(message) if sent_by is None else sent_by + 1)
        slots[slot].append(message)
    return slots


def _split_after(run: list[Message], consumed: Message | None) -> list[list[Message]]:
    """Close a group at the receive that the next compute is waiting for."""
    if consumed not in run:
        return [run] if run else []
    cut = run.index(consumed) + 1
    return [part for part in (run[:cut], run[cut:]) if part]


def _group(
    schedule: Schedule,
    d: int,
    batch: list[Message],
    *,
    stream: Hashable = 0,
    blocking: bool = False,
) -> Group:
    sends = tuple(m for m in batch if schedule.placement[m.producer.stage] == d)
    receives = tuple(m for m in batch if schedule.placement[m.consumer.stage] == d)
    return Group(stream, sends, receives, blocking)


# -- exchange: Megatron's blocking batches -------------------------------------------------


def _paired(messages: _Messages) -> Instructions:
    """Pair each send with the next operator's receive from the same neighbour."""
    schedule = messages.schedule

    def peer(message: Message, d: int) -> int:
        ends = (schedule.placement[op.stage] for op in message)
        return next(e for e in ends if e != d)

    def device(d: int) -> Iterator[Instruction]:
        order = schedule.orders[d]
        for i, op in enumerate(order):
            sent = messages.sent.get(order[i - 1]) if i else None
            received = messages.received.get(op)
            batches = [[m] for m in (sent, received) if m]
            if sent and received and peer(sent, d) == peer(received, d):
                batches = [[sent, received]]
            for batch in batches:
                yield _group(schedule, d, batch, blocking=True)
            yield messages.compute(op)
        last = messages.sent.get(order[-1])
        if last:
            yield _group(schedule, d, [last], blocking=True)

    return tuple(tuple(device(d)) for d in range(schedule.devices))


def _in_expected_order(messages: _Messages, scenario: Scenario) -> Instructions:
    """Order blocking batches by expected completion, for schedules that cannot be paired.

    Megatron runs no such schedule. A receive is posted at the first gap between two
    operators after its message is expected.
    """
    schedule = messages.schedule
    expected = _Expected.of(schedule, scenario)

    def device(d: int) -> Iterator[Instruction]:
        order = schedule.orders[d]
        starts = [expected.start[op] for op in order]
        slots = _slots(
            order,
            messages.of_device(d),
            expected,
            lambda m: bisect_left(starts, expected.end[m.producer]),
        )
        for slot, run in enumerate(slots):
            if run:
                yield _group(schedule, d, run, blocking=True)
            if slot < len(order):
                yield messages.compute(order[slot])

    return tuple(tuple(device(d)) for d in range(schedule.devices))


def _progresses(instructions: Instructions) -> bool:
    """Whether blocking batches all meet their other ends, whatever the times."""
    heads = [0] * len(instructions)
    reached: dict[Message, int] = {}

    def passes(instruction: Instruction) -> bool:
        if not isinstance(instruction, Group):
            return True
        return all(reached[m] == 2 for m in (*instruction.sends, *instruction.receives))

    arrived = [-1] * len(instructions)
    moved = True
    while moved:
        moved = False
        for d, device in enumerate(instructions):
            while heads[d] < len(device):
                instruction = device[heads[d]]
                if isinstance(instruction, Group) and arrived[d] < heads[d]:
                    arrived[d] = heads[d]
                    moved = True
                    for message in (*instruction.sends, *instruction.receives):
                        reached[message] = reached.get(message, 0) + 1
                if not passes(instruction):
                    break
                heads[d] += 1
                moved = True
    return all(head == len(device) for head, device in zip(heads, instructions, strict=True))
