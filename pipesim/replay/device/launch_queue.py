"""A CPU device: one launch queue, a compute stream, and streams for communication.

The rules of :mod:`pipesim.engine.simpy.device`, kept by threads. An instruction starts once the
one before it in the queue has started, its stream is free and what it needs is there;
whichever thread brings the last of these starts it, without a detour through another.

What waits for a kernel goes by logical times where there are any
(:attr:`pipesim.replay.run.run.Run.has_logical_times`): a kernel that sleeps counts from when it
could start, as a thread that runs a moment later is not the device's fault, and ends on time. One
that computes runs from when it has started until it has computed. One that sends begins when it
could and ends when its messages have arrived. Beside logical times of an operator, those at which
its thread really started and ended it are recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Literal

from torch import Tensor

from pipesim.program import Compute, Group, Message, Post
from pipesim.replay.compute.work import Payload, Work
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.device.direct import Path
from pipesim.replay.device.streams import Mark, Stream, after, latest
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.guard import Guard, SilentPeerError
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Run
from pipesim.runtime.delegate import hold_until
from pipesim.schedule import Op

__all__ = ["LaunchQueue"]

_SMALL_BYTES = 2**16
"""Copies up to this size take less time than it takes to wake a thread for them."""

_LOOK_S = 0.1

_EARLY_NS = 150_000
"""Busy kernels follow each other on a blocked link: what one is late by, all later ones are."""

Kernel = Callable[[], None]


class LaunchQueue:
    """Runs the instructions of one device.

    Parameters
    ----------
    run : Run
        What is run.
    device : int
        Which device.
    work : Work
        What its operators do.
    path : Path
        Carries groups.
    delegation : Delegation
        Carries posted messages.
    guard : Guard
        Told of every instruction, and of every error.
    """

    def __init__(
        self,
        run: Run,
        device: int,
        work: Work,
        path: Path,
        delegation: Delegation,
        guard: Guard,
    ) -> None:
        self._run = run
        self._work = work
        self._path = path
        self._delegation = delegation
        self._guard = guard
        self._instructions = run.program.instructions[device]
        streams = dict.fromkeys(i.stream for i in self._instructions if isinstance(i, Group))
        self._received = run.received(device)
        self._fetched = dict.fromkeys(run.fetched(device))
        self._compute = Stream("compute", guard)
        self._p2p = {stream: Stream(f"p2p {stream}", guard) for stream in streams}
        self._copy_out = Stream("copy-out", guard)

    def begin(self, iteration: int) -> None:
        """Get ready for an iteration: before anybody may send."""
        self._iteration = iteration
        self._record = Record()
        self._progress = 0
        self._copied_ns = 0
        self._outputs: dict[Op, Tensor | None] = {}
        self._inputs: dict[Message, Tensor] = {}
        self._copying: dict[Message, int] = {}
        self._computed: dict[Op, Mark] = {}
        self._arrived: dict[Message, Mark] = {message: Mark() for message in self._received}
        self._delegation.begin(iteration, tuple(self._fetched), self._fetch)
        self._path.begin(iteration)

    def run(self) -> Record:
        """Run the iteration; returns what was seen when everything has ended.

        Raises
        ------
        SilentPeerError
            Nothing has started for too long.
        """
        ends: list[Mark] = []
        begin = compute = gate = Mark()
        streams: dict[Hashable, Mark] = {}
        for instruction in self._instructions:
            end, opened = Mark(), Mark()
            if not isinstance(instruction, Post):
                self._announce(f"{self._run.named(self._iteration)}, {instruction}", gate)
            match instruction:
                case Compute(op):
                    arrived = [self._arrived[message] for message in instruction.receives]
                    waits = [gate, compute, *arrived]
                    after(waits, self._operator(instruction, waits, opened, end))
                    compute = self._computed[op] = end
                case Group(stream):
                    waits = [gate, streams.get(stream, begin)]
                    waits += [self._computed[message.producer] for message in instruction.sends]
                    waits += ends if instruction.blocking else []
                    after(waits, self._group(instruction, waits, opened, end))
                    streams[stream] = end
                case Post(message):
                    after([self._computed[message.producer]], self._copy(message, end))
            ends.append(end)
            if not isinstance(instruction, Post):
                gate = opened
        begin.happen(now_ns())
        self._watch(ends)
        self._delegation.learn(self._copying)
        return self._record

    def close(self) -> None:
        """End the threads of the streams; only after iterations that came to their end."""
        for stream in (self._compute, *self._p2p.values(), self._copy_out):
            stream.close()

    # -- waiting -------------------------------------------------------------------------

    def _announce(self, doing: str, gate: Mark) -> None:
        """Say that an instruction is next, once it is."""

        def enter() -> None:
            self._progress += 1
            self._guard.enter(doing)

        gate.then(enter)

    def _watch(self, ends: list[Mark]) -> None:
        """Wait for all ends, as long as there is progress."""
        everything = threading.Event()
        after(ends, everything.set)
        seen, since = self._progress, now_ns()
        while not everything.wait(_LOOK_S):
            if self._progress != seen:
                seen, since = self._progress, now_ns()
            elif now_ns() - since > 1e9 * self._run.timeout_s:
                waited = f"nothing happened for {self._run.timeout_s:g} s"
                raise SilentPeerError(f"{waited}; {self._missing()}")

    def _missing(self) -> str:
        missing = next((m for m in self._received if self._arrived[m].time_ns is None), None)
        if missing is None:
            return "a kernel does not end"
        return f"waiting for {missing} of rank {self._run.route(missing).sender}"

    # -- compute -------------------------------------------------------------------------

    def _operator(self, compute: Compute, waits: list[Mark], opened: Mark, end: Mark) -> Kernel:
        op = compute.op
        beside = self._run.beside(op)
        stated = round(1e6 * self._run.durations_ms[op]) if self._run.has_logical_times else None

        def kernel() -> None:
            ready = latest(waits)
            hold_until(ready)  # a message on its way over a link with latency
            received: Tensor | None = None
            for message in compute.receives:
                received = self._inputs.pop(message)
            if beside:
                received = self._outputs.pop(beside)
            began = now_ns()
            start = began if stated is None or began >= ready + stated else ready
            opened.happen(start)
            self._outputs[op] = self._work.run(op, received, start)
            ended = now_ns()
            if stated is None:
                end.happen(ended)
                self._record.op(op, began, ended)
            else:
                end.happen(start + stated)
                self._record.op(op, began, ended, (start, start + stated))

        return lambda: self._compute.launch(kernel)

    # -- groups --------------------------------------------------------------------------

    def _group(self, group: Group, waits: list[Mark], opened: Mark, end: Mark) -> Kernel:
        stream = self._p2p[group.stream]
        messages = (*group.sends, *group.receives)
        delays = [self._delay_ns(message, "occupancy_ms") for message in group.sends]
        latency = {message: self._delay_ns(message, "latency_ms") for message in group.receives}
        transfer = round(1e6 * max(map(self._run.transfer_ms, messages)))

        def start() -> None:
            if any(delays):
                stream.launch(occupy)
            else:
                begin(latest(waits))

        def occupy() -> None:
            """Run the busy kernels of injected delays, directly before the group."""
            over = latest(waits)
            for message, delay in zip(group.sends, delays, strict=True):
                if delay and self._path.is_direct(message.link):
                    begun, over = over, over + delay
                    hold_until(over, _EARLY_NS)
                    self._record.step(message, "busy", begun, over)
            begin(over)

        def begin(begun: int) -> None:
            sends = {message: self._output(message) for message in group.sends}
            finish = self._path.start(sends, group.receives)
            if not group.blocking:
                opened.happen(begun)
            stream.launch(lambda: complete(begun, finish()))

        def complete(begun: int, received: dict[Message, Tensor]) -> None:
            """The group ends when all its transfers have."""
            ended = now_ns()
            if transfer:
                hold_until(ended + transfer)
                ended = now_ns()
            self._inputs.update(received)
            for message in received:
                self._arrived[message].happen(ended + latency[message])
            end.happen(ended)
            if group.blocking:
                opened.happen(ended)
            for message in messages:
                self._record.step(message, "kernel", begun, ended)
                if latency.get(message):
                    self._record.step(message, "wire", ended, ended + latency[message])

        return start

    def _delay_ns(self, message: Message, kind: Literal["occupancy_ms", "latency_ms"]) -> int:
        delays = getattr(self._run.scenario, kind)
        return round(1e6 * float(delays[message.link, message.direction]))

    def _output(self, message: Message) -> Tensor:
        output = self._outputs.pop(message.producer)
        assert output is not None
        return output

    # -- delegation ----------------------------------------------------------------------

    def _copy(self, message: Message, end: Mark) -> Kernel:
        """Copy a message to the host and hand it to its delegate."""
        slot = self._delegation.slot(message)
        stated = round(1e6 * self._run.copy_ms(message))

        def kernel() -> None:
            begun = max(self._computed[message.producer].time_ns or 0, self._copied_ns)
            copying = now_ns()
            slot.copy_(Payload.bytes_of(self._output(message)))
            self._copied_ns = begun + max(now_ns() - copying, stated)
            copied = _held(begun, stated)
            self._delegation.dispatch(message, self._copied_ns)
            end.happen(copied)
            self._record.step(message, "copy-out", begun, copied)

        if stated or len(slot) > _SMALL_BYTES:
            return lambda: self._copy_out.launch(kernel)
        return kernel

    def _fetch(self, message: Message) -> None:
        """Copy a message that has landed on the host to the device."""
        if message not in self._fetched:
            self._path.land(message)
            return
        begun = now_ns()
        content = self._delegation.fetch(message)
        self._inputs[message] = self._work.payload(message.link).of_bytes(content)
        self._copying[message] = now_ns() - begun
        copied = _held(begun, round(1e6 * self._run.copy_ms(message)))
        self._arrived[message].happen(copied)
        self._record.step(message, "copy-in", begun, copied)


def _held(begun_ns: int, stated_ns: int) -> int:
    """Make what began take its stated time; returns when it has ended."""
    if stated_ns:
        hold_until(begun_ns + stated_ns)
    return now_ns()
