"""A program as events: what each launch, operator, transfer and kernel end waits for.

No order in a program depends on time, so a run is a static max-plus system: an event happens
a fixed time after the last of the events that it waits for. The events mirror the SimPy
engine's devices, kernels and paths one for one; :mod:`.recurrence` puts them in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

from pipesim.engine.compiled.weights import NOTHING, Layout
from pipesim.program import Compute, Group, Instruction, Message, Post, Program
from pipesim.schedule import Op
from pipesim.transport import Delegated

__all__ = ["ORIGIN", "Events"]

ORIGIN = 0
"""The event at time zero."""


class Events:
    """The events of a program, in no particular order.

    Parameters
    ----------
    program : Program
        Under any transport.
    eager_links : set of int
        Links whose messages do not wait for their receiver.

    Attributes
    ----------
    waiting, awaited : list of int
        Event ``waiting[k]`` waits for event ``awaited[k]``. One that can never happen waits
        for itself.
    own : list of int
        The entry of the weights vector (:class:`.weights.Layout`) that each event takes after
        those that it waits for.
    starts, ends : dict of Op to int
        The events of each operator.
    sends : dict of Op to int
        By its producer, the event that a message's delay is a part of: it waits for the moment at
        which the send starts.
    """

    def __init__(self, program: Program, eager_links: frozenset[int] = frozenset()) -> None:
        self.program = program
        self.waiting: list[int] = []
        self.awaited: list[int] = []
        self.own: list[int] = [NOTHING]
        self.starts: dict[Op, int] = {}
        self.ends: dict[Op, int] = {}
        self.sends: dict[Op, int] = {}
        layout = Layout(program.schedule.stages, program.schedule.microbatches)
        self._transfer_ms, self._copy_ms = layout.links("transfer"), layout.links("copy")
        self._flight_ms, self._latency_ms = layout.ways("flight"), layout.ways("latency")
        self._occupancy_ms = layout.ways("occupancy")
        self._eager_links = eager_links
        # A message is known by its producer, which sends no other.
        self._transfers: dict[Op, int] = {}
        self._senders: set[Op] = set()
        self._receivers: set[Op] = set()
        self._arrivals: dict[Op, tuple[int, ...]] = {}
        # The event after which each instruction lets the next one launch.
        self._passed: list[list[int]] = []
        # Each device's kernels: the group, its launch and its end.
        self._kernels: list[list[tuple[Group, int, int]]] = []
        durations = iter(layout.durations(program.schedule.codes).tolist())
        for device in program.instructions:
            self._walk(device, durations)
        self._carry()
        self._meet()

    def _add(self, waits: Sequence[int], own: int = NOTHING) -> int:
        event = len(self.own)
        self.own.append(own)
        for other in waits:
            self.waiting.append(event)
            self.awaited.append(other)
        return event

    def _wait(self, event: int, other: int) -> None:
        self.waiting.append(event)
        self.awaited.append(other)

    # -- devices -------------------------------------------------------------------------

    def _walk(self, instructions: Iterable[Instruction], durations: Iterator[int]) -> None:
        """The launch queue of one device, as :class:`pipesim.engine.simpy.device.Device` runs."""
        queue = ORIGIN
        computed: list[int] = []  # the end of the last operator
        streams: dict[Hashable, int] = {}
        passed: list[int] = []
        kernels: list[tuple[Group, int, int]] = []
        for instruction in instructions:
            if isinstance(instruction, Compute):
                op = instruction.op
                queue = self.starts[op] = self._add([queue, *computed])
                self.ends[op] = self._add([queue], next(durations))
                computed = [self.ends[op]]
            elif isinstance(instruction, Group):
                waits = [queue, *(self.ends[message.producer] for message in instruction.sends)]
                if instruction.stream in streams:
                    waits.append(streams[instruction.stream])
                if instruction.blocking:
                    waits += computed
                launch, end = self._kernel(instruction, waits)
                kernels.append((instruction, launch, end))
                streams[instruction.stream] = end
                queue = end if instruction.blocking else launch
            passed.append(queue)
        self._passed.append(passed)
        self._kernels.append(kernels)

    def _kernel(self, group: Group, waits: list[int]) -> tuple[int, int]:
        """Launch and end of a group; busy kernels run before it, one for each send."""
        launch = self._add(waits)
        for message in group.sends:
            busy = self._occupancy_ms[message.link][message.direction]
            launch = self.sends[message.producer] = self._add([launch], busy)
        end = self._add([launch])
        for message in group.sends:
            transfer = self._transfer(message)
            self._senders.add(message.producer)
            self._wait(transfer, launch)
            self._wait(end, transfer)
        for message in group.receives:
            transfer = self._transfer(message)
            self._receivers.add(message.producer)
            if message.link not in self._eager_links:
                self._wait(transfer, launch)
            self._wait(end, transfer)
            flight = self._latency_ms[message.link][message.direction]
            self._arrivals[message.producer] = end, self._add([transfer], flight)
        if not (group.sends or group.receives):
            self._wait(end, end)  # nothing ever closes it
        return launch, end

    def _transfer(self, message: Message) -> int:
        """The end of a message's transfer; both of its ends ask for it."""
        transfer = self._transfers.get(message.producer)
        if transfer is None:
            transfer = self._add([], self._transfer_ms[message.link])
            self._transfers[message.producer] = transfer
        return transfer

    # -- paths ---------------------------------------------------------------------------

    def _carry(self) -> None:
        """Posted messages: a wire each, or copy engines and delegates."""
        transport = self.program.transport
        posts = [
            [instruction.message for instruction in device if isinstance(instruction, Post)]
            for device in self.program.instructions
        ]
        if not isinstance(transport, Delegated):
            for message in (message for device in posts for message in device):
                flight = self._flight_ms[message.link][message.direction]
                arrival = self._add([self.ends[message.producer]], flight)
                self.sends[message.producer] = arrival
                self._arrivals[message.producer] = (arrival,)
            return
        on_host: dict[Op, int] = {}
        for device in posts:
            previous = ORIGIN
            neighbours: dict[Hashable, list[Message]] = defaultdict(list)
            for message in device:
                copy = self._copy_ms[message.link]
                previous = self._add([self.ends[message.producer], previous], copy)
                peer = self.program.schedule.placement[message.consumer.stage]
                carried = neighbours[peer, message.direction]
                turn = len(carried) - (transport.delegates or len(device))
                waits = [previous] if turn < 0 else [previous, on_host[carried[turn].producer]]
                flight = self._flight_ms[message.link][message.direction]
                on_host[message.producer] = self._add(waits, flight)
                carried.append(message)
        self.sends.update(on_host)
        for instructions in self.program.instructions:
            previous = ORIGIN
            for message in _received(instructions):
                if message.producer not in on_host:
                    continue
                copy = self._copy_ms[message.link]
                if transport.copy_on_demand:
                    self.own[self.starts[message.consumer]] = copy
                    self._arrivals[message.producer] = (on_host[message.producer],)
                else:
                    previous = self._add([on_host[message.producer], previous], copy)
                    self._arrivals[message.producer] = (previous,)

    def _meet(self) -> None:
        """Let operators wait for their messages, and for ever where one end is missing."""
        for producer in self._senders ^ self._receivers:
            link = producer.stage - (producer.kind != "F")
            if producer not in self._senders or link not in self._eager_links:
                transfer = self._transfers[producer]
                self._wait(transfer, transfer)
        for instructions in self.program.instructions:
            for instruction in instructions:
                if isinstance(instruction, Compute):
                    for message in instruction.receives:
                        start = self.starts[instruction.op]
                        for arrival in self._arrivals.get(message.producer, (start,)):
                            self._wait(start, arrival)

    # -- deadlocks -----------------------------------------------------------------------

    def blocked(self, happens: Sequence[bool]) -> tuple[str, ...]:
        """Why the program cannot finish, if these are the events that happen.

        The same words as the SimPy engine's: each stuck device's instruction, or the kernels
        that stay open although all devices are through.
        """
        stuck = []
        for d, passed in enumerate(self._passed):
            at = next((k for k, event in enumerate(passed) if not happens[event]), None)
            if at is None:
                continue
            instruction = self.program.instructions[d][at]
            if isinstance(instruction, Compute):
                missing = [
                    str(message)
                    for message in instruction.receives
                    if not all(happens[e] for e in self._arrivals.get(message.producer, ()))
                    or message.producer not in self._arrivals
                ]
                stuck.append(f"device {d} waits in {instruction} for {' and '.join(missing)}")
            else:
                stuck.append(self.program.waits(d, self._open(d, happens)))
        return tuple(stuck) or tuple(
            f"device {d} never completes {' and '.join(map(str, self._open(d, happens)))}"
            for d, kernels in enumerate(self._kernels)
            if any(happens[launch] and not happens[end] for _, launch, end in kernels)
        )

    def _open(self, device: int, happens: Sequence[bool]) -> list[Message]:
        """The messages that keep the running kernels of a device open."""
        return [
            message
            for group, launch, end in self._kernels[device]
            if happens[launch] and not happens[end]
            for message in (*group.sends, *group.receives)
            if not happens[self._transfers[message.producer]]
        ]


def _received(instructions: Iterable[Instruction]) -> Iterable[Message]:
    for instruction in instructions:
        if isinstance(instruction, Compute):
            yield from instruction.receives
