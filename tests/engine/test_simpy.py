"""The rules of each transport on cases small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipesim import Scenario, plan
from pipesim.engine import run, simulate
from pipesim.errors import DeadlockError, ScheduleError
from pipesim.lowering import lower
from pipesim.schedule import Op
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Exchange, Ideal, Isolated, Nccl, Transport
from tests.engine.programs import TWO, deadlocked, gpipe, unmet


def starts(timeline: Timeline, *ops: str) -> list[float]:
    return [timeline.spans[Op.parse(op)].start_ms for op in ops]


def test_ideal_messages_overlap_and_arrive_their_delay_later() -> None:
    timeline = simulate(TWO.with_delay(25, [0], directions=["down"]), gpipe(TWO))
    # F0 and F1 leave at 10 and 20; both are in flight at once.
    assert starts(timeline, "0F0", "0F1", "1F0", "1F1", "1BW0") == [0, 10, 35, 45, 55]
    assert starts(timeline, "0BW0") == [75]
    assert timeline.iteration_ms == 115


def test_occupancy_holds_the_sender_under_nccl() -> None:
    scenario = TWO.with_delay(25, [0], directions=["down"])
    timeline = simulate(scenario, gpipe(TWO), Nccl())
    # F0 ends at 10; its group starts 25 later, and F1, queued behind it, waits for that.
    assert starts(timeline, "0F0", "0F1", "1F0", "1F1") == [0, 35, 35, 70]
    busy = [span for span in timeline.comm if span.path == "busy"]
    assert [(s.device, s.start_ms, s.end_ms) for s in busy] == [(0, 10, 35), (0, 45, 70)]


def test_latency_blocks_nobody_under_nccl() -> None:
    scenario = TWO.with_delay(25, [0], directions=["down"], kind="latency")
    assert starts(simulate(scenario, gpipe(TWO), Nccl()), "0F1", "1F0", "1F1") == [10, 35, 45]


def test_transfer_time_holds_both_kernels() -> None:
    scenario = TWO.replaced(message_bytes=3000.0)
    timeline = simulate(scenario, gpipe(TWO), Nccl(base_ms=1.0, bytes_per_ms=1000.0))
    assert starts(timeline, "0F1", "1F0") == [10, 14]
    kernels = [s for s in timeline.comm if s.path == "kernel" and s.message.consumer.stage == 1]
    assert {(s.device, s.end_ms) for s in kernels[:2]} == {(0, 14), (1, 14)}


def test_a_kernel_waits_for_its_stream() -> None:
    """Two messages one after the other: the second waits on one stream for the first."""
    scenario = Scenario(stages=2, microbatches=2, forward_ms=[1.0, 10.0])
    timeline = simulate(scenario, gpipe(scenario), Nccl(base_ms=5.0, fused=False))
    assert starts(timeline, "0F1", "1F0", "1F1") == [1, 6, 16]
    kernels = [
        (s.start_ms, s.end_ms)
        for s in timeline.comm
        if s.path == "kernel" and s.device == 0 and s.message.producer.kind == "F"
    ]
    assert kernels == [(1, 6), (6, 11)]


def test_eager_sends_do_not_wait_for_their_receiver() -> None:
    late = Scenario(stages=3, microbatches=2, forward_ms=[1.0, 30.0, 1.0], message_bytes=8.0)
    sends = {}
    for name, limit in {"rendezvous": 0.0, "eager": 8.0}.items():
        timeline = simulate(late, gpipe(late), Nccl(eager_bytes=limit, fused=False))
        sends[name] = [
            s.end_ms
            for s in timeline.comm
            if s.path == "kernel" and s.device == 0 and s.message.producer == Op("F", 0, 1)
        ]
        assert starts(timeline, "1F1") == [31]
    assert sends["eager"] == [2]
    assert sends["rendezvous"] >= sends["eager"]


def test_exchange_blocks_compute_until_it_has_ended() -> None:
    scenario = TWO.with_delay(25, [0], directions=["down"], kind="occupancy")
    timeline = simulate(scenario, plan(TWO, "1f1b"), Exchange())
    # Device 0: F0 0–10, send F0 10–35, F1 35–45, then one exchange {send F1, receive B0}.
    # Device 1: F0 35–45, BW0 45–65, exchange {send B0, receive F1} at 70.
    assert starts(timeline, "0F1", "1F0", "1BW0", "1F1", "0BW0") == [35, 35, 45, 70, 70]


def test_delegates_carry_messages_in_turn() -> None:
    scenario = Scenario(stages=2, microbatches=4, forward_ms=[1.0, 1.0]).with_delay(
        10, [0], directions=["down"]
    )
    schedule = gpipe(scenario)
    arrivals = {
        k: starts(simulate(scenario, schedule, Delegated(delegates=k)), "1F0", "1F1", "1F2", "1F3")
        for k in (1, 2, None)
    }
    assert arrivals[1] == [11, 21, 31, 41]
    assert arrivals[2] == [11, 12, 21, 22]
    assert arrivals[None] == [11, 12, 13, 14]


def test_delegation_takes_copies_and_a_base_latency_off_the_launch_queue() -> None:
    scenario = TWO.replaced(message_bytes=2000.0)
    transport = Delegated(base_ms=4.0, copy_base_ms=1.0, copy_bytes_per_ms=1000.0)
    timeline = simulate(scenario, gpipe(scenario), transport)
    assert starts(timeline, "0F1", "1F0") == [10, 10 + 3 + 4 + 3]
    steps = [s for s in timeline.comm if s.message.producer == Op("F", 0, 0)]
    assert [(s.path, s.device, s.start_ms, s.end_ms) for s in steps] == [
        ("copy-out", 0, 10, 13),
        ("delegate", 0, 13, 17),
        ("copy-in", 1, 17, 20),
    ]


def test_a_copy_on_demand_holds_up_the_operator_that_needs_it() -> None:
    scenario = TWO.replaced(message_bytes=2000.0)
    ahead = Delegated(base_ms=4.0, copy_base_ms=1.0, copy_bytes_per_ms=1000.0)
    on_demand = replace(ahead, copy_on_demand=True)
    timelines = [simulate(scenario, gpipe(scenario), over) for over in (ahead, on_demand)]
    # 0F1 ends at 20 and is on the other host at 27, while 1F0 runs from 20 to 30.
    assert [starts(timeline, "1F0", "1F1") for timeline in timelines] == [[20, 30], [20, 33]]
    copies = [s for s in timelines[1].comm if s.path == "copy-in" and s.device == 1]
    assert [(s.start_ms, s.end_ms) for s in copies] == [(17, 20), (30, 33)]


def test_only_slow_links_are_delegated_on_request() -> None:
    scenario = Scenario(stages=3, microbatches=3).with_delay(20, [1])
    timeline = simulate(scenario, plan(scenario, "zerobubble"), Delegated(only_slow=True))
    paths = {(s.message.link, s.path) for s in timeline.comm}
    assert paths == {(0, "kernel"), (1, "delegate")}


def test_isolation_slows_the_compute_of_both_ends() -> None:
    scenario = Scenario(stages=3, microbatches=1).with_delay(20, [1])
    timeline = simulate(scenario, gpipe(scenario), Isolated(compute_slowdown=2.0))
    lengths = {str(op): span.end_ms - span.start_ms for op, span in timeline.spans.items()}
    assert (lengths["0F0"], lengths["1F0"], lengths["2F0"]) == (10, 20, 20)


@pytest.mark.parametrize("kind", [Ideal, Nccl, Exchange, Delegated, Isolated])
@pytest.mark.parametrize("base_ms", [0.0, 3.0])
def test_stages_on_one_device_need_no_messages(kind: type[Transport], base_ms: float) -> None:
    scenario = Scenario(stages=3, placement=[0, 0, 0], microbatches=2)
    timeline = simulate(scenario, plan(scenario, "zerobubble"), kind(base_ms=base_ms))
    assert timeline.iteration_ms == 3 * 2 * 30
    assert timeline.comm == ()


def test_a_deadlock_names_each_device_and_what_it_waits_for() -> None:
    with pytest.raises(DeadlockError) as caught:
        run(deadlocked(), TWO)
    assert caught.value.blocked == (
        "device 0 waits in 0SEND_F1 for 1RECV_F1",
        "device 1 waits in 1RECV_F0 for 0SEND_F0",
    )


def test_a_kernel_that_nobody_meets_is_a_deadlock_too() -> None:
    with pytest.raises(DeadlockError, match="device 0 never completes 0F0→1F0"):
        run(unmet(), Scenario(stages=2, microbatches=1))


def test_a_program_runs_only_under_its_own_shape() -> None:
    program = lower(gpipe(TWO), TWO, Ideal())
    with pytest.raises(ScheduleError, match="2 micro-batches, the scenario 3"):
        run(program, Scenario(stages=2, microbatches=3))
