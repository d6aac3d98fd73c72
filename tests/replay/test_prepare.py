"""What a replay is prepared with, and how it is compared with its prediction."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim.engine import simulate
from pipesim.errors import DeadlockError, ReplayError, ScheduleError
from pipesim.replay.message_time import base_ms, predicted_with
from pipesim.replay.prepare import prepare
from pipesim.replay.report import Replayed
from pipesim.replay.run.clocks import Clock, Reading
from pipesim.replay.run.measured import ClockFacts, Measured, SwitchFacts
from pipesim.replay.run.run import LinkFault, Route, Run
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.timeline import CommSpan, OpSpan, Timeline
from pipesim.transport import Delegated, Exchange, Ideal, Nccl
from planners import plan
from tests.engine.test_deadlocks import BOTH_SEND_FIRST, FOUR
from tests.test_communication import made

SLOW = Scenario().with_delay(20, links=[0])
ZB = plan(Scenario(), "zerobubble")


def shifted(timeline: Timeline, by_ms: float, stretch: float = 1.0) -> Timeline:
    def at(time: float) -> float:
        return by_ms + stretch * time

    return Timeline(
        timeline.scenario,
        [[OpSpan(op, at(b), at(e)) for op, b, e in device] for device in timeline.compute],
        [CommSpan(m, path, d, at(b), at(e)) for m, path, d, b, e in timeline.comm],
    )


def measured(run: Run, *timelines: Timeline, switches: tuple[SwitchFacts, ...] = ()) -> Measured:
    clocks = [ClockFacts(0, 0, 0)] * run.devices
    return Measured(run, timelines, clocks, switches, [{}] * run.devices)


# -- preparing ---------------------------------------------------------------------------


def test_one_delegate_more_than_are_ever_busy() -> None:
    run = prepare(SLOW, ZB, "delegated")
    predicted = simulate(SLOW, ZB, Delegated())
    for route, number in run.delegates.items():
        spans = [
            span for span in predicted.comm
            if span.path == "delegate" and run.route(span.message) == route
        ]  # fmt: skip
        busy = max(
            (sum(s.start_ms <= at.start_ms < s.end_ms for s in spans) for at in spans), default=0
        )
        assert number == busy + 1
    assert set(run.delegates) == {Route(*r) for r in run.routes}


def test_delegates_are_limited() -> None:
    assert set(prepare(SLOW, ZB, Delegated(delegates=1)).delegates.values()) == {1}
    endless = Scenario().with_delay(500, links=[0])
    assert max(prepare(endless, ZB, "delegated").delegates.values()) == 8


def test_only_slow_links_get_delegates() -> None:
    run = prepare(SLOW, ZB, Delegated(only_slow=True))
    assert {(route.sender, route.receiver) for route in run.delegates} == {(0, 1), (1, 0)}


def test_a_failed_link_needs_delegates_everywhere() -> None:
    run = prepare(SLOW, ZB, "nccl", fault=LinkFault(0, Op("F", 0, 3)))
    assert set(run.delegates) == set(run.routes)
    assert run.failover_ms == pytest.approx(800)


def test_a_run_waits_longer_than_it_should_have_to() -> None:
    # The last device starts its last backward 80 ms before the first one ends its own.
    run = prepare(Scenario(), plan(Scenario(), "1f1b"), "exchange")
    assert run.timeout_s == pytest.approx(5 + 2 * 0.08)
    longer = prepare(Scenario(), plan(Scenario(), "1f1b"), "exchange", timeout_s=60)
    assert longer.timeout_s == pytest.approx(60 + 2 * 0.08)


@pytest.mark.parametrize(
    ("over", "options", "words"),
    [
        (Ideal(), {}, "a replay cannot run over"),
        (Nccl(eager_bytes=1), {}, "no eager sends"),
        (Delegated(copy_on_demand=True), {}, "copies messages ahead"),
        ("nccl", {"iterations": 0}, "at least one iteration"),
        ("nccl", {"compute": "magic"}, "compute must be one of"),
        ("nccl", {"device": "tpu"}, "device must be one of"),
        ("delegated", {"failover": True}, "needs a direct path"),
        ("nccl", {"failover": True, "device": "cuda"}, "CPU processes only"),
        ("nccl", {"fault": LinkFault(0, Op("W", 0, 3))}, "sends nothing"),
        ("nccl", {"fault": LinkFault(9, Op("F", 0, 3))}, "no iteration 9"),
        ("nccl", {"timeout_s": -9.0}, "above 0"),
        ("nccl", {"seed": 2**60}, "the seed"),
    ],
)
def test_what_does_not_go_together_is_refused(
    over: object, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ReplayError, match=words):
        prepare(SLOW, ZB, over, **options)  # type: ignore[arg-type]


def test_a_plan_must_fit_its_scenario() -> None:
    with pytest.raises(ScheduleError, match="micro-batches"):
        prepare(Scenario(microbatches=3), ZB, "nccl")


# -- comparing ---------------------------------------------------------------------------


def test_an_order_of_sends_and_receives_that_hangs_is_refused_before_anything_starts() -> None:
    schedule = made(*BOTH_SEND_FIRST, placement=FOUR.placement)
    for over in ("exchange", "nccl"):
        with pytest.raises(DeadlockError, match="device 0 waits in 0SEND_F1 for 1RECV_F1; device"):
            prepare(FOUR, schedule, over)
    run = prepare(FOUR, schedule, Nccl(p2p_streams="direction"))
    sends = [i for i in run.program.instructions[0] if str(i).startswith(("0SEND", "2SEND"))]
    assert [str(send) for send in sends[:3]] == ["0SEND_F0", "0SEND_F1", "2SEND_F0"]


def test_the_median_iteration_beside_the_prediction() -> None:
    run = prepare(SLOW, ZB, "delegated", iterations=3)
    perfect = simulate(SLOW, ZB, run.transport)
    replayed = Replayed(
        measured(run, shifted(perfect, 0, 3), *(shifted(perfect, 7, s) for s in (1, 1.1, 1.3)))
    )
    assert replayed.predicted_ms == pytest.approx(440)
    assert replayed.iterations_ms == pytest.approx([440, 484, 572])
    assert replayed.error == pytest.approx(0.1)
    assert replayed.typical.iteration_ms == pytest.approx(484)
    starts = np.array([span.start_ms for span in perfect.spans.values()])
    wanted = np.median(np.concatenate([0 * starts, 0.1 * starts, 0.3 * starts]))
    assert replayed.median_start_error_ms == pytest.approx(wanted)
    assert replayed.as_dict()["planner"] == "zerobubble"


def test_a_model_is_predicted_with_the_operator_times_of_its_warm_up() -> None:
    run = prepare(Scenario(), ZB, "nccl", compute="model", iterations=1, warmup=1)
    slower = Scenario(forward_ms=[3, 4, 5, 6], backward_ms=2.0, weight_ms=1.0)
    timeline = simulate(slower, ZB, "nccl")
    replayed = Replayed(measured(run, timeline, timeline))
    assert replayed.scenario.forward_ms[:, 0] == pytest.approx([3, 4, 5, 6])
    assert replayed.scenario.fused_backward_ms[:, 0] == pytest.approx([3, 3, 3, 3])
    assert replayed.error == pytest.approx(0)


def test_a_stage_needs_no_operator_of_each_kind_that_others_have() -> None:
    fused, split = ["1F0", "1BW0"], ["0F0", "0B0", "0W0"]
    schedule = Schedule([list(map(Op.parse, ops)) for ops in (split, fused)], [0, 1], 1)
    two = Scenario(stages=2, microbatches=1)
    run = prepare(two, schedule, "nccl", compute="model", iterations=1, warmup=1)
    timeline = simulate(
        two.replaced(forward_ms=3.0, backward_ms=2.0, weight_ms=1.0, fused_backward_ms=4.0),
        schedule,
        "nccl",
    )
    replayed = Replayed(measured(run, timeline, timeline))
    assert replayed.scenario.fused_backward_ms[:, 0] == pytest.approx([0, 4])
    assert replayed.predicted_ms == timeline.iteration_ms


def test_a_failure_costs_what_its_iteration_took_longer_than_others() -> None:
    run = prepare(Scenario(), ZB, "nccl", iterations=3, fault=LinkFault(2, Op("F", 0, 5)))
    usual = simulate(Scenario(), ZB, "nccl")
    down = next(m for m in run.messages if m.producer == Op("F", 0, 5))
    up = next(m for m in run.messages if m.producer == Op("B", 1, 5))
    switches = (SwitchFacts(0, 3, down, 60.0, 5.0), SwitchFacts(1, 3, up, 90.0, 0.0))
    replayed = Replayed(
        measured(run, usual, usual, usual, shifted(usual, 0, 1.5), switches=switches)
    )
    (event,) = replayed.events  # both ends went over: one failure
    assert (event["iteration"], event["warmup"]) == (2, False)
    assert event["cost_ms"] == pytest.approx(0.5 * 390)
    assert (event["link"], event["direction"], event["rank"]) == (0, "down", 0)


def test_failures_in_warm_up_of_other_links_and_once_more() -> None:
    run = prepare(Scenario(), ZB, "nccl", iterations=2, warmup=2, failover=True)
    usual = simulate(Scenario(), ZB, "nccl")
    down, other = (
        next(m for m in run.messages if m.producer == Op("F", stage, 5)) for stage in (0, 1)
    )
    switches = tuple(
        SwitchFacts(message.link, at, message, 1.0, 0.0)
        for at, message in ((1, down), (2, other), (3, down))
    )
    replayed = Replayed(measured(run, *4 * [shifted(usual, 0, 1.1)], switches=switches))
    assert [(e["link"], e["iteration"], e["warmup"]) for e in replayed.events] == [
        (0, 1, True), (1, 0, False), (0, 1, False),
    ]  # fmt: skip
    assert [event["cost_ms"] for event in replayed.events] == pytest.approx([39, 39, 39])


def test_without_warm_up_nothing_is_known_of_the_machine() -> None:
    run = prepare(Scenario(), ZB, "nccl", iterations=1, warmup=0, compute="model")
    slower = simulate(Scenario(forward_ms=12), ZB, Nccl(base_ms=1))
    replayed = Replayed(measured(run, slower))
    assert replayed.predicted == replayed.nominal
    assert replayed.predicted_ms == 390


COSTS = {"base_ms": 0.3, "bytes_per_ms": 4e7}
COPIES = {"base_ms": 0.3, "copy_base_ms": 0.2, "copy_bytes_per_ms": 4e7}


@pytest.mark.parametrize(
    "over",
    [Nccl(), Exchange(), Delegated(), Nccl(**COSTS), Exchange(**COSTS), Delegated(**COPIES)],
    ids=str,
)
@pytest.mark.parametrize("scenario", [Scenario(), SLOW])
def test_the_time_of_a_message_is_found_again(
    over: Nccl | Exchange | Delegated, scenario: Scenario
) -> None:
    order = plan(Scenario(), "1f1b")
    run = prepare(scenario, order, over)
    plain = simulate(scenario, order, run.transport)
    later = predicted_with(run, plain, 0.7)
    assert later.iteration_ms > plain.iteration_ms
    if isinstance(over, Delegated) and not over.copy_base_ms:  # such copies the engine leaves out
        return
    assert base_ms(run, later) == pytest.approx(0.7)
    assert base_ms(run, plain) == pytest.approx(0, abs=1e-9)


def test_clocks_that_drift_are_aligned() -> None:
    def theirs(ours: int) -> int:
        return 1_000_000 + ours + ours // 1000  # 1000 ppm

    clock = Clock(Reading(0, theirs(0), 10), Reading(10**9, theirs(10**9) - 10**9, 20))
    assert clock.drift_ppm == pytest.approx(1000)
    assert clock.offset_ms == pytest.approx(1)
    assert clock.uncertainty_ms == pytest.approx(20e-6)
    for ours in (0, 123_456_789, 10**9):
        assert clock.aligned_ns(ours) == pytest.approx(theirs(ours), abs=2)
