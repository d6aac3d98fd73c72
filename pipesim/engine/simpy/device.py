"""A device: one launch queue, a compute stream, and streams for communication kernels."""

from __future__ import annotations

from collections.abc import Generator, Hashable

from simpy import Event

from pipesim.engine.simpy.kernels import Kernels
from pipesim.engine.simpy.paths import Paths
from pipesim.engine.simpy.state import State
from pipesim.program import Compute, Group, Message, Post
from pipesim.schedule import Op
from pipesim.timeline import OpSpan

__all__ = ["Device"]


class Device:
    """The SimPy process that launches a device's instructions in order.

    It moves on as soon as an instruction has *started*: that is the head-of-line blocking
    of a single launch queue. Waiting for the end of an earlier kernel on the same stream is
    the other half.
    """

    def __init__(
        self,
        state: State,
        index: int,
        durations_ms: dict[str, list[list[float]]],
        kernels: Kernels,
        paths: Paths,
    ) -> None:
        self.state = state
        self.index = index
        self.spans: list[OpSpan] = []
        self._instructions = state.program.instructions[index]
        self._head = 0
        self._durations_ms = durations_ms
        self._kernels = kernels
        self._paths = paths
        state.env.process(self._launch())

    def _launch(self) -> Generator[Event, object, None]:
        env, arrived = self.state.env, self.state.arrived
        computed: Event | None = None  # the end of the last operator
        ends: dict[Op, Event] = {}
        streams: dict[Hashable, Event] = {}
        for instruction in self._instructions:
            if isinstance(instruction, Compute):
                if computed is not None and not computed.processed:
                    yield computed
                for message in instruction.receives:
                    if not arrived[message].processed:
                        yield arrived[message]
                    if (fetch_ms := self._paths.fetch_ms(message)) > 0:
                        now = env.now
                        self.state.record(message, "copy-in", self.index, now, now + fetch_ms)
                        yield env.timeout(fetch_ms)
                op = instruction.op
                duration = self._durations_ms[op.kind][op.stage][op.microbatch]
                self.spans.append(OpSpan(op, env.now, env.now + duration))
                computed = ends[op] = env.timeout(duration)
            elif isinstance(instruction, Post):
                self._paths.post(instruction.message, ends[instruction.message.producer])
            else:
                waits = [ends[message.producer] for message in instruction.sends]
                if instruction.stream in streams:
                    waits.append(streams[instruction.stream])
                if instruction.blocking and computed is not None:
                    waits.append(computed)
                for event in waits:
                    if not event.processed:
                        yield event
                for message in instruction.sends:
                    yield from self._occupy(message)
                kernel = self._kernels.launch(self.index, instruction)
                streams[instruction.stream] = kernel
                if instruction.blocking and not kernel.processed:
                    yield kernel
            self._head += 1

    def _occupy(self, message: Message) -> Generator[Event, object, None]:
        """Run the busy kernel of an injected delay directly before a message's group."""
        env, delay = self.state.env, self.state.occupancy_ms(message, self.index)
        if delay > 0:
            self.state.record(message, "busy", self.index, env.now, env.now + delay)
            yield env.timeout(delay)

    def blocked(self) -> str | None:
        """Why this device has not finished; None if it has."""
        if self._head == len(self._instructions):
            return None
        instruction = self._instructions[self._head]
        if isinstance(instruction, Compute):
            missing = [str(m) for m in instruction.receives if not self.state.arrived[m].processed]
            return f"device {self.index} waits in {instruction} for {' and '.join(missing)}"
        assert isinstance(instruction, Group)  # posts never wait
        return self.state.program.waits(self.index, self._kernels.open(self.index))
