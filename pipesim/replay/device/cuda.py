"""A CUDA device: operators, NCCL batches and copies, launched in program order.

The rules of :mod:`pipesim.engine.simpy.device` are kept by the hardware: one thread launches, all
streams share one queue, and streams wait for each other by events. The launching thread
itself waits only for messages that come through host memory.

Not measured: no GPU was at hand when this was written. Its tests run this file with stand-in
streams and events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.cuda import Event

from pipesim.program import Compute, Group, Message, Post
from pipesim.replay.compute.work import Payload, Work
from pipesim.replay.device.cuda_device import Batches, EventLog, Gpu
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.device.streams import Stream
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.guard import Guard, SilentPeerError
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Run
from pipesim.schedule import Op

__all__ = ["CudaQueue"]

_LOOK_S = 0.002
_POLL_S = 20e-6


class CudaQueue:
    """Runs the instructions of one device; made in the thread that will run them.

    Parameters
    ----------
    run : Run
        What is run.
    device : int
        Which device.
    work : Work
        What its operators do; they run on the stream that is current in this thread.
    delegation : Delegation
        Carries posted messages.
    guard : Guard
        Told of every instruction, and of every error.
    gpu : Gpu
        Where it is run.
    batches : Batches, optional
        Carries groups; None where the run has none.
    """

    def __init__(
        self,
        run: Run,
        device: int,
        work: Work,
        delegation: Delegation,
        guard: Guard,
        gpu: Gpu,
        batches: Batches | None,
    ) -> None:
        self._run = run
        self._work = work
        self._delegation = delegation
        self._guard = guard
        self._gpu = gpu
        self._batches = batches
        self._instructions = run.program.instructions[device]
        groups = [i for i in self._instructions if isinstance(i, Group)]
        self._received = run.received(device)
        self._fetched = dict.fromkeys(run.fetched(device))
        self._p2p, self._copy_out, self._copy_in = (gpu.stream() for _ in range(3))
        delayed = any(map(self._occupancy_ms, (m for group in groups for m in group.sends)))
        self._spin = gpu.spinner() if delayed else None
        delegation.pin()
        self._batch_ends = Stream("batches", guard)
        self._dispatches = Stream("dispatches", guard)

    def begin(self, iteration: int) -> None:
        """Get ready for an iteration: before anybody may send."""
        self._gpu.synchronize()
        self._iteration = iteration
        self._doing = ""
        self._pending: list[tuple[str, Callable[[], bool]]] = []
        self._outputs: dict[Op, Tensor | None] = {}
        self._computed: dict[Op, Event] = {}
        self._last: Op | None = None
        self._batch: tuple[dist.Work, ...] = ()
        self._inputs: dict[Message, tuple[Tensor, Callable[[], None]]] = {}
        self._arrived = {message: threading.Event() for message in self._received}
        self._on_device: dict[Message, tuple[Event, Event]] = {}
        self._log = EventLog(self._gpu.tick(self._gpu.compute))
        self._delegation.begin(iteration, tuple(self._fetched), self._fetch)

    def run(self) -> Record:
        """Run the iteration; returns what was seen when everything has ended.

        Raises
        ------
        SilentPeerError
            Nothing has ended for too long.
        """
        for instruction in self._instructions:
            self._doing = f"{self._run.named(self._iteration)}, {instruction}"
            self._guard.enter(self._doing)
            match instruction:
                case Compute():
                    done = self._operator(instruction)
                case Group():
                    done = self._group(instruction)
                case Post(message):
                    done = self._post(message)
            self._pending.append((self._doing, done))
        self._wait(self._is_over)
        self._gpu.synchronize()
        self._learn()
        return self._log.record()

    def close(self) -> None:
        """End the threads of the streams; only after iterations that came to their end."""
        self._batch_ends.close()
        self._dispatches.close()

    # -- waiting -------------------------------------------------------------------------

    def _wait(self, happens: Callable[[float], bool]) -> None:
        """Wait until something happens, as long as there is progress."""
        patience = self._run.timeout_s
        deadline = time.monotonic() + patience
        while not happens(_LOOK_S):
            if self._progress():
                deadline = time.monotonic() + patience
            elif time.monotonic() > deadline:
                raise SilentPeerError(f"nothing happened for {patience:g} s; {self._missing()}")

    def _is_over(self, seconds: float) -> bool:
        if self._pending:
            time.sleep(seconds)
        return not self._pending

    def _progress(self) -> bool:
        """Whether anything launched has ended; says what is being waited for."""
        left = [(doing, done) for doing, done in self._pending if not done()]
        progress = len(left) < len(self._pending)
        self._pending = left
        self._guard.enter(left[0][0] if left else self._doing)
        return progress

    def _missing(self) -> str:
        missing = next((m for m in self._received if not self._arrived[m].is_set()), None)
        if missing is None:
            return "a kernel does not end"
        return f"waiting for {missing} of rank {self._run.route(missing).sender}"

    # -- compute -------------------------------------------------------------------------

    def _operator(self, compute: Compute) -> Callable[[], bool]:
        op, stream = compute.op, self._gpu.compute
        beside = self._run.beside(op)
        received: Tensor | None = None
        for message in compute.receives:
            received = self._take(message)
        if beside:
            received = self._outputs.pop(beside)
        start = self._gpu.tick(stream)
        self._outputs[op] = self._work.run(op, received, now_ns())
        end = self._computed[op] = self._gpu.tick(stream)
        self._last = op
        self._log.op(op, start, end)
        return end.query

    def _take(self, message: Message) -> Tensor:
        """Make the compute stream wait for a message."""
        if message in self._fetched:
            self._wait(self._arrived[message].wait)
        tensor, wait = self._inputs.pop(message)
        wait()
        self._gpu.lend(tensor, self._gpu.compute)
        return tensor

    # -- groups --------------------------------------------------------------------------

    def _group(self, group: Group) -> Callable[[], bool]:
        assert self._batches is not None
        stream = self._p2p
        # NCCL's stream would wait for its last batch too, but the busy kernel must as well.
        self._after(stream, self._batch)
        for message in group.sends:
            stream.wait_event(self._computed[message.producer])
        if group.blocking and self._last:
            stream.wait_event(self._computed[self._last])
        with self._gpu.on(stream):
            for message in group.sends:
                self._occupy(message)
            start = self._gpu.tick(stream)
            sends = {message: self._output(message) for message in group.sends}
            rooms = {message: self._room(message) for message in group.receives}
            self._batch = batch = tuple(self._batches.start(sends, rooms))
        wait = partial(self._after, self._gpu.compute, batch)
        if group.blocking:
            wait()
        self._inputs |= {message: (room, wait) for message, room in rooms.items()}
        done = threading.Event()

        def end() -> None:
            """Note the end: an event for it on this stream would hold up the launch queue."""
            while not all(work.is_completed() for work in batch):
                time.sleep(_POLL_S)
            ended = now_ns()
            for message in (*sends, *rooms):
                self._log.step(message, "kernel", start, ended)
            for message in rooms:
                self._arrived[message].set()
            sends.clear()  # until here NCCL may read them
            done.set()

        self._batch_ends.launch(end)
        return done.is_set

    def _occupy(self, message: Message) -> None:
        """Launch the busy kernel of an injected delay, directly before the batch."""
        delay_ms = self._occupancy_ms(message)
        if delay_ms and self._spin:
            start = self._gpu.tick(self._p2p)
            self._spin(delay_ms)
            self._log.step(message, "busy", start, self._gpu.tick(self._p2p))

    def _occupancy_ms(self, message: Message) -> float:
        return float(self._run.scenario.occupancy_ms[message.link, message.direction])

    def _after(self, stream: torch.cuda.Stream, batch: tuple[dist.Work, ...]) -> None:
        """Make a stream wait for the end of a batch."""
        with self._gpu.on(stream):
            for work in batch:
                work.wait()

    def _room(self, message: Message) -> Tensor:
        """Return memory of the current stream to receive a message in."""
        return self._work.payload(message.link).empty(self._gpu.device)

    def _output(self, message: Message) -> Tensor:
        output = self._outputs.pop(message.producer)
        assert output is not None
        return output

    # -- delegation ----------------------------------------------------------------------

    def _post(self, message: Message) -> Callable[[], bool]:
        """Copy a message to the host; another thread hands it to its delegate then."""
        output, stream = self._output(message), self._copy_out
        slot = self._delegation.slot(message)
        stream.wait_event(self._computed[message.producer])
        with self._gpu.on(stream):
            start = self._gpu.tick(stream)
            slot.copy_(Payload.bytes_of(output), non_blocking=True)
            copied = self._gpu.tick(stream)
        self._gpu.lend(output, stream)
        self._log.step(message, "copy-out", start, copied)
        done = threading.Event()

        def dispatch() -> None:
            copied.synchronize()
            self._delegation.dispatch(message, now_ns())
            done.set()

        self._dispatches.launch(dispatch)
        return done.is_set

    def _fetch(self, message: Message) -> None:
        """Copy a message that has landed on the host to the device; called by its thread."""
        stream = self._copy_in
        content = self._delegation.fetch(message)
        with self._gpu.on(stream):
            room = self._room(message)
            start = self._gpu.tick(stream)
            Payload.bytes_of(room).copy_(content, non_blocking=True)
            copied = self._gpu.tick(stream)
        self._inputs[message] = room, partial(self._gpu.compute.wait_event, copied)
        self._log.step(message, "copy-in", start, copied)
        self._on_device[message] = (start, copied)
        self._arrived[message].set()

    def _learn(self) -> None:
        """Tell delegates how long copies take, but not how long they stood in the queue."""
        at = self._log.ns
        self._delegation.learn(
            {
                message: at(copied) - at(start)
                for message, (start, copied) in self._on_device.items()
            }
        )
