"""True budgets: by hand, and against their definition with runs of the other engine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.schedule import Schedule
from pipesim.studies.absorption import Absorption
from pipesim.transport import Ideal
from tests.strategies import cases, examples


def added_ms(
    scenario: Scenario, schedule: Schedule, link: int, delay_ms: float, over: Ideal
) -> float:
    """What a delay of a link adds on SimPy, beside the other delays or alone, if that is more.

    The directions of a slow link keep their proportion; those of a healthy link are alike.
    """
    pair = scenario.delay_ms[link] if scenario.delay_ms[link].any() else np.ones(2)
    pair = pair / pair.max()
    added = []
    for others in (scenario.delay_ms, np.zeros_like(scenario.delay_ms)):
        times = []
        for delay in (0.0, delay_ms):
            delays = others.copy()
            delays[link] = delay * pair
            there = scenario.replaced(latency_ms=delays, occupancy_ms=0.0)
            times.append(simulate(there, schedule, over).iteration_ms)
        added.append(times[1] - times[0])
    return max(added)


@pytest.mark.parametrize(
    ("planner", "microbatches", "expected"),
    [
        # Above 10 ms each window of link 2 is stretched, and stage 3 has no idle time at all.
        ("zerobubble", 12, 10),
        ("zb-h2", 12, 10),
        # Four micro-batches: 2F0, 3F0, 3B0, 2B0 and so on are the longest path, twice the delay.
        ("zerobubble", 4, 0),
        ("1f1b", 12, 0),
    ],
)
def test_the_last_link_by_hand(planner: str, microbatches: int, expected: float) -> None:
    scenario = Scenario(microbatches=microbatches)
    absorption = Absorption(scenario, plan(scenario, planner))
    assert absorption.true_budget_ms(2) == pytest.approx(expected, abs=1e-6)


def test_two_stages_by_hand() -> None:
    """Stage 0 warms up with all forwards, so each path crosses the link at most once each way.

    By F1 going down, 10 + 10 + c + 20 + c + 20 ms at least; two F and two BW of stage 1 take the
    same without any delay. So a delay of both directions is paid twice, one of either once.
    """
    scenario = Scenario(stages=2, microbatches=2)
    schedule = plan(scenario, "gpipe")
    assert Absorption(scenario, schedule).true_budget_ms(0) == 0
    for direction in ("down", "up"):
        slow = scenario.with_delay(5, [0], directions=[direction])
        absorption = Absorption(slow, schedule)
        assert absorption.growth_ms(0) == 5
        assert absorption.true_budget_ms(0) == math.inf


def test_a_delay_counts_beside_the_others_and_alone() -> None:
    """5 ms on link 2 add 10 beside 20 ms on link 0, and 5 alone."""
    scenario = Scenario().with_delay(20, [0]).with_delay(5, [2])
    absorption = Absorption(scenario, plan(scenario, "zerobubble"))
    assert absorption.growth_ms(2) == 10
    assert not absorption.absorbs(2)
    alone = Scenario().with_delay(5, [2])
    assert Absorption(alone, plan(alone, "zerobubble")).growth_ms(2) == 5


@pytest.mark.parametrize(("share", "expected"), [(1.0, 99), (1e-3, 99e3), (0.0, math.inf)])
def test_a_small_share_of_the_delay_the_other_way_is_enough_for_a_limit(
    share: float, expected: float
) -> None:
    """F, c and F, then B and 100 ms of W on stage 1; meanwhile the gradient has 99 ms to go up."""
    scenario = Scenario(
        stages=2,
        microbatches=1,
        forward_ms=1,
        backward_ms=1,
        weight_ms=[0, 100],
        latency_ms=[[5, 5 * share]],
    )
    absorption = Absorption(scenario, plan(scenario, "zerobubble"))
    assert absorption.true_budget_ms(0) == pytest.approx(expected)


@given(cases(limited=True), st.sampled_from([Ideal(), Ideal(), Ideal(base_ms=3), Ideal(0.5, 1e6)]))
@examples(1.5)
def test_a_true_budget_is_the_largest_delay_that_adds_no_more(
    case: tuple[Scenario, Schedule], over: Ideal
) -> None:
    scenario, schedule = case
    if not scenario.is_plain:
        return
    absorption = Absorption(scenario, schedule, over, engine="compiled")
    for link in range(scenario.stages - 1):
        budget = absorption.true_budget_ms(link)
        rounding = 1e-6 * (1 + simulate(scenario, schedule, over).iteration_ms)
        if math.isinf(budget):
            for delay in (1.0, 1e3, 1e6):
                assert added_ms(scenario, schedule, link, delay, over) <= delay + rounding
            continue
        assert added_ms(scenario, schedule, link, budget, over) <= budget + rounding
        above = budget + 1000 * rounding
        down, up = scenario.delay_ms[link]
        # One trip more costs as much as the delay only where both directions have the same.
        least = above if down == up else above - rounding
        assert added_ms(scenario, schedule, link, above, over) > least
        delay = absorption.delay_ms(link)
        added = added_ms(scenario, schedule, link, delay, over)
        assert absorption.growth_ms(link) == pytest.approx(added, abs=rounding)
        if abs(added - delay) > rounding:
            assert absorption.absorbs(link) == (added < delay)
