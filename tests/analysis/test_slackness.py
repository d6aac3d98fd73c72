"""Slackness, budgets and bounds, against their definitions and against the engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.analysis import (
    check_lemma_1,
    delay_budget_ms,
    growth_rate,
    lower_bound_ms,
    needed_slackness,
    slackness,
    warmup,
)
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.schedule import Op, Schedule
from tests.strategies import scenarios

UNEQUAL = Scenario(forward_ms=[9, 10, 10, 12], backward_ms=[11, 12, 12, 13], weight_ms=[7, 8, 8, 9])


def test_warmup_counts_forwards_before_the_first_backward_of_the_stage() -> None:
    schedule = plan(Scenario(stages=2, microbatches=4).interleaved(2), "interleaved-1f1b")
    assert warmup(schedule) == (4, 3, 2, 1)
    assert slackness(warmup(schedule)) == (1, 1, 1)


def test_lemma_1_is_a_check_on_any_schedule() -> None:
    """It takes backwards out of order to break it: here B1 may start before F0 of stage 0's."""
    check_lemma_1(plan(UNEQUAL, "zerobubble"))
    f, b = (lambda s, m: Op("F", s, m)), (lambda s, m: Op("BW", s, m))
    broken = Schedule(
        [[f(0, 0), b(0, 0), f(0, 1), b(0, 1)], [f(1, 0), b(1, 0), f(1, 1), b(1, 1)]], (0, 1), 2
    )
    assert slackness(warmup(broken)) == (0,)
    check_lemma_1(broken)
    object.__setattr__(broken, "orders", (broken.orders[0], (f(1, 0), f(1, 1), b(1, 0), b(1, 1))))
    with pytest.raises(ScheduleError, match="link 0 has slackness -1"):
        check_lemma_1(broken)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (3 * (10 + 12) - (9 + 11)) / 2),
        ({"fused": True}, (3 * (10 + 20) - (9 + 18)) / 2),
        ({"weight_in_steady_state": True}, (3 * (10 + 12 + 8) - (9 + 11)) / 2),
    ],
)
def test_budget_of_unequal_times(options: dict[str, bool], expected: float) -> None:
    assert delay_budget_ms(UNEQUAL, 0, 3, **options) == expected


def test_1f1b_has_no_budget() -> None:
    assert delay_budget_ms(Scenario(), 1, 1, fused=True) == 0
    assert growth_rate(12, 1) == 12


def test_budgets_exist_between_devices_only() -> None:
    with pytest.raises(ScenarioError, match="both on device 0"):
        delay_budget_ms(Scenario(stages=2, placement=[0, 0]), 0, 2)


@given(scenarios())
def test_needed_slackness_is_the_smallest_whose_budget_holds(scenario: Scenario) -> None:
    for link in range(scenario.stages - 1):
        if not scenario.crosses(link):
            continue
        need, delay = needed_slackness(scenario, link), scenario.delay_ms[link].sum() / 2
        if math.isinf(need):
            continue
        slack = 1e-6 * (1 + delay + scenario.forward_ms.mean() + scenario.backward_ms.mean())
        assert delay <= delay_budget_ms(scenario, link, need) + slack
        if need >= 1 and delay > 0:
            assert delay >= delay_budget_ms(scenario, link, need - 1) - slack


def test_no_work_below_a_slow_link_can_hide_its_delay() -> None:
    scenario = Scenario(stages=2, forward_ms=[1, 0], backward_ms=[1, 0]).with_delay(1, [0])
    assert needed_slackness(scenario, 0) == math.inf
    assert needed_slackness(Scenario(stages=2, forward_ms=0, backward_ms=0), 0) == 0


def test_lower_bound_by_hand() -> None:
    assert lower_bound_ms(Scenario()) == 30 + 360
    assert lower_bound_ms(Scenario(microbatches=1)) == 4 * 10 + 4 * 10 + 10
    assert lower_bound_ms(Scenario(stages=1, microbatches=3)) == 90
    # The last stage's forwards and backwards, then the slow way up, three B and a W.
    assert lower_bound_ms(Scenario().with_delay(200, [2], directions=["up"])) == 30 + 240 + 200 + 40


@given(scenarios())
def test_lower_bound_grows_with_every_delay(scenario: Scenario) -> None:
    assert lower_bound_ms(scenario) >= lower_bound_ms(scenario.without_delay())


@given(st.integers(2, 6), st.integers(8, 16), st.floats(0, 50), st.data())
def test_a_plan_for_a_delay_within_its_budget_loses_no_more_than_the_delay(
    stages: int, n: int, delay: float, data: st.DataObject
) -> None:
    link = data.draw(st.integers(0, stages - 2))
    scenario = Scenario(stages=stages, microbatches=n).with_delay(delay, [link])
    schedule = plan(scenario, "pipemorph")
    assume(delay <= delay_budget_ms(scenario, link, slackness(warmup(schedule))[link]))
    healthy = simulate(scenario.without_delay(), plan(scenario.without_delay(), "pipemorph"))
    grown = simulate(scenario, schedule).iteration_ms - healthy.iteration_ms
    assert grown <= delay + 1e-6
