"""Attribution: cases worked out by hand, and what holds for every scenario."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, compare, plan, simulate
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.explain.attribution import attribute
from pipesim.explain.causes import CAUSES, Attribution
from pipesim.explain.diagnosis import diagnosis, first, lines
from pipesim.explain.operator_times import OperatorTimes
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Ideal, Nccl, Transport
from tests.strategies import cases, transports


def parts(found: Attribution) -> dict[str, float]:
    """The cumulative parts that are not zero."""
    return {
        cause.name: round(cause.cumulative_ms, 6)
        for cause in found.causes
        if abs(cause.cumulative_ms) > 1e-9
    }


def removals(found: Attribution) -> dict[str, float]:
    return {
        cause.name: round(cause.removal_ms, 6)
        for cause in found.causes
        if cause.removal_ms is not None and abs(cause.removal_ms) > 1e-9
    }


def planned(scenario: Scenario, planner: str, over: str | Transport = "ideal") -> Attribution:
    return attribute(scenario, plan(scenario, planner), over)


# -- by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planner", "over", "bubble_ms"),
    [("1f1b", "exchange", 90), ("zerobubble", "nccl", 30), ("gpipe", "ideal", 90)],
)
def test_nothing_wrong_leaves_work_and_warm_up(planner: str, over: str, bubble_ms: float) -> None:
    found = planned(Scenario(), planner, over)
    assert parts(found) == {"warm-up and drain": bubble_ms, "work": 360}
    assert removals(found) == {}
    assert (found.slowdown, found.waste, found.recovered(0)) == (1, 0, None)
    assert first(found) is None
    share = 100 * bubble_ms / (360 + bubble_ms)
    assert diagnosis(found) == (
        f"Nothing is slow or uneven enough to matter: warm-up and drain take {share:.1f}".rstrip(
            "0"
        ).rstrip(".")
        + " % of the iteration, the rest is work."
    )


def test_the_worked_example() -> None:
    """390 ms healthy, 440 with the dependency bubbles of 20 ms on link 0, 800 with HOL."""
    found = planned(Scenario().with_delay(20, links=[0]), "zerobubble", "nccl")
    assert (found.iteration_ms, found.ideal_ms) == (800, 390)
    assert parts(found) == {"hol": 360, "dependency": 50, "warm-up and drain": 30, "work": 360}
    assert removals(found) == {"hol": 360, "dependency": 50}
    (link,) = found.links
    assert (link.link, link.dependency_ms, link.hol_ms, link.removal_ms) == (0, 50, 360, 410)
    assert found.slowdown == pytest.approx(800 / 390)
    assert found.waste == pytest.approx(410 / 800)
    assert found.recovered(link.removal_ms) == 1
    assert first(found) == "hol"


def test_a_slow_stage() -> None:
    """Two stages, two micro-batches, 1F1B with F 10, BW 20; stage 1 takes twice as long.

    Stage 0: F0 0–10, F1 10–20; stage 1: F0 10–30, BW0 30–70, F1 70–90, BW1 90–130; stage 0:
    BW0 70–90, BW1 130–150. The mean stage takes F 15, BW 30: F0 on stage 1 starts at 15,
    its four operators end at 105, and BW1 of stage 0 at 135.
    Alone, a stage 1 of the mean: 10 + 90 + 20 = 120. A stage 0 of the mean: 15 + 120 + 30.
    """
    scenario = Scenario(
        stages=2, microbatches=2, forward_ms=[10, 20], backward_ms=[10, 20], weight_ms=[10, 20]
    )
    found = planned(scenario, "1f1b")
    assert found.iteration_ms == 150
    assert parts(found) == {"stage imbalance": 15, "warm-up and drain": 45, "work": 90}
    assert removals(found) == {"stage imbalance": 15}
    assert [stage.imbalance_ms for stage in found.stages] == pytest.approx([-15, 30])
    assert [stage.ratio for stage in found.stages] == pytest.approx([2 / 3, 4 / 3])
    assert diagnosis(found) == (
        "Look at stage 1 first: it has 1.33× the work of the mean stage; equal stages would "
        "save 15 ms (10 % of the iteration)."
    )


def test_an_operator_ten_times_as_long() -> None:
    """On the last stage of 1F1B nothing hides it: it costs all of its 90 ms."""
    times = np.full((4, 12), 10.0)
    times[3, 5] = 100
    found = planned(Scenario(forward_ms=times), "1f1b", "exchange")
    assert found.iteration_ms == 540
    assert parts(found) == {"slow operators": 90, "warm-up and drain": 90, "work": 360}
    assert removals(found) == {"slow operators": 90}
    (slow,) = found.slow_operators
    assert (str(slow.op), slow.duration_ms, slow.median_ms, slow.removal_ms) == ("3F5", 100, 10, 90)
    assert [stage.slow_operators_ms for stage in found.stages] == [0, 0, 0, 90]
    assert diagnosis(found) == (
        "Look at operator 3F5 first: it takes 100 ms instead of 10, which costs 90 ms "
        "(16.7 % of the iteration)."
    )


def test_two_stragglers_hide_each_other() -> None:
    """Two stages, one after the other: the removals do not add up, the order does."""
    weights = np.full((2, 3), 10.0)
    weights[:, 2] = 100  # the last work of both stages, at the same time
    scenario = Scenario(stages=2, microbatches=3, backward_ms=0, forward_ms=0, weight_ms=weights)
    found = planned(scenario, "zerobubble")
    assert found.iteration_ms == 120
    assert [slow.removal_ms for slow in found.slow_operators] == [0, 0]
    assert parts(found) == {"slow operators": 90, "work": 30}


def test_micro_batches_that_differ_on_every_stage() -> None:
    """One stage, so that all variation is harmless; two, so that it is not."""
    times = [8, 12, 8, 12]
    assert parts(planned(Scenario(stages=1, microbatches=4, forward_ms=[times]), "1f1b")) == {
        "work": 120
    }
    found = planned(Scenario(stages=2, microbatches=4, forward_ms=[times, times]), "gpipe")
    assert set(removals(found)) == {"micro-batch variation"}
    assert parts(found)["work"] == 120


def test_the_transport_has_a_price_on_healthy_links() -> None:
    """Ideal 450; every message takes 1 ms under exchange, slow link or not."""
    healthy = simulate(Scenario(), plan(Scenario(), "1f1b"), Exchange(base_ms=1)).iteration_ms
    found = planned(Scenario(), "1f1b", Exchange(base_ms=1))
    assert parts(found) == {
        "transport": healthy - 450, "warm-up and drain": 90, "work": 360,
    }  # fmt: skip
    assert found.ideal_ms == healthy
    assert first(found) == "transport"
    assert "Look at the transport first" in diagnosis(found)


def test_links_are_removed_one_at_a_time() -> None:
    scenario = Scenario().with_delay(20, links=[0]).with_delay(5, links=[2], directions=["up"])
    schedule = plan(scenario, "zerobubble")
    found = attribute(scenario, schedule, Nccl())
    without = Scenario().with_delay(5, links=[2], directions=["up"])
    both, one = (simulate(s, schedule, "nccl").iteration_ms for s in (scenario, without))
    assert found.links[0].removal_ms == both - one
    ideal = [simulate(s, schedule, "ideal").iteration_ms for s in (scenario, without)]
    assert found.links[0].dependency_ms == ideal[0] - ideal[1]
    assert "Look at links 0 and 2 first" in diagnosis(found)
    assert "; link 0 alone " in diagnosis(found)
    labels = [line.label for line in lines(found) if line.cause == "hol"]
    assert labels == ["slow links: HOL blocking", "link 0", "link 2"]


@pytest.mark.parametrize("system", ["1f1b", "zerobubble", "pipemorph-cpu"])
def test_it_agrees_with_compare(system: str) -> None:
    """Where the plan does not know the delays and the transport is free on healthy links."""
    scenario = Scenario(forward_ms=[9, 10, 10, 12]).with_delay(15, links=[1])
    (row,) = compare(scenario, [system]).rows
    found = attribute(scenario, row.schedule, row.system.transport)
    assert found.iteration_ms == row.iteration_ms
    assert found.cause("dependency").removal_ms == pytest.approx(row.dependency_ms)
    assert found.cause("hol").removal_ms == pytest.approx(row.hol_ms)


def test_what_is_not_run_does_not_count() -> None:
    """Times of B and W mean nothing to a schedule of fused backwards, and the other way."""
    fused = np.full((4, 12), 20.0)
    fused[1, 3] = 500
    scenario = Scenario(fused_backward_ms=fused, backward_ms=[1, 2, 3, 4])
    assert removals(planned(scenario.replaced(backward_ms=10), "zerobubble")) == {}
    assert [str(slow.op) for slow in planned(scenario, "1f1b").slow_operators] == ["1BW3"]
    assert planned(scenario, "1f1b").stages[1].ratio == 1


def test_only_the_worst_slow_operators_are_tried() -> None:
    times = np.full((2, 30), 10.0)
    times[0, 3:30:4] = np.arange(20, 90, 10)
    found = planned(Scenario(stages=2, microbatches=30, forward_ms=times), "1f1b")
    assert [slow.op.microbatch for slow in found.slow_operators] == [27, 23, 19, 15, 11, 7, 3]
    assert [slow.removal_ms is None for slow in found.slow_operators] == [False] * 5 + [True] * 2
    assert "the 7 slow operators" in diagnosis(found)


def test_the_threshold_of_slow_operators() -> None:
    times = np.full((2, 4), 10.0)
    times[1, 2] = 16
    scenario = Scenario(stages=2, microbatches=4, forward_ms=times)
    schedule = plan(scenario, "1f1b")
    assert len(attribute(scenario, schedule).slow_operators) == 1
    assert not attribute(scenario, schedule, outlier=1.6).slow_operators
    two = Scenario(stages=1, microbatches=2, forward_ms=[[1, 100]])
    assert not planned(two, "1f1b").slow_operators
    for wrong in (0.5, float("nan"), float("inf"), -1):
        with pytest.raises(ScenarioError, match="outlier must be at least 1"):
            attribute(scenario, schedule, outlier=wrong)


def test_bad_input() -> None:
    with pytest.raises(ScheduleError):
        attribute(Scenario(), plan(Scenario(stages=2), "1f1b"))
    with pytest.raises(ScenarioError, match="unknown transport"):
        planned(Scenario(), "1f1b", "pigeon")


def test_an_iteration_without_any_time() -> None:
    found = planned(Scenario(forward_ms=0, backward_ms=0, weight_ms=0), "1f1b")
    assert (found.slowdown, found.waste, found.fraction(1)) == (None, 0, 0)
    assert parts(found) == {}
    assert diagnosis(found)


def test_progress_names_what_is_removed() -> None:
    said: list[str] = []
    scenario = Scenario(stages=2).with_delay(5, links=[0])
    attribute(scenario, plan(scenario, "1f1b"), progress=said.append)
    assert said == [
        "healthy links", "without link 0's delay",
        "without stage 0's imbalance", "without stage 1's imbalance",
    ]  # fmt: skip


# -- for every scenario --------------------------------------------------------------------


@given(cases(), transports)
def test_the_cumulative_parts_are_the_iteration(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    scenario, schedule = case
    found = attribute(scenario, schedule, over)
    total = sum(cause.cumulative_ms for cause in found.causes)
    assert total == pytest.approx(found.iteration_ms, rel=1e-9, abs=1e-9)
    assert found.iteration_ms == simulate(scenario, schedule, over).iteration_ms
    assert [cause.name for cause in found.causes] == list(CAUSES)
    core = sum(found.cause(name).cumulative_ms for name in CAUSES[-3:])
    assert core == pytest.approx(found.ideal_ms, rel=1e-9, abs=1e-9)
    assert found.cause("work").cumulative_ms >= 0
    assert found.cause("warm-up and drain").cumulative_ms >= -1e-9 * found.iteration_ms
    assert diagnosis(found).endswith(".")
    found.as_dict()


@given(cases())
def test_over_the_ideal_transport_links_and_slow_operators_only_cost(
    case: tuple[Scenario, Schedule],
) -> None:
    found = attribute(*case, Ideal())
    near_zero = -1e-9 * found.iteration_ms
    for name in ("dependency", "slow operators"):
        cause = found.cause(name)  # type: ignore[arg-type]
        assert cause.cumulative_ms >= near_zero
        assert cause.removal_ms is not None
        assert cause.removal_ms >= near_zero
    for name in ("hol", "transport"):
        assert found.cause(name).cumulative_ms == 0  # type: ignore[arg-type]
    assert all(link.dependency_ms >= near_zero for link in found.links)
    assert all(stage.slow_operators_ms >= near_zero for stage in found.stages)
    assert all((slow.removal_ms or 0) >= near_zero for slow in found.slow_operators)


@given(cases(), transports)
def test_a_cause_that_is_not_there_costs_nothing(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    """A cleaned scenario has nothing but the transport, warm-up and work."""
    scenario, schedule = case
    times = OperatorTimes(scenario, schedule)
    clean = times.without(slow=True, imbalance=True, variation=True).without_delay()
    found = attribute(clean, schedule, over)
    assert set(removals(found)) <= {"transport"}
    assert set(parts(found)) <= {"transport", "warm-up and drain", "work"}
    assert not found.links
    assert not found.slow_operators
    assert all(stage.imbalance_ms == 0 for stage in found.stages)


@given(cases(), st.booleans(), st.booleans(), st.booleans())
def test_what_is_taken_out_is_gone_and_nothing_else(
    case: tuple[Scenario, Schedule], slow: bool, imbalance: bool, variation: bool
) -> None:
    scenario, schedule = case
    times = OperatorTimes(scenario, schedule)
    assert times.without() == scenario
    changed = times.without(slow=slow, imbalance=imbalance, variation=variation)
    assert np.array_equal(changed.delay_ms, scenario.delay_ms)
    left = OperatorTimes(changed, schedule, outlier=1e12)
    if slow and imbalance:
        assert left.stage_ratios == pytest.approx(np.ones(scenario.stages))
    if slow and variation:
        for op in schedule.topological_order:
            row = changed.durations_ms(op.kind)[op.stage]
            assert row[op.microbatch] == pytest.approx(row.mean())


@given(cases(), st.sampled_from([0.5, 3.0]))
def test_it_scales_with_time(case: tuple[Scenario, Schedule], factor: float) -> None:
    scenario, schedule = case
    one, other = (attribute(s, schedule, Delegated()) for s in (scenario, scenario.scaled(factor)))
    near = 1e-9 * (one.iteration_ms + 1)
    for before, after in zip(one.causes, other.causes, strict=True):
        assert after.cumulative_ms == pytest.approx(before.cumulative_ms * factor, abs=near)
