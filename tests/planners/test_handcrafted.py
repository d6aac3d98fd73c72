"""ZB-H1 and ZB-H2: fixed orders, closed forms, and lower limits than they were drawn for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.analysis import slackness, warmup
from pipesim.errors import ScheduleError
from pipesim.schedule import Schedule
from tests.strategies import scenarios

PLANNERS = ("zb-h1", "zb-h2")
durations = st.floats(0.1, 50)


def text(schedule: Schedule, device: int) -> str:
    """The operators of a device, without its stage."""
    return " ".join(f"{op.kind}{op.microbatch}" for op in schedule.orders[device])


def test_zb_h1_as_drawn() -> None:
    """The published figure with fewer micro-batches: device d is d weights late."""
    schedule = plan(Scenario(stages=3, microbatches=4), "zb-h1")
    assert text(schedule, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert text(schedule, 1) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"
    assert text(schedule, 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_zb_h2_as_drawn() -> None:
    """Device d has 2d forwards less than device 0 before its first B, and is 2d weights late."""
    schedule = plan(Scenario(stages=2, microbatches=5), "zb-h2")
    assert text(schedule, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4"
    assert text(schedule, 1) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4"


@given(
    stages=st.integers(1, 6),
    more=st.integers(0, 12),
    forward_ms=durations,
    backward_ms=durations,
    weight_ms=durations,
    released_by_b=st.floats(0, 1),
)
def test_bubbles_and_peaks_have_the_published_closed_forms(
    stages: int,
    more: int,
    forward_ms: float,
    backward_ms: float,
    weight_ms: float,
    released_by_b: float,
) -> None:
    """With equal stages; ``until_the_end`` is the paper's, the larger one where W ≤ F."""
    scenario = Scenario(
        stages=stages,
        microbatches=2 * stages - 1 + more,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        weight_ms=weight_ms,
        released_by_b=released_by_b,
    )
    work_ms = scenario.microbatches * (forward_ms + backward_ms + weight_ms)
    for planner, weights, peak in (("zb-h1", 1, stages), ("zb-h2", 2, 2 * stages - 1)):
        timeline = simulate(scenario, plan(scenario, planner))
        until_first_b = backward_ms - (weights - 1) * forward_ms
        until_the_end = forward_ms + backward_ms - weights * weight_ms
        bubble_ms = (stages - 1) * max(0.0, until_first_b, until_the_end)
        assert timeline.stage_span_ms == pytest.approx(work_ms + bubble_ms)
        assert timeline.peak_activations[0] == peak
        assert (timeline.peak_activations <= peak + 1e-9).all()


@given(scenarios(limited=True), st.sampled_from(PLANNERS))
def test_lower_limits_and_few_micro_batches(scenario: Scenario, planner: str) -> None:
    """Complete and free of deadlock, or there would be no schedule; and within each limit."""
    if not scenario.is_plain:
        return
    schedule = plan(scenario, planner)
    peaks = simulate(scenario, schedule).peak_activations
    most = scenario.devices if planner == "zb-h1" else 2 * scenario.devices - 1
    assert (peaks <= np.minimum(scenario.activation_limit, most) + 1e-9).all()
    assert min(slackness(warmup(schedule)), default=0) >= 0
    widest = (scenario.activation_limit >= most).all()
    if widest and scenario.microbatches >= most:
        step = 1 if planner == "zb-h1" else 2
        assert warmup(schedule) == tuple(range(most, 0, -step))


@given(scenarios(), st.sampled_from(PLANNERS), st.floats(0.1, 10))
def test_operator_times_do_not_matter(scenario: Scenario, planner: str, factor: float) -> None:
    if scenario.is_plain:
        other = scenario.replaced(forward_ms=factor).with_delay(
            factor, links=range(scenario.stages - 1)
        )
        assert plan(scenario, planner).orders == plan(other, planner).orders


def test_a_low_limit_on_one_device_shortens_the_warm_up_of_the_later_ones() -> None:
    """Device 1 could hold five; with more forwards than device 0 had run, it would wait for ever.

    With room for 2.5, device 0 may keep one weight: B has given back half of it.
    """
    scenario = Scenario(microbatches=6, activation_limit=[2.5, 5, 5, 5])
    schedule = plan(scenario, "zb-h2")
    assert warmup(schedule) == (2, 2, 2, 1)
    assert simulate(scenario, schedule).peak_activations[0] == 2


def test_weights_come_early_where_they_make_room() -> None:
    """Four late weights hold 2 activations on the last device, and it has room for 1 + 1.5."""
    scenario = Scenario(stages=3, microbatches=8, activation_limit=[5, 5, 2.5])
    schedule = plan(scenario, "zb-h2")
    assert text(schedule, 2).startswith("F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5")
    assert simulate(scenario, schedule).peak_activations.tolist() == [5, 4, 2.5]


@pytest.mark.parametrize("planner", PLANNERS)
def test_one_activation_must_fit(planner: str) -> None:
    with pytest.raises(ScheduleError, match=r"device 2 may hold 0\.5 activations"):
        plan(Scenario(activation_limit=[4, 4, 0.5, 4]), planner)
