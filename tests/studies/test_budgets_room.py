"""When an activation limit puts W into the steady state, and so into a link's budget.

ZB-H1 warms up with 4 3 2 1 whatever the limits, as long as they hold that. Link i waits with the
work of stage i+1: F and B, 20 ms for one micro-batch, or with W 30. A slackness of 1 then leaves
(20 − 20) / 2 or (30 − 20) / 2 ms.
"""

from __future__ import annotations

import math

import pytest

from pipesim.scenario import Scenario
from pipesim.studies.budgets import Budgets, budgets

WITHOUT_W, WITH_W = 0.0, 5.0
WARMUP = (4, 3, 2, 1)


def zb_h1(limits: list[float], delay_ms: float = 0.0) -> Budgets:
    scenario = Scenario(activation_limit=limits)
    if delay_ms:
        scenario = scenario.with_delay(delay_ms, links=[0, 1, 2])
    result = budgets(scenario, "zb-h1")
    assert result.current.warmup == WARMUP
    assert [link.slackness for link in result.current.links] == [1, 1, 1]
    return result


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (0, WITH_W),
        (0.25, WITH_W),
        (0.5, WITH_W),
        (1 - 1e-6, WITH_W),
        (1, WITHOUT_W),
        (1.5, WITHOUT_W),
        (2, WITHOUT_W),
        (math.inf, WITHOUT_W),
    ],
)
@pytest.mark.parametrize("link", [0, 1, 2])
def test_w_counts_unless_there_is_room_for_one_activation_more(
    link: int, room: float, expected: float
) -> None:
    limits = [math.inf] * 4
    limits[link + 1] = WARMUP[link + 1] + room
    found = [one.budget_ms for one in zb_h1(limits).current.links]
    # The other links wait with other stages' work.
    assert found == [expected if other == link else WITHOUT_W for other in range(3)]


def test_the_first_stage_s_limit_is_in_no_link_s_way() -> None:
    assert [link.budget_ms for link in zb_h1([4, 10, 10, 10]).current.links] == [WITHOUT_W] * 3


@pytest.mark.parametrize(
    ("room", "needed"),
    [(0.5, 1), (1, 2)],  # 5 + 20 + 5 ms of waiting: once 30 ms of work, or twice 20
)
def test_the_slackness_that_a_delay_needs_counts_w_likewise(room: float, needed: int) -> None:
    plan = zb_h1([x + room for x in WARMUP], delay_ms=5).current
    assert [link.needed_slackness for link in plan.links] == [needed] * 3
    assert plan.absorbs == (needed == 1)


def test_a_fused_backward_has_its_w_in_the_steady_state_anyhow() -> None:
    for limit in (4, 5):
        links = budgets(Scenario(activation_limit=limit), "1f1b").current.links
        # F and BW of one micro-batch, 30 ms, on both sides of the link.
        assert [link.budget_ms for link in links] == [0, 0, 0]
