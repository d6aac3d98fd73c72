"""The published heuristic: orders that it is known to give, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.analysis import lower_bound_ms, slackness, warmup
from pipesim.errors import ScheduleError
from pipesim.formats.operator_timeline import import_timelines
from pipesim.schedule import Schedule
from tests import ROOT
from tests.strategies import scenarios

TIMELINES = ROOT / "traces" / "a10_timelines"
UNIT = Scenario(
    forward_ms=1,
    backward_ms=1,
    weight_ms=1,
    latency_ms=0.001,
    activation_limit=8,
    released_by_b=0,
)
"""What the runs of the A10 timelines were planned with: 4 stages × 12 micro-batches."""


def text(schedule: Schedule, device: int) -> str:
    """The operators of a device, without its stage."""
    return " ".join(f"{op.kind}{op.microbatch}" for op in schedule.orders[device])


@pytest.mark.parametrize("iteration", [5, 13])
@pytest.mark.parametrize("delay", [60, 120])
def test_measured_iterations_ran_its_order_to_the_letter(delay: int, iteration: int) -> None:
    """Before the delay and under it: the plan stays."""
    path = TIMELINES / f"zerobubble_link2_{delay}ms.csv"
    measured = import_timelines([path], iterations=[iteration]).schedule
    assert measured is not None
    assert plan(UNIT, "zb-auto").orders == measured.orders


@pytest.mark.parametrize(
    ("scenario", "orders"),
    [
        (
            Scenario(
                stages=3, microbatches=8, forward_ms=2, backward_ms=2, weight_ms=3, latency_ms=2,
                activation_limit=6, released_by_b=0,
            ),
            "FFFFFFBWFBBWBBFWWWBWBWBW FFFFFBFBBBBWFBWFWBWBWWWW FBFBFBFBFBFBWWFBWFBWWWWW",
        ),
        (
            Scenario(
                stages=4, microbatches=6, forward_ms=[2, 4, 3, 1], backward_ms=[1, 1, 2, 4],
                weight_ms=[3, 3, 2, 3], latency_ms=2, activation_limit=8,
            ),
            "FFFFFFBWBWBWBWBWBW FFFFFFBWBWBWBWBWBW FFFFBBFBFBWWBWBWWW FBFBFBFBFBFBWWWWWW",
        ),
    ],
    ids=["equal stages", "unequal stages"],
)  # fmt: skip
def test_orders_of_the_authors_program(scenario: Scenario, orders: str) -> None:
    """Written out once; in these, every choice and every tie changes the order."""
    found = ["".join(op.kind for op in order) for order in plan(scenario, "zb-auto").orders]
    assert found == orders.split()


def test_with_room_for_d_activations_it_is_no_longer_than_zb_h1() -> None:
    """The warm-up of 1F1B, and the closed form of ZB-H1's longest stage span."""
    schedule = plan(Scenario(stages=3, microbatches=5, activation_limit=3), "zb-auto")
    assert warmup(schedule) == (3, 2, 1)
    assert text(schedule, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4"
    timeline = simulate(Scenario(stages=3, microbatches=5), schedule)
    assert timeline.peak_activations.tolist() == [3, 2.5, 2]
    assert timeline.stage_span_ms == 5 * 30 + 2 * (10 + 10 - 10)


def test_two_p_has_no_bubble_with_equal_times() -> None:
    """With a limit of 2D every stage works without a pause from its first forward on."""
    scenario = Scenario(stages=6, microbatches=24, activation_limit=12, released_by_b=0)
    timeline = simulate(scenario, plan(scenario, "zb-auto"))
    assert timeline.stage_span_ms == 24 * 30


def test_links_of_their_own_and_one_message_cost_are_told_apart() -> None:
    """A slow link asks for more slackness there, and there alone."""
    slow = Scenario(microbatches=24).with_delay(20, links=[1])
    found, healthy = (slackness(warmup(plan(s, "zb-auto"))) for s in (slow, Scenario()))
    assert [a - b for a, b in zip(found, healthy, strict=True)] == [0, 4, 0]


@given(scenarios(limited=True), st.floats(0, 1))
def test_within_the_limits_of_any_plain_pipeline(scenario: Scenario, released_by_b: float) -> None:
    """Complete and free of deadlock, or there would be no schedule."""
    if not scenario.is_plain:
        return
    scenario = scenario.replaced(released_by_b=released_by_b)
    timeline = simulate(scenario, plan(scenario, "zb-auto"))
    assert (timeline.peak_activations <= scenario.activation_limit + 1e-9).all()
    assert timeline.iteration_ms >= lower_bound_ms(scenario) * (1 - 1e-9)


def test_a_forward_must_fit_behind_a_stage_with_a_lower_limit() -> None:
    """Stage 1 could hold all; with more forwards than stage 0 had run, it would wait for ever."""
    scenario = Scenario(stages=3, microbatches=4, activation_limit=[2, 9, 9])
    assert warmup(plan(scenario, "zb-auto")) == (2, 1, 1)


def test_weights_come_early_where_they_make_room() -> None:
    """B gives back nothing here: with room for one, W follows at once."""
    scenario = Scenario(stages=2, microbatches=3, activation_limit=1, released_by_b=0)
    assert text(plan(scenario, "zb-auto"), 1) == "F0 B0 W0 F1 B1 W1 F2 B2 W2"


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (Scenario().interleaved(2), "zb-auto needs one stage on each device, in order"),
        (Scenario(activation_limit=[4, 4, 0.5, 4]), r"device 2 may hold 0\.5 activations"),
    ],
)
def test_what_it_needs(scenario: Scenario, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        plan(scenario, "zb-auto")
