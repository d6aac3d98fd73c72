"""What a plan absorbs, against simulation; the formula beside it; and what is recommended."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.analysis import smallest_warmup, warmup
from pipesim.errors import ScheduleError
from pipesim.scenario import KINDS, TIME_OF
from pipesim.schedule import Schedule
from pipesim.studies.advice import NEGLIGIBLE
from pipesim.studies.budget_formula import formula_budget_ms
from pipesim.studies.budgets import PlanBudgets, budgets
from pipesim.transport import Ideal
from planners.pipemorph import planned_under_delays
from tests.strategies import examples, scenarios

PLANNERS = ("zerobubble", "1f1b", "gpipe", "zb-h1", "zb-h2", "pipemorph")


def test_a_link_over_its_budget_and_what_absorbs_it() -> None:
    result = budgets(Scenario().with_delay(20, links=[0]).with_delay(5, links=[2]))
    slow, healthy, mild = result.current.links
    assert (slow.slackness, slow.budget_ms, slow.delay_ms, slow.growth_ms) == (2, 10, 20, 55)
    assert slow.over_ms == pytest.approx(20 - slow.true_budget_ms)
    assert (slow.needed_slackness, healthy.over_ms) == (3, 0)
    # The formula looks at link 2 alone; beside link 0's delay there is no room for more.
    assert (mild.budget_ms, mild.growth_ms, mild.absorbed) == (10, 10, False)
    assert not result.current.absorbs
    assert result.smallest.warmup == (7, 4, 3, 1)
    assert result.smallest.absorbs
    assert result.recommended


def test_a_delay_of_just_the_budget_is_absorbed() -> None:
    result = budgets(Scenario().with_delay(10, links=[2]))
    assert result.current.links[2].true_budget_ms == pytest.approx(10)
    assert result.current.absorbs
    assert not result.recommended


def test_1f1b_has_no_budget() -> None:
    result = budgets(Scenario().with_delay(1, links=[1]), "1f1b")
    assert [link.budget_ms for link in result.current.links] == [0, 0, 0]
    assert [link.true_budget_ms for link in result.current.links] == pytest.approx([0, 0, 0])
    assert result.current.links[1].over_ms == pytest.approx(1)


@pytest.mark.parametrize(
    ("delay_ms", "budget_ms"),
    [((20, 0), 20), ((0, 20), 20), ((20, 10), 40 / 3), ((20, 20), 10)],
)
def test_directions_share_the_formula_s_budget(
    delay_ms: tuple[float, float], budget_ms: float
) -> None:
    """Both together are 20 ms; shown is the larger direction, as for the delay."""
    scenario = Scenario(latency_ms=[delay_ms, (0, 0), (0, 0)])
    link = budgets(scenario).current.links[0]
    assert (link.delay_ms, link.budget_ms) == (20, pytest.approx(budget_ms))


def test_what_messages_cost_uses_up_a_part_of_the_budget() -> None:
    slow = Scenario(message_bytes=2e6).with_delay(7, links=[2])
    over = Ideal(base_ms=1, bytes_per_ms=1e6)  # 3 ms a message
    instant, costly = budgets(slow), budgets(slow, over=over)
    assert [one.budget_ms for one in instant.current.links] == [10, 10, 10]
    assert [one.budget_ms for one in costly.current.links] == [7, 7, 7]
    assert costly.current.links[2].true_budget_ms == pytest.approx(7)
    assert costly.current.links[2].absorbed
    assert costly.costs_ms.tolist() == [3, 3, 3]
    longer = budgets(slow.with_delay(7.5, links=[2]), over=over)
    assert not longer.current.links[2].absorbed
    # As a part of the delay, the costs ask for the same slackness.
    assert longer.current.links[2].needed_slackness == 3
    told = slow.with_delay(7.5, links=[2]).with_message_cost(3)
    assert longer.pipemorph.iteration_ms == simulate(told, plan(told, "pipemorph")).iteration_ms


def test_no_budget_is_told_as_null() -> None:
    """GPipe's forwards all come first: one direction is paid once, whatever its delay."""
    scenario = Scenario().with_delay(20, [0], directions=["down"])
    result = budgets(scenario, "gpipe")
    assert result.current.links[0].true_budget_ms == math.inf
    assert result.current.absorbs
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert document["plan"]["links"][0]["true_budget_ms"] is None


def test_a_delay_that_no_warm_up_absorbs() -> None:
    result = budgets(Scenario().with_delay(300, links=[1]))
    assert not result.smallest.absorbs
    stuck = budgets(Scenario(stages=2, forward_ms=0, backward_ms=0).with_delay(5, links=[0]))
    assert stuck.current.links[0].needed_slackness is None


def test_a_warm_up_that_is_not_faster_is_not_recommended() -> None:
    """Both take 170 ms: with four micro-batches there is nothing to gain."""
    result = budgets(Scenario(microbatches=4).with_delay(10, [2]))
    assert not result.current.absorbs
    assert result.smallest.iteration_ms == result.current.iteration_ms == 170
    assert not result.recommended


def test_a_warm_up_stays_within_device_and_host() -> None:
    scenario = Scenario(activation_limit=4, host_limit=1).with_delay(30, [0])
    result = budgets(scenario, "zb-h1")
    assert max(result.smallest.peak_activations) <= 5
    assert result.smallest.warmup[0] <= 5


@pytest.mark.parametrize("stages", [1, 2])
def test_small_pipelines(stages: int) -> None:
    assert budgets(Scenario(stages=stages)).current.absorbs


def test_budgets_are_for_one_stage_a_device() -> None:
    with pytest.raises(ScheduleError, match="one stage on each device"):
        budgets(Scenario().interleaved(2))


# -- why the formula and the engine differ -------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "planner", "reason"),
    [
        (
            Scenario(microbatches=4),
            "zerobubble",
            "Link 2 absorbs less than it says, "
            "because there are too few micro-batches: 4, where 64 would do.",
        ),
        (
            Scenario().with_delay(20, [0]).with_delay(5, [2]),
            "zerobubble",
            "Links 1 and 2 absorb less than it says, because other links are slow.",
        ),
        (
            # A limit brings W into the windows sooner or later, however many micro-batches.
            Scenario(microbatches=64, activation_limit=[7, 6, 5, 4]),
            "zerobubble",
            "Links 1 and 2 absorb less than it says, because activations are limited.",
        ),
        (
            Scenario(microbatches=64, forward_ms=[1, 1, 9, 9], backward_ms=[1, 1, 9, 9]),
            "1f1b",
            "Link 1 absorbs less than it says, because operator times differ.",
        ),
    ],
)
def test_why_a_link_absorbs_less_than_the_formula_says(
    scenario: Scenario, planner: str, reason: str
) -> None:
    assert budgets(scenario, planner).why.endswith(reason)


def test_there_is_no_reason_where_formula_and_engine_agree() -> None:
    assert budgets(Scenario().with_delay(5, [1]), "1f1b").why == ""


@st.composite
def slow(draw: st.DrawFn) -> tuple[Scenario, str]:
    """A plain scenario, often one with equal times, and a planner."""
    scenario = draw(scenarios(limited=True).filter(lambda one: one.is_plain))
    if draw(st.booleans()):
        time = draw(st.integers(1, 20))
        scenario = scenario.replaced(
            forward_ms=time, backward_ms=time, weight_ms=time, fused_backward_ms=2 * time
        )
    return scenario, draw(st.sampled_from(PLANNERS))


def time_ms(scenario: Scenario, schedule: Schedule, links: Sequence[int]) -> float:
    """The iteration time with the delays of these links only, on SimPy."""
    delays = np.zeros_like(scenario.delay_ms)
    delays[list(links)] = scenario.delay_ms[list(links)]
    there = scenario.replaced(latency_ms=delays, occupancy_ms=0.0)
    return simulate(there, schedule).iteration_ms


def check(scenario: Scenario, found: PlanBudgets) -> None:
    """Each verdict against the definition: what is added, beside the other delays and alone."""
    links = scenario.slow_links
    healthy, slow = time_ms(scenario, found.schedule, ()), time_ms(scenario, found.schedule, links)
    rounding = 1e-6 * (1 + slow)
    assert found.iteration_ms == pytest.approx(slow)
    assert found.growth_ms == pytest.approx(slow - healthy, abs=rounding)
    over = np.array(found.peak_activations) - scenario.activation_limit
    assert found.host_activations == pytest.approx(np.maximum(over, 0), abs=1e-9)
    for link in found.links:
        others = [other for other in links if other != link.link]
        beside = slow - time_ms(scenario, found.schedule, others)
        alone = time_ms(scenario, found.schedule, [link.link]) - healthy
        assert link.growth_ms == pytest.approx(max(beside, alone), abs=rounding)
        over = link.growth_ms - scenario.delay_ms[link.link].max()
        if abs(over) > rounding:
            assert link.absorbed == (over < 0)
        assert link.absorbed == (link.over_ms == 0)
        assert link.absorbed or link.true_budget_ms < link.delay_ms
    if found.absorbs:
        assert all(link.absorbed for link in found.links)
        assert found.growth_ms <= scenario.delay_ms.max(axis=1, initial=0).sum() + rounding


@given(slow())
@examples(1.5)
def test_every_verdict_is_what_simulation_says(case: tuple[Scenario, str]) -> None:
    scenario, planner = case
    result = budgets(scenario, planner, engine="compiled")
    check(scenario, result.current)
    check(scenario, result.smallest)
    assert result.current.schedule.orders == plan(scenario, planner).orders
    known = [result.current, *([result.smallest] if result.recommended else [])]
    pipemorph_ms = simulate(scenario, plan(scenario, "pipemorph")).iteration_ms
    assert result.pipemorph_is_faster == all(
        pipemorph_ms < one.iteration_ms * (1 - NEGLIGIBLE) for one in known
    )
    if result.recommended:
        assert not result.current.absorbs
        assert result.smallest.iteration_ms < result.current.iteration_ms
        room = scenario.activation_limit + scenario.host_limit
        assert (result.smallest.peak_activations <= room + 1e-9).all()
    elif not result.current.absorbs and np.isinf(scenario.activation_limit).all():
        tried = planned_under_delays(scenario, "the formula's", smallest_warmup(scenario))
        tried_ms = simulate(scenario, tried).iteration_ms
        assert tried_ms >= result.current.iteration_ms * (1 - NEGLIGIBLE)


def named(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


@given(slow())
@examples(1.5)
def test_every_reason_holds(case: tuple[Scenario, str]) -> None:
    """Differences are all named; where a reason says so, the link absorbs what is promised."""
    scenario, planner = case
    result = budgets(scenario, planner, engine="compiled")
    more, less = [], []
    for link in result.current.links:
        gap = link.true_budget_ms - link.budget_ms
        if abs(gap) > 1e-6 * (1 + link.budget_ms):
            (more if gap > 0 else less).append(link.link)
    assert bool(result.why) == bool(more or less)
    for which, word in ((more, "more"), (less, "less")):
        told = re.findall(rf"(Links? [\d, and]+) absorbs? {word} than it says", result.why)
        assert sorted(named(" ".join(told))) == which
    explained = []
    because = r"(Links? [\d, and]+) absorbs? less than it says, (?:because|but) ([^.]+)"
    for links, words in re.findall(because, result.why):
        explained += named(links)
        for link in named(links):
            there, schedule = changed(scenario, result.current.schedule, planner, words, link)
            fused, x = bool(schedule.is_fused.any()), warmup(schedule)
            promised = formula_budget_ms(there, link, x[link] - x[link + 1], fused=fused)
            pair = there.delay_ms[link] if there.delay_ms[link].any() else np.ones(2)
            others = [other for other in there.slow_links if other != link]
            for beside in (others, []):
                without = time_ms(there, schedule, beside)
                delays = np.zeros_like(there.delay_ms)
                delays[beside] = there.delay_ms[beside]
                delays[link] = promised * pair / pair.max()
                slow = simulate(there.replaced(latency_ms=delays, occupancy_ms=0.0), schedule)
                assert slow.iteration_ms <= without + promised + 1e-6 * (1 + slow.iteration_ms)
    still = re.search(r"(Links? [\d, and]+) absorbs? less than it says because of", result.why)
    assert sorted(explained + (named(still[1]) if still else [])) == less


def changed(
    scenario: Scenario, schedule: Schedule, planner: str, words: str, link: int
) -> tuple[Scenario, Schedule]:
    """What a reason says: a scenario with something changed, and the plan there."""
    again = "would not under a new plan" in words
    if "operator times differ" in words or "equal operator times" in words:
        means = {TIME_OF[kind]: scenario.durations_ms(kind).mean() for kind in KINDS}
        scenario = scenario.replaced(**means)
    if "W takes time" in words:
        scenario = scenario.replaced(weight_ms=0.0)
    if "other links are slow" in words or "no other delay" in words:
        delays = np.zeros_like(scenario.delay_ms)
        delays[link] = scenario.delay_ms[link]
        scenario = scenario.replaced(latency_ms=delays, occupancy_ms=0.0)
    if many := re.search(r"(?:where|and|,) (\d+) (?:would do|micro-batches)", words):
        again, n = True, int(many[1])
        times = {
            TIME_OF[kind]: np.tile(scenario.durations_ms(kind), n // scenario.microbatches)
            for kind in KINDS
        }
        scenario = scenario.replaced(microbatches=n, **times)
    if "activations are limited" in words or "no activation limit" in words:
        again, scenario = True, scenario.replaced(activation_limit=np.inf)
    return scenario, plan(scenario, planner) if again else schedule
