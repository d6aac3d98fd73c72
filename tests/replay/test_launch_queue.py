"""When operators of a CPU device run, physically and logically, on one device without messages."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from pipesim.engine import simulate
from pipesim.program import Group
from pipesim.replay.compute.kinds import work
from pipesim.replay.compute.work import Payload, Work
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.device.direct import Path as PathOfGroups
from pipesim.replay.device.launch_queue import LaunchQueue
from pipesim.replay.prepare import prepare
from pipesim.replay.run.guard import Guard
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import ComputeKind, Run
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from planners import plan
from tests.processes import PATIENCE_S, waited_for
from tests.replay.replays import is_stopped, replaying

TIME_MS = 2.0
ONE = Scenario(stages=1, microbatches=4, forward_ms=TIME_MS, backward_ms=TIME_MS, weight_ms=TIME_MS)


class Nothing:
    """A path, or delegates, without any message."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Late:
    """Work during, or right before, some of whose operators the device is held up."""

    def __init__(self, work: Work, during_s: Mapping[Op, float]) -> None:
        self._work, self._during_s = work, during_s

    def payload(self, link: int) -> Payload:
        return self._work.payload(link)

    def begin(self, iteration: int) -> None:
        self._work.begin(iteration)

    def run(self, op: Op, received: Tensor | None, start_ns: int) -> Tensor | None:
        result = self._work.run(op, received, start_ns)
        time.sleep(self._during_s.get(op, 0.0))
        return result

    def finish(self) -> None:
        self._work.finish()

    def report(self) -> dict[str, object]:
        return self._work.report()


def ran(compute: ComputeKind, during_s: Mapping[Op, float] | None = None) -> tuple[Run, Record]:
    """Run one iteration on one device, with operators held up."""
    run = prepare(ONE, plan(ONE, "zerobubble"), "nccl", compute=compute, timeout_s=PATIENCE_S)
    doing = Late(work(run, 0, torch.device("cpu")), during_s or {})
    path, delegation = cast(PathOfGroups, Nothing()), cast(Delegation, Nothing())
    queue = LaunchQueue(run, 0, doing, path, delegation, Guard(0))
    doing.begin(0)
    queue.begin(0)
    record = queue.run()
    queue.close()
    return run, record


def test_sleeping_operators_have_logical_times_beside_the_physical_ones() -> None:
    run, record = ran("sleep")
    assert [op for op, *_ in record.compute] == list(run.schedule.orders[0])
    times = [time for _, *span in record.compute for time in span]
    assert times == sorted(times)
    stated = round(TIME_MS * 1e6)
    assert {end - start for start, end in record.logical} == {stated}
    for (_, start, end), (logical_start, logical_end) in zip(
        record.compute, record.logical, strict=True
    ):
        assert logical_start <= start <= end
        assert logical_end <= end


@pytest.mark.parametrize("compute", ["matmul", "model"])
def test_operators_that_compute_have_physical_times_only(compute: ComputeKind) -> None:
    run, record = ran(compute)
    assert not run.has_logical_times
    assert record.logical == []
    times = [time for _, *span in record.compute for time in span]
    assert times == sorted(times)
    assert all(end > start for _, start, end in record.compute)


def test_what_holds_up_a_device_is_seen() -> None:
    held, held_s = Op("F", 0, 2), 0.15
    run, record = ran("sleep", {held: held_s})
    spans = {op: (start, end) for op, start, end in record.compute}
    start, end = spans[held]
    assert end - start >= held_s * 1e9
    # The next operator's time was over before it could start: nothing makes up for that.
    nominal_ms = simulate(ONE, run.schedule, run.transport).iteration_ms
    for seen in ([span for _, *span in record.compute], record.logical):
        times = list(chain.from_iterable(seen))
        assert (times[-1] - times[0]) / 1e6 >= nominal_ms + 1e3 * held_s - 2 * TIME_MS
    after = next(b for a, b in pairwise(run.schedule.orders[0]) if a == held)
    index = run.schedule.orders[0].index(after)
    assert record.logical[index][0] == spans[after][0] >= end


@pytest.mark.parametrize("over", ["nccl", "exchange"])
def test_a_thread_for_each_stream_and_not_for_each_group(over: str) -> None:
    two = Scenario(stages=2, microbatches=9)
    run = prepare(two, plan(two, "1f1b"), over)
    groups = [i for i in run.program.instructions[0] if isinstance(i, Group)]
    streams = {group.stream for group in groups}
    assert len(streams) < len(groups)
    before = threading.active_count()
    doing = work(run, 0, torch.device("cpu"))
    path, delegation = cast(PathOfGroups, Nothing()), cast(Delegation, Nothing())
    queue = LaunchQueue(run, 0, doing, path, delegation, Guard(0))
    assert threading.active_count() == before + len(streams) + 2  # compute, and copies
    queue.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_replay_that_was_stopped_shows_it(tmp_path: Path) -> None:
    options = ["--stages", "1", "--planner", "1f1b", "--microbatches", "500", "--warmup", "0"]
    options += ["--transport", "nccl", "--iterations", "1", "--timeout", f"{PATIENCE_S:g}s"]
    with replaying(tmp_path, *options, "--json", "--quiet") as run:
        process = run.running([0]).workers()[0]
        first = run.status(0)
        # What holds up the start of the first operator is before the iteration.
        waited_for(lambda: run.status(0) not in ("", first), "a later instruction")
        os.kill(process, signal.SIGSTOP)
        waited_for(lambda: is_stopped(process), "the worker to stop")
        stopped = time.monotonic()
        time.sleep(0.7)
        stopped_ms = 1e3 * (time.monotonic() - stopped)
        os.kill(process, signal.SIGCONT)
        run.ended()
        assert run.process.returncode == 0, run.said
    said = json.loads(run.output)
    operator_ms = 10.0
    assert said["nominal_ms"] == 500 * 3 * operator_ms
    # The operator in which it stopped goes on meanwhile, and the one after it, if it is over.
    assert said["measured_ms"] >= said["nominal_ms"] + stopped_ms - 2 * operator_ms
    assert said["longest_lag_ms"] >= 0
