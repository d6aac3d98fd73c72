"""The GPU of a worker: which one, what it refuses, its streams, its clock, and NCCL.

Not measured: no GPU was at hand when this was written, and only what needs none was run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.cuda import Event

from pipesim.errors import ReplayError
from pipesim.program import Group, Message
from pipesim.replay.compute.held import busy
from pipesim.replay.compute.work import Payload
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Run
from pipesim.schedule import Op
from pipesim.timeline import PathKind
from pipesim.transport import Nccl

__all__ = ["Batches", "EventLog", "Gpu", "grouped", "refuse"]


def grouped(run: Run) -> tuple[Message, ...]:
    """Return the messages that groups carry, and so NCCL on GPUs."""
    return tuple(
        message
        for device in run.program.instructions
        for instruction in device
        if isinstance(instruction, Group)
        for message in instruction.receives
    )


def refuse(run: Run, gpus: int, ranks: int) -> None:
    """Raise for what GPUs cannot do, before anything is run on them.

    Parameters
    ----------
    run : Run
        What is to be run.
    gpus, ranks : int
        How many of each there are on this host.

    Raises
    ------
    ReplayError
        There is no GPU, NCCL has too few, or a stated time cannot be injected.
    """
    if not gpus:
        raise ReplayError("there is no CUDA device on this host: use --device cpu")
    messages = grouped(run)
    if messages and gpus < ranks:
        raise ReplayError(
            f"NCCL needs a GPU for each process, and {ranks} share {gpus} here: "
            "use --transport delegated"
        )
    if any(run.scenario.latency_ms[m.link, m.direction] > 0 for m in messages):
        raise ReplayError(
            "on CUDA the delay of an NCCL link must be occupancy: a GPU cannot hold a message "
            "in flight"
        )
    if any(map(run.transfer_ms, messages)) or any(map(run.copy_ms, run.messages)):
        raise ReplayError(
            "on CUDA transfers and copies take their real time: leave out the transport's own costs"
        )
    if isinstance(run.transport, Nccl) and run.transport.p2p_streams != "device":
        raise ReplayError("on CUDA all groups of a device share a stream: use p2p_streams = device")


class Gpu:
    """The GPU of this process, and all that pipesim asks of CUDA.

    The compute stream is the one that is current in the thread that opened it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.compute = torch.cuda.current_stream(device)

    @classmethod
    def open(cls, run: Run) -> Gpu:
        """Choose a GPU and give it a compute stream; the first thing here that touches CUDA.

        Processes of a host take its GPUs in turn.
        """
        if grouped(run):
            # The launch queue of the model: all streams of the process share one.
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        rank, ranks = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        gpus = torch.cuda.device_count()
        refuse(run, gpus, ranks)
        device = torch.device("cuda", rank % gpus)
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        return cls(device)

    def stream(self) -> torch.cuda.Stream:
        """Return another stream."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """Return a context of this thread in which a stream is current."""
        torch.cuda.set_device(self.device)  # a thread begins on the first
        return torch.cuda.stream(stream)

    def tick(self, stream: torch.cuda.Stream) -> Event:
        """Record an event with a time."""
        event = Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def lend(self, tensor: Tensor, stream: torch.cuda.Stream) -> None:
        """Keep a tensor's memory until the work that ``stream`` has when it is freed is done."""
        tensor.record_stream(stream)

    def spinner(self) -> Callable[[float], None]:
        """Return what keeps the current stream busy for some milliseconds."""
        hold = busy(self.device)
        return lambda time_ms: hold(0, time_ms)

    def synchronize(self) -> None:
        """Wait for everything."""
        torch.cuda.synchronize(self.device)


class EventLog:
    """Records events, and at the end returns their times on this process's clock.

    Times are accurate to some microseconds, as far as one can see an event happen.

    Parameters
    ----------
    base : Event
        One that was just recorded on an idle GPU.
    """

    def __init__(self, base: Event) -> None:
        base.synchronize()
        self._base_ns = now_ns()
        self._base = base
        self._operators: list[tuple[Op, Event, Event]] = []
        self._steps: list[tuple[Message, PathKind, Event, Event | int]] = []

    def ns(self, event: Event | int) -> int:
        """Return when an event happened, which must be over; a time of the host stays as it is."""
        if isinstance(event, int):
            return event
        elapsed_ms: float = self._base.elapsed_time(event)
        return self._base_ns + round(1e6 * elapsed_ms)

    def op(self, op: Op, start: Event, end: Event) -> None:
        """Add an operator."""
        self._operators.append((op, start, end))

    def step(self, message: Message, path: PathKind, start: Event, end: Event | int) -> None:
        """Add a step of a message's way; any thread may."""
        self._steps.append((message, path, start, end))

    def record(self) -> Record:
        """Return all that was recorded, with times."""
        record = Record()
        for op, start, end in self._operators:
            record.op(op, self.ns(start), self.ns(end))
        for message, path, begun, ended in self._steps:
            record.step(message, path, self.ns(begun), self.ns(ended))
        return record


class Batches:
    """NCCL between all workers. Must be made by all of them at once.

    Parameters
    ----------
    run : Run
        What is run.
    rank : int
        This worker's.
    gpu : Gpu
        Its GPU.
    """

    def __init__(self, run: Run, rank: int, gpu: Gpu) -> None:
        self._run = run
        self._group = dist.new_group(backend="nccl")
        # All of a group must take part in its first batch, and a pair's first waits for both.
        rooms = [torch.zeros(1, dtype=torch.uint8, device=gpu.device) for _ in run.routes]
        batch = [
            dist.P2POp(dist.isend, room, route.receiver, self._group)
            if rank == route.sender
            else dist.P2POp(dist.irecv, room, route.sender, self._group)
            for route, room in zip(run.routes, rooms, strict=True)
            if rank in (route.sender, route.receiver)
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        gpu.synchronize()

    def start(
        self, sends: Mapping[Message, Tensor], receives: Mapping[Message, Tensor]
    ) -> list[dist.Work]:
        """Send and receive in one batch, after what the current stream has been given."""
        route = self._run.route
        batch = [
            dist.P2POp(dist.isend, Payload.bytes_of(tensor), route(m).receiver, self._group)
            for m, tensor in sends.items()
        ]
        batch += [
            dist.P2POp(dist.irecv, Payload.bytes_of(tensor), route(m).sender, self._group)
            for m, tensor in receives.items()
        ]
        works: list[dist.Work] = dist.batch_isend_irecv(batch)
        return works
