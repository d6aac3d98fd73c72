from __future__ import annotations

import pytest

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.studies.budgets import budgets


def test_a_link_over_its_budget_and_what_absorbs_it() -> None:
    result = budgets(Scenario().with_delay(20, links=[0]).with_delay(5, links=[2]))
    slow, healthy, mild = result.current.links
    assert (slow.slackness, slow.budget_ms, slow.delay_ms, slow.over_ms) == (2, 10, 20, 10)
    assert (healthy.over_ms, mild.over_ms, slow.needed_slackness) == (0, 0, 3)
    assert not result.current.absorbs
    assert result.smallest.warmup == (7, 4, 3, 1)
    assert result.smallest.absorbs
    assert result.smallest.iteration_ms < result.current.iteration_ms


def test_a_delay_of_just_the_budget_is_absorbed() -> None:
    assert budgets(Scenario().with_delay(10, links=[0])).current.absorbs


def test_1f1b_has_no_budget() -> None:
    result = budgets(Scenario().with_delay(1, links=[1]), "1f1b")
    assert [link.budget_ms for link in result.current.links] == [0, 0, 0]
    assert result.current.links[1].over_ms == 1


def test_one_way_delays_share_one_budget() -> None:
    result = budgets(Scenario().with_delay(20, links=[0], directions=["down"]))
    assert result.current.links[0].delay_ms == 10
    assert result.current.absorbs


def test_a_delay_that_no_warm_up_absorbs() -> None:
    result = budgets(Scenario().with_delay(300, links=[1]))
    assert not result.smallest.absorbs
    stuck = budgets(Scenario(stages=2, forward_ms=0, backward_ms=0).with_delay(5, links=[0]))
    assert stuck.current.links[0].needed_slackness is None


@pytest.mark.parametrize("stages", [1, 2])
def test_small_pipelines(stages: int) -> None:
    assert budgets(Scenario(stages=stages)).current.absorbs


def test_budgets_are_for_one_stage_a_device() -> None:
    with pytest.raises(ScheduleError, match="one stage on each device"):
        budgets(Scenario().interleaved(2))
