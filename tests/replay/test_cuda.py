"""The CUDA device without CUDA: its streams are sets of what they have waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch

from pipesim.errors import ReplayError
from pipesim.program import Compute, Group, Post
from pipesim.replay.compute.held import Held
from pipesim.replay.device.cuda import CudaQueue
from pipesim.replay.device.cuda_device import EventLog, Gpu, refuse
from pipesim.replay.run.run import Run
from pipesim.scenario import Scenario
from pipesim.transport import Delegated, Exchange, Nccl
from planners import plan
from tests import ROOT
from tests.processes import PATIENCE_S

CPU = torch.device("cpu")
SMALL = Scenario(stages=3, microbatches=4)
SLOW = SMALL.with_delay(20, links=[0])
V = Scenario(stages=4, microbatches=4, placement=(0, 1, 1, 0)).with_delay(20, links=[0])
GPU_REPLAY = ROOT / "benchmarks" / "gpu_replay.py"


def run_of(scenario, transport, planner="zerobubble", timeout_s=PATIENCE_S):
    made = plan(scenario, planner)
    return Run(made, scenario, transport, device="cuda", warmup=0, timeout_s=timeout_s)


# -- a GPU whose kernels run when they are launched ----------------------------------------


class FakeStream:
    """Knows what has run on it, or on others before an event that it waited for."""

    def __init__(self):
        self.seen = set()
        self.synchronized = 0

    def wait_event(self, event):
        self.seen |= event.seen


class FakeEvent:
    def __init__(self, stream):
        self.stream, self.seen, self.time_s = stream, set(stream.seen), time.monotonic()

    def query(self):
        return True

    def synchronize(self):
        self.stream.synchronized += 1

    def elapsed_time(self, end):
        return 1e3 * (end.time_s - self.time_s)


class FakeGpu:
    def __init__(self):
        self.device, self.local, self.launched = CPU, threading.local(), []
        self.batched, self.blocking = set(), False
        self.compute = FakeStream()
        self.streams = [self.compute]

    def stream(self):
        self.streams.append(FakeStream())
        return self.streams[-1]

    @property
    def current(self):
        return getattr(self.local, "stream", self.compute)

    @contextmanager
    def on(self, stream):
        before, self.local.stream = self.current, stream
        yield
        self.local.stream = before

    def spinner(self):
        return lambda time_ms: self.launched.append(f"busy {time_ms:g}")

    tick = staticmethod(FakeEvent)
    lend = synchronize = lambda *_: None


class FakeGuard:
    doing = ""

    def enter(self, doing):
        self.doing = doing

    def guarded(self, task):
        return task


class Operators(Held):
    """Messages carry stamps, which these check, as on the CPU; here also what was awaited."""

    def __init__(self, run, gpu):
        super().__init__(run, lambda since_ns, time_ms: None, CPU)
        self.gpu = gpu

    def run(self, op, received, start_ns):
        assert self.gpu.current is self.gpu.compute
        assert set(self._run.schedule.needs(op)) <= self.gpu.compute.seen
        if self.gpu.blocking:
            assert self.gpu.batched <= self.gpu.compute.seen
        self.gpu.launched.append(str(op))
        self.gpu.compute.seen.add(op)
        return super().run(op, received, start_ns)


class Wire:
    """Carries messages, and what was seen by the stream that sent them, between devices."""

    def __init__(self):
        self._parcels, self._closed = {}, False
        self._changed = threading.Condition()

    def send(self, message, tensor, stream):
        assert message.producer in stream.seen
        with self._changed:
            self._parcels[message] = (tensor.clone(), set(stream.seen))
            self._changed.notify_all()

    def brings(self, message):
        """Return a message and what was seen, once it was sent; None: it never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or message in self._parcels, PATIENCE_S)
            return self._parcels.get(message)

    def has_brought(self, message):
        return self._closed or message in self._parcels

    def close(self):
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class FakeWork:
    """One transfer of a batch; who waits for a receive waits on the spot."""

    def __init__(self, gpu, wire, message, room=None):
        self.gpu, self.wire, self.message, self.room = gpu, wire, message, room

    def is_completed(self):
        return self.wire.has_brought(self.message)

    def wait(self):
        self.gpu.current.seen.add(self.message)
        if self.room is not None:
            tensor, seen = self.wire.brings(self.message)
            self.room.copy_(tensor)
            self.gpu.current.seen |= seen


class FakeBatches:
    def __init__(self, gpu, wire):
        self.gpu, self.wire = gpu, wire

    def start(self, sends, receives):
        stream = self.gpu.current
        assert self.gpu.batched <= stream.seen
        if self.gpu.blocking:
            assert self.gpu.compute.seen <= stream.seen
        self.gpu.batched |= sends.keys() | receives.keys()
        self.gpu.launched.append(str(Group(0, tuple(sends), tuple(receives))))
        for message, tensor in sends.items():
            self.wire.send(message, tensor, stream)
        works = [FakeWork(self.gpu, self.wire, message) for message in sends]
        return works + [FakeWork(self.gpu, self.wire, m, room) for m, room in receives.items()]


class FakeDelegation:
    pin = staticmethod(lambda: None)

    def __init__(self, gpu, wire):
        self.gpu, self.wire, self.slots, self.learned = gpu, wire, {}, {}
        self.dispatched = 0

    def begin(self, iteration, order, fetch):
        def land():
            for message in order:
                if self.wire.brings(message):
                    fetch(message)

        threading.Thread(target=land, daemon=True).start()

    def slot(self, message):
        return self.slots.setdefault(message, torch.zeros(8, dtype=torch.uint8))

    def dispatch(self, message, at_ns):
        copy_out = self.gpu.streams[2]
        self.dispatched += 1
        assert copy_out.synchronized == self.dispatched
        self.wire.send(message, self.slots[message], copy_out)

    def fetch(self, message):
        content, seen = self.wire.brings(message)
        self.gpu.streams[3].seen |= seen
        return content

    def learn(self, copied_ns):
        self.learned = copied_ns


@contextmanager
def queues_of(run, *devices):
    """The queues of some devices of a run; whatever becomes of them, their threads end."""
    wire, queues = Wire(), []
    for device in devices:
        gpu = FakeGpu()
        gpu.blocking = isinstance(run.transport, Exchange)
        parts = Operators(run, gpu), FakeDelegation(gpu, wire), FakeGuard()
        queues.append(CudaQueue(run, device, *parts, gpu, FakeBatches(gpu, wire)))
    try:
        yield queues
    finally:
        wire.close()
        for queue in queues:
            queue.close()


def replayed(run):
    """Run all devices side by side; returns their queues and records."""
    records = {}
    with queues_of(run, *range(run.devices)) as queues:
        for queue in queues:
            queue.begin(0)

        def go(device):
            records[device] = queues[device].run()

        threads = [threading.Thread(target=go, args=(d,), daemon=True) for d in range(run.devices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(records) == run.devices
    return queues, [records[device] for device in range(run.devices)]


@pytest.mark.parametrize(
    ("planner", "scenario"),
    [("1f1b", SLOW), ("zerobubble", SLOW), ("pipemorph", SLOW), ("zerobubble", V)],
)
@pytest.mark.parametrize("transport", [Nccl(), Exchange(), Delegated(), Delegated(only_slow=True)])
def test_everything_is_launched_in_order_after_what_it_needs(planner, scenario, transport):
    run = run_of(scenario, transport, planner)
    queues, records = replayed(run)
    for device, (queue, record) in enumerate(zip(queues, records, strict=True)):
        program = run.program.instructions[device]
        launched = [entry for entry in queue._gpu.launched if not entry.startswith("busy")]
        assert launched == [str(i) for i in program if not isinstance(i, Post)]
        assert [op for op, _, _ in record.compute] == [
            i.op for i in program if isinstance(i, Compute)
        ]
        kernels = [step.message for step in record.steps if step.path == "kernel"]
        grouped = [m for i in program if isinstance(i, Group) for m in i.sends + i.receives]
        assert sorted(kernels) == sorted(grouped)
        posted = [i.message for i in program if isinstance(i, Post)]
        assert [s.message for s in record.steps if s.path == "copy-out"] == posted
        fetched = {s.message for s in record.steps if s.path == "copy-in"}
        assert fetched == queue._delegation.learned.keys()


def test_the_busy_kernel_of_a_delay_comes_directly_before_its_group():
    run = run_of(SLOW, Nccl(fused=False))
    queues, _ = replayed(run)
    for device, queue in enumerate(queues):
        wanted = []
        for instruction in run.program.instructions[device]:
            sends = instruction.sends if isinstance(instruction, Group) else ()
            wanted += ["busy 20" for message in sends if message.link == 0]
            wanted.append(str(instruction))
        assert queue._gpu.launched == wanted


def test_a_message_that_does_not_come_is_named():
    run = run_of(SMALL, Delegated(), timeout_s=0.05)
    with queues_of(run, 1) as (queue,):
        queue.begin(0)
        with pytest.raises(ReplayError, match=r"nothing happened for .* s; waiting for 0F0→1F0 of"):
            queue.run()
        assert queue._guard.doing == "iteration 0, 1F0"


def test_a_batch_that_does_not_end_is_named():
    run = run_of(SMALL, Nccl(), timeout_s=0.05)
    with queues_of(run, 0) as (queue,):
        never_sent = FakeWork(queue._gpu, queue._batches.wire, "a message that nobody sends")
        queue._batches.start = lambda sends, rooms: [never_sent]
        queue._work.run = lambda op, received, start_ns: torch.zeros(1)
        queue.begin(0)
        with pytest.raises(ReplayError, match=r"nothing happened for .* s; waiting for 1B0→0B0 of"):
            queue.run()
        first = next(i for i in run.program.instructions[0] if isinstance(i, Group))
        assert queue._guard.doing == f"iteration 0, {first}"


# -- the clock, and what is refused --------------------------------------------------------


def test_times_of_events_are_told_on_the_host_s_clock():
    stream = FakeStream()
    before = time.monotonic_ns()
    log = EventLog(FakeEvent(stream))
    after = time.monotonic_ns()
    start, end = FakeEvent(stream), FakeEvent(stream)
    start.time_s, end.time_s = (log._base.time_s + s for s in (0.010, 0.0125))
    assert before <= log.ns(start) - 10_000_000 <= after
    assert log.ns(end) - log.ns(start) == 2_500_000
    (op,) = run_of(SMALL, Nccl()).schedule.orders[0][:1]
    log.op(op, start, end)
    assert log.record().compute == [(op, log.ns(start), log.ns(end))]


ONE_WAY = Scenario(stages=3, microbatches=4, latency_ms=[[20, 0], [0, 0]])


@pytest.mark.parametrize(
    ("scenario", "transport", "gpus", "message"),
    [
        (SMALL, Nccl(), 0, "no CUDA device"),
        (SMALL, Delegated(), 0, "no CUDA device"),
        (SMALL, Nccl(), 2, "3 share 2 here: use --transport delegated"),
        (SMALL, Exchange(), 1, "3 share 1 here"),
        (SLOW, Delegated(only_slow=True), 1, "3 share 1 here"),
        (ONE_WAY, Nccl(), 3, "must be occupancy"),
        (SMALL, Exchange(base_ms=1), 3, "leave out the transport's own costs"),
        (SMALL.replaced(message_bytes=8), Nccl(bytes_per_ms=8), 3, "own costs"),
        (SMALL, Delegated(copy_base_ms=1), 1, "own costs"),
        (SMALL, Nccl(p2p_streams="peer"), 3, "p2p_streams = device"),
    ],
)
def test_what_gpus_cannot_do_is_refused(scenario, transport, gpus, message):
    with pytest.raises(ReplayError, match=message):
        refuse(run_of(scenario, transport), gpus, 3)


@pytest.mark.parametrize(
    ("scenario", "transport", "gpus"),
    [
        (SLOW, Nccl(), 3),
        (SLOW, Exchange(), 8),
        (SLOW, Delegated(), 1),
        (ONE_WAY, Delegated(base_ms=1), 1),
        (ONE_WAY, Delegated(only_slow=True), 3),
        (SMALL.with_delay(1, links=[0, 1]), Delegated(only_slow=True), 1),
    ],
)
def test_what_gpus_can_do_is_not(scenario, transport, gpus):
    refuse(run_of(scenario, transport), gpus, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_worker_without_a_gpu_says_so(monkeypatch):
    for name, value in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")  # so that it is put back
    with pytest.raises(ReplayError, match="no CUDA device"):
        Gpu.open(run_of(SMALL, Delegated()))


# -- benchmarks/gpu_replay.py ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "reason"), [("", "no CUDA device"), ("sys.modules['torch'] = None; ", "torch")]
)
def test_gpu_replay_says_that_there_is_no_gpu(tmp_path, hidden, reason):
    start = f"import runpy, sys; {hidden}del sys.argv[0]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    file = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-c", start, str(GPU_REPLAY), "-o", str(file)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed == json.loads(file.read_text())
    assert printed["cuda"] is False
    assert reason in printed["reason"]
