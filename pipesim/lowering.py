"""Lowering: from a schedule and a transport to a program.

The question is where on each device a message is sent and received. Asynchronous
transports post a message after its operator and are done. NCCL kernels queue up: both ends
of a stream must meet their messages in the same order, or the run deadlocks. Where a schedule
says itself where it sends and receives (:attr:`Schedule.communicates`), that is the order,
deadlock or not. Else it is that of the *expected* completion of the operators that send, under
healthy links.

Why the latter cannot deadlock: give every instruction its expected time (a compute its start, a
message its sender's end). Everything that an instruction waits for, through data, stream or
launch queue, has an earlier time, because a receive is posted no earlier than before the
compute during which it is expected, and nothing arrives the moment that it leaves.

Operators are numbered here by their position in :attr:`Schedule.ops`, and a message by that of
the operator that sends it: none sends two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from pipesim.actions import Action, ends_of, operators_of
from pipesim.communication import unbatched
from pipesim.program import Compute, Group, Instruction, Message, Post, Program
from pipesim.scenario import KINDS, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Nccl, Transport
from pipesim.units import whole

__all__ = ["lower", "read_by_lowering"]

ORDERING_COST = 0.05
"""Time of a message, in mean operator times, that the expected times are computed under.

Zero would leave ties between stages that say nothing about who is really first; 0.5 ms on
10 ms operators matches the order that measured runs show."""

_FINER = 2**20
"""Parts of a unit in which that cost is rounded."""


def lower(schedule: Schedule, scenario: Scenario, transport: Transport) -> Program:
    """Return the program that runs ``schedule`` over ``transport``.

    Delays do not matter here: a program is made for the healthy pipeline and then meets
    the slow one. The one exception is ``Delegated(only_slow=True)``, which has to know
    which links are slow.

    A schedule's own order of sends and receives is kept where kernels queue up: each is a kernel
    of its own under ``nccl``, as PyTorch launches them, and one that blocks under ``exchange``.
    Those of a batch are one kernel, but over ``Nccl(fused=False)``. Over the other transports, and
    for messages that ``only_slow`` delegates, a message leaves right after its operator, and none
    waits for another.

    Raises
    ------
    ScheduleError
        The schedule does not fit the scenario.
    """
    schedule.check_fits(scenario)
    messages = _Messages(schedule)
    own = schedule.communicates and transport.queues
    match transport:
        case Nccl():
            if own:
                batches = _own_batches(messages, fused=transport.fused)
            else:
                batches = _launched(messages, _ahead(messages, scenario), fused=transport.fused)
            instructions = _queued(messages, batches, transport.p2p_streams)
        case Delegated(only_slow=True):
            slow = scenario.delay_ms > 0
            posted = {
                sender
                for sender, message in messages.sent.items()
                if slow[message.link, message.direction]
            }
            if own:
                batches = _own_batches(messages, posted)
            else:
                batches = _launched(messages, _ahead(messages, scenario, posted))
            instructions = _queued(messages, batches, posted=posted)
        case Exchange() if own:
            instructions = _blocking(messages, _own_batches(messages))
        case Exchange():
            instructions = _blocking(messages, _exchanged(messages, scenario))
        case _:
            instructions = _posted(messages)
    return Program(schedule, transport, instructions)


def read_by_lowering(scenario: Scenario, transport: Transport) -> Hashable:
    """What :func:`lower` reads of a scenario, besides its shape, for one transport.

    Scenarios for which this is equal share their programs.
    """
    times = tuple(scenario.durations_ms(kind).tobytes() for kind in KINDS)
    match transport:
        case Nccl() | Exchange():
            return times
        case Delegated(only_slow=True):
            return times, (scenario.delay_ms > 0).tobytes()
        case _:
            return ()


Instructions: TypeAlias = tuple[tuple[Instruction, ...], ...]
Gaps: TypeAlias = list[list[list[int]]]
"""For each device the messages before each operator, and after the last."""
Batches: TypeAlias = list[list[list[list[int]]]]
"""The same, by the kernels that they share."""


class _Messages:
    """Every message between devices.

    Attributes
    ----------
    sent : dict of int to Message
        By the operator that sends.
    received : dict of int to int
        The sender of what an operator receives; no operator receives two.
    ends : dict of int to tuple
        The devices that send and receive a message.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.sent: dict[int, Message] = {}
        self.received: dict[int, int] = {}
        self.ends: dict[int, tuple[int, int]] = {}
        ops, placement = schedule.ops, schedule.placement
        position = {op: place for place, op in enumerate(ops)}
        for to, op in enumerate(ops):
            for need in schedule.needs(op):
                devices = placement[need.stage], placement[op.stage]
                if devices[0] != devices[1]:
                    sender = position[need]
                    self.sent[sender] = Message(ops[sender], op)
                    self.received[to] = sender
                    self.ends[sender] = devices

    @property
    def devices(self) -> Iterator[range]:
        """The operators of each device."""
        first = self.schedule.first
        return map(range, first[:-1], first[1:])

    def compute(self, op: int) -> Compute:
        sender = self.received.get(op)
        return Compute(self.schedule.ops[op], () if sender is None else (self.sent[sender],))

    def group(
        self, device: int, batch: Sequence[int], *, stream: Hashable = 0, blocking: bool = False
    ) -> Group:
        sides: tuple[list[Message], list[Message]] = [], []
        for message in batch:
            sides[self.ends[message][0] != device].append(self.sent[message])
        return Group(stream, tuple(sides[0]), tuple(sides[1]), blocking)


def _posted(messages: _Messages) -> Instructions:
    """Send everything along paths that block nobody."""

    def device(own: range) -> Iterator[Instruction]:
        for op in own:
            yield messages.compute(op)
            if op in messages.sent:
                yield Post(messages.sent[op])

    return tuple(tuple(device(own)) for own in messages.devices)


def _own_batches(
    messages: _Messages, posted: Collection[int] = (), *, fused: bool = True
) -> Batches:
    """The messages but the posted where the schedule itself sends and receives them."""
    sender = {message.sending: place for place, message in messages.sent.items()}
    schedule = messages.schedule
    rows = schedule.actions or ()

    def device(actions: Iterable[Action]) -> list[list[list[int]]]:
        gaps: list[list[list[int]]] = [[]]
        for action in actions:
            batch = [sender[end if end.sends else end.other] for end in ends_of([action])]
            kept = [message for message in batch if message not in posted]
            if kept:
                gaps[-1].append(kept)
            gaps += [[] for _ in operators_of([action])]
        return gaps

    return [device(row) for row in (rows if fused else unbatched(rows, schedule.placement))]


# -- NCCL: one queue, ordered by expected completion ---------------------------------------


class _Expected(NamedTuple):
    """Expected start and end of each operator, and the messages in their common order.

    In whole numbers, so that what is expected at the same moment is so in every unit of time.
    """

    start: list[int]
    end: list[int]
    order: list[int]

    @classmethod
    def of(cls, messages: _Messages, scenario: Scenario) -> _Expected:
        schedule = messages.schedule
        order = schedule.topological_positions
        durations = _durations(schedule, scenario)
        cost = round(ORDERING_COST * sum(durations) / len(order)) or 1
        devices = [d for d, own in enumerate(messages.devices) for _ in own]
        received = messages.received
        free = [0] * schedule.devices
        start, end = [0] * len(order), [0] * len(order)
        rank = [0] * len(order)
        for place, op in enumerate(order):
            device = devices[op]
            begin = free[device]  # which is when all that it needs on its device has ended
            if op in received:
                begin = max(begin, end[received[op]] + cost)
            start[op] = begin
            free[device] = end[op] = begin + durations[op]
            rank[op] = place
        # Equal times on one device keep its order; between devices any rule will do, as long
        # as both ends use the same one.
        return cls(start, end, sorted(messages.sent, key=lambda m: (end[m], devices[m], rank[m])))


def _durations(schedule: Schedule, scenario: Scenario) -> list[int]:
    """Durations in a unit that also counts what a message is expected to take."""
    times = np.stack([scenario.durations_ms(kind) for kind in KINDS]).ravel()[schedule.codes]
    (counts,), _ = whole(times)
    return [_FINER * count for count in counts.astype(int).tolist()]


def _in_order(
    messages: _Messages, order: Iterable[int], receive_gap: Callable[[int, int], int]
) -> Gaps:
    """Sort messages, which come in their common order, into the gaps between operators.

    A send goes right after its operator, a receive before the operator of its device that
    ``receive_gap`` says; the common order of messages wins over both.
    """
    devices = list(messages.devices)
    gaps: Gaps = [[[] for _ in range(len(own) + 1)] for own in devices]
    reached = [0] * len(devices)
    for sender in order:
        own, other = messages.ends[sender]
        wanted = (own, sender + 1 - devices[own].start), (other, receive_gap(other, sender))
        for device, gap in wanted:
            reached[device] = max(reached[device], gap)
            gaps[device][reached[device]].append(sender)
    return gaps


def _ahead(messages: _Messages, scenario: Scenario, posted: Collection[int] = ()) -> Gaps:
    """All messages but the posted in expected order, receives ahead of the compute they overlap."""
    expected = _Expected.of(messages, scenario)
    ends = [expected.end[own.start : own.stop] for own in messages.devices]
    order = [sender for sender in expected.order if sender not in posted]
    return _in_order(messages, order, lambda device, m: bisect_left(ends[device], expected.end[m]))


def _launched(messages: _Messages, gaps: Gaps, *, fused: bool = True) -> Batches:
    """The kernels of messages in gaps: groups up to the next compute, or one for each message."""

    def batches(run: list[int], consumed: int | None) -> list[list[int]]:
        return _split_after(run, consumed) if fused else [[message] for message in run]

    return [
        [batches(run, messages.received.get(op)) for op, run in zip((*own, -1), runs, strict=True)]
        for own, runs in zip(messages.devices, gaps, strict=True)
    ]


def _queued(
    messages: _Messages,
    batches: Batches,
    p2p_streams: Literal["device", "peer", "direction"] = "device",
    posted: Collection[int] = (),
) -> Instructions:
    """Queue kernels, one for each batch and stream; those in ``posted`` stay out of the queue."""

    def stream(sender: int, device: int) -> Hashable:
        own, other = messages.ends[sender]
        sends = own == device
        peer = other if sends else own
        return {"device": 0, "peer": peer, "direction": (peer, sends)}[p2p_streams]

    def kernels(device: int, batch: list[int]) -> Iterator[Instruction]:
        streams: dict[Hashable, list[int]] = {}
        for sender in batch:
            streams.setdefault(stream(sender, device), []).append(sender)
        for key, fused in streams.items():
            yield messages.group(device, fused, stream=key)

    def instructions(device: int, own: range) -> Iterator[Instruction]:
        for op, before in zip((*own, None), batches[device], strict=True):
            for batch in before:
                yield from kernels(device, batch)
            if op is not None:
                yield messages.compute(op)
                if op in posted:
                    yield Post(messages.sent[op])

    return tuple(tuple(instructions(device, own)) for device, own in enumerate(messages.devices))


def _split_after(run: list[int], consumed: int | None) -> list[list[int]]:
    """Close a group at the receive that the next compute is waiting for."""
    if consumed not in run:
        return [run] if run else []
    cut = run.index(consumed) + 1
    return [part for part in (run[:cut], run[cut:]) if part]


# -- exchange: Megatron's blocking batches -------------------------------------------------


def _exchanged(messages: _Messages, scenario: Scenario) -> Batches:
    """The batches of Megatron, where they meet their other ends."""
    if _progresses(messages, batches := _paired(messages)):
        return batches
    schedule = messages.schedule
    interleaved = len(schedule.placement) > schedule.devices
    if interleaved and _progresses(messages, batches := _round_the_ring(messages)):
        return batches
    return _in_expected_order(messages, scenario)


def _paired(messages: _Messages) -> Batches:
    """Pair each send with the next operator's receive from the same neighbour."""

    def device(own: range) -> Iterator[list[list[int]]]:
        for op in (*own, own.stop):
            sent = op - 1 if op > own.start and op - 1 in messages.sent else None
            received = messages.received.get(op) if op in own else None
            batches = [[message] for message in (sent, received) if message is not None]
            if (
                sent is not None
                and received is not None
                and messages.ends[sent] == messages.ends[received][::-1]
            ):
                batches = [[sent, received]]
            yield batches

    return [list(device(own)) for own in messages.devices]


def _round_the_ring(messages: _Messages) -> Batches:
    """Exchange with both neighbours at once, as Megatron-LM's interleaved 1F1B does.

    It computes a forward and a backward before it communicates; in the warm-up one forward, and
    in the end one backward. Then it sends all that it has computed and receives what it needs until
    the next time. Of that, gradients come after activations here: two messages that a rank sends
    at once share its bandwidth, which takes as long.
    """
    ops = messages.schedule.ops

    def device(own: range) -> list[list[list[int]]]:
        pairs = (op for op in own if op > own.start and ops[op - 1].kind == "F" != ops[op].kind)
        cuts = sorted({*own, own.stop} - {*pairs})
        batches: dict[int, list[list[int]]] = {}
        for before, cut, after in zip([cuts[0], *cuts], cuts, [*cuts[1:], cuts[-1]], strict=False):
            batch = [op for op in range(before, cut) if op in messages.sent]
            batch += [messages.received[op] for op in range(cut, after) if op in messages.received]
            sides = [[m for m in batch if (ops[m].kind == "F") == down] for down in (True, False)]
            batches[cut] = [side for side in sides if side]
        return [batches.get(op, []) for op in (*own, own.stop)]

    return [device(own) for own in messages.devices]


def _in_expected_order(messages: _Messages, scenario: Scenario) -> Batches:
    """Order blocking batches by expected completion, for schedules that cannot be paired.

    Megatron runs no such schedule. A receive is posted at the first gap between two
    operators after its message is expected.
    """
    expected = _Expected.of(messages, scenario)
    starts = [expected.start[own.start : own.stop] for own in messages.devices]
    gaps = _in_order(
        messages, expected.order, lambda device, m: bisect_left(starts[device], expected.end[m])
    )
    return [[[run] if run else [] for run in own] for own in gaps]


def _blocking(messages: _Messages, batches: Batches) -> Instructions:
    def device(d: int, own: range) -> Iterator[Instruction]:
        for op, before in zip((*own, None), batches[d], strict=True):
            for batch in before:
                yield messages.group(d, batch, blocking=True)
            if op is not None:
                yield messages.compute(op)

    return tuple(tuple(device(d, own)) for d, own in enumerate(messages.devices))


def _progresses(messages: _Messages, batches: Batches) -> bool:
    """Whether blocking batches all meet their other ends, whatever the times.

    Operators can be ignored: what one needs from another device it receives in a batch.
    """
    queues = [[batch for before in device for batch in before] for device in batches]
    heads = [0] * len(queues)
    reached = dict.fromkeys(messages.sent, 0)
    awake = list(range(len(queues)))
    for device in awake:
        _reach(queues[device][:1], reached)
    while awake:
        device = awake.pop()
        queue = queues[device]
        while heads[device] < len(queue) and all(reached[m] == 2 for m in queue[heads[device]]):
            heads[device] += 1
            following = queue[heads[device] : heads[device] + 1]
            _reach(following, reached)
            awake += {end for batch in following for m in batch for end in messages.ends[m]}
    return all(head == len(queue) for head, queue in zip(heads, queues, strict=True))


def _reach(batches: Sequence[Sequence[int]], reached: dict[int, int]) -> None:
    for batch in batches:
        for message in batch:
            reached[message] += 1
