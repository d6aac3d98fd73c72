"""A program as events: what each launch, operator, transfer and kernel end waits for.

No order in a program depends on time, so a run is a static max-plus system: an event happens
a fixed time after the last of the events that it waits for. The events mirror
:mod:`.device`, :mod:`.kernels` and :mod:`.paths` one for one; :mod:`.recurrence` puts them in
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

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
    waits : list of list of int
        For each event, the events that it waits for. One that can never happen waits for
        itself.
    own : list of int
        The entry of the weights vector (:class:`.weights.Layout`) that it takes after them.
    starts, ends : dict of Op to int
        The events of each operator.
    """

    def __init__(self, program: Program, eager_links: frozenset[int] = frozenset()) -> None:
        self.program = program
        self.waits: list[list[int]] = [[]]
        self.own: list[int] = [NOTHING]
        self.starts: dict[Op, int] = {}
        self.ends: dict[Op, int] = {}
        self._layout = Layout(program.schedule.stages, program.schedule.microbatches)
        self._eager_links = eager_links
        self._transfers: dict[Message, int] = {}
        self._senders: set[Message] = set()
        self._receivers: set[Message] = set()
        self._arrivals: dict[Message, list[int]] = {}
        # The event after which each instruction lets the next one launch.
        self._passed: list[list[int]] = []
        # Each device's kernels: the group, its launch and its end.
        self._kernels: list[list[tuple[Group, int, int]]] = []
        for device in program.instructions:
            self._walk(device)
        self._carry()
        self._meet()

    def _add(self, waits: Iterable[int], own: int = NOTHING) -> int:
        self.waits.append(list(waits))
        self.own.append(own)
        return len(self.own) - 1

    # -- devices -------------------------------------------------------------------------

    def _walk(self, instructions: Iterable[Instruction]) -> None:
        """The launch queue of one device, see :meth:`.device.Device._launch`."""
        queue = ORIGIN
        computed: list[int] = []  # the end of the last operator
        streams: dict[Hashable, int] = {}
        passed: list[int] = []
        kernels: list[tuple[Group, int, int]] = []
        for instruction in instructions:
            if isinstance(instruction, Compute):
                op = instruction.op
                queue = self.starts[op] = self._add([queue, *computed])
                self.ends[op] = self._add([queue], self._layout.duration(*op))
                computed = [self.ends[op]]
            elif isinstance(instruction, Group):
                waits = [queue, *(self.ends[message.producer] for message in instruction.sends)]
                if instruction.stream in streams:
                    waits.append(streams[instruction.stream])
                if instruction.blocking:
                    waits.extend(computed)
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
            busy = self._layout.way("occupancy", message.link, message.direction)
            launch = self._add([launch], busy)
        end = self._add([launch])
        for message in (*group.sends, *group.receives):
            if message not in self._transfers:
                taken = self._layout.link("transfer", message.link)
                self._transfers[message] = self._add([], taken)
            transfer = self._transfers[message]
            sends = message in group.sends
            (self._senders if sends else self._receivers).add(message)
            if sends or message.link not in self._eager_links:
                self.waits[transfer].append(launch)
            self.waits[end].append(transfer)
            if not sends:
                flight = self._layout.way("latency", message.link, message.direction)
                self._arrivals[message] = [end, self._add([transfer], flight)]
        if not (group.sends or group.receives):
            self.waits[end].append(end)  # nothing ever closes it
        return launch, end

    # -- paths ---------------------------------------------------------------------------

    def _carry(self) -> None:
        """Posted messages: a wire each, or copy engines and delegates, as in :mod:`.paths`."""
        transport = self.program.transport
        posts = [
            [instruction.message for instruction in device if isinstance(instruction, Post)]
            for device in self.program.instructions
        ]
        if not isinstance(transport, Delegated):
            for message in (message for device in posts for message in device):
                flight = self._layout.way("flight", message.link, message.direction)
                self._arrivals[message] = [self._add([self.ends[message.producer]], flight)]
            return
        on_host: dict[Message, int] = {}
        for device in posts:
            previous = ORIGIN
            neighbours: dict[Hashable, list[Message]] = defaultdict(list)
            for message in device:
                copy = self._layout.link("copy", message.link)
                previous = self._add([self.ends[message.producer], previous], copy)
                peer = self.program.schedule.placement[message.consumer.stage]
                carried = neighbours[peer, message.direction]
                turn = len(carried) - (transport.delegates or len(device))
                waits = [previous] if turn < 0 else [previous, on_host[carried[turn]]]
                hold = self._layout.way("hold", message.link, message.direction)
                on_host[message] = self._add(waits, hold)
                carried.append(message)
        for instructions in self.program.instructions:
            previous = ORIGIN
            for message in _received(instructions):
                if message in on_host:
                    copy = self._layout.link("copy", message.link)
                    previous = self._add([on_host[message], previous], copy)
                    self._arrivals[message] = [previous]

    def _meet(self) -> None:
        """Let operators wait for their messages, and for ever where one end is missing."""
        for message, transfer in self._transfers.items():
            eager = message.link in self._eager_links
            if message not in self._senders or not (eager or message in self._receivers):
                self.waits[transfer].append(transfer)
        for device in self.program.instructions:
            for instruction in device:
                if isinstance(instruction, Compute):
                    start = self.starts[instruction.op]
                    for message in instruction.receives:
                        self.waits[start].extend(self._arrivals.get(message, [start]))

    # -- deadlocks -----------------------------------------------------------------------

    def blocked(self, happens: list[bool]) -> tuple[str, ...]:
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
                    if not all(happens[e] for e in self._arrivals.get(message, [ORIGIN]))
                    or message not in self._arrivals
                ]
                stuck.append(f"device {d} waits in {instruction} for {' and '.join(missing)}")
            else:
                stuck.append(f"device {d} waits in {instruction} for {self._open(d, happens)}")
        return tuple(stuck) or tuple(
            f"device {d} never completes {self._open(d, happens)}"
            for d, kernels in enumerate(self._kernels)
            if any(happens[launch] and not happens[end] for _, launch, end in kernels)
        )

    def _open(self, device: int, happens: list[bool]) -> str:
        """The messages that keep the running kernels of a device open."""
        return " and ".join(
            str(message)
            for group, launch, end in self._kernels[device]
            if happens[launch] and not happens[end]
            for message in (*group.sends, *group.receives)
            if not happens[self._transfers[message]]
        )


def _received(instructions: Iterable[Instruction]) -> Iterable[Message]:
    for instruction in instructions:
        if isinstance(instruction, Compute):
            yield from instruction.receives
