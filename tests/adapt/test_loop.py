"""The loop: what is measured, when plans are swapped, and what it comes to."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt import strategy as strategies
from pipesim.adapt.costs import FREE, Costs
from pipesim.adapt.detectors import detector
from pipesim.adapt.loop import Iteration, Job, run_job
from pipesim.adapt.strategy import Planning, Strategy
from pipesim.delays import DelayTrace
from pipesim.engine import Iterations, evaluate
from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.transport import Delegated, Exchange, Nccl
from planners import plan

SCENARIO = Scenario(stages=4, microbatches=8)
RATIO = detector("ratio")
ADAPTIVE = Strategy("pipemorph", "PipeMorph", "pipemorph", Nccl(), Delegated())
DELEGATING = Strategy("pipemorph-cpu", "PipeMorph-CPU", "zerobubble", Nccl(), Delegated())
ORACLE = replace(ADAPTIVE, name="oracle", knows="delays")
FIXED = Strategy("1f1b", "1F1B", "1f1b", Exchange())

SLOW = DelayTrace([8, 14], [[40, 0, 0], [0, 0, 0]], by="iteration", end=20)
"""Link 0 is slow from iteration 8 to 13."""


def ran(
    strategy: Strategy,
    trace: DelayTrace = SLOW,
    costs: Costs | None = FREE,
    replan_every: int = 1,
    **job: object,
) -> list[Iteration]:
    what = Job(SCENARIO, trace, **job)  # type: ignore[arg-type]
    return list(run_job(what, strategy, detector=RATIO, costs=costs, replan_every=replan_every))


def static_ms(strategy: Strategy, delays: list[float], *, replanned: bool) -> float:
    """An iteration with the plan for these delays or for none."""
    delay_ms = np.repeat(np.array(delays)[:, None], 2, axis=1)
    slow = SCENARIO.replaced(occupancy_ms=delay_ms)
    if not replanned or strategy.delegated is None:
        schedule = plan(SCENARIO, strategy.planner, over=strategy.direct)
        return evaluate(slow, schedule, strategy.direct)
    over = replace(strategy.delegated, only_slow=True)
    return evaluate(slow, plan(slow, strategy.planner, over=over), over)


def test_plans_are_swapped_two_boundaries_after_the_first_slow_iteration() -> None:
    times = [one.duration_ms for one in ran(ADAPTIVE)]
    healthy = static_ms(ADAPTIVE, [0, 0, 0], replanned=False)
    unknown = static_ms(ADAPTIVE, [40, 0, 0], replanned=False)
    known = static_ms(ADAPTIVE, [40, 0, 0], replanned=True)
    assert known < unknown
    # Iteration 8 tells that the link is slow, the plan is made during 9, and swapped in before 10.
    assert times[:8] == [healthy] * 8
    assert times[8:10] == [unknown] * 2
    assert times[10:14] == [known] * 4
    # Iteration 14 tells that it has recovered. What was delegated is so for 14 and 15.
    assert times[16:] == [healthy] * 4
    assert [one.index for one in ran(ADAPTIVE) if one.swapped] == [10, 16]
    assert [bool(one.plan.delegates.any()) for one in ran(ADAPTIVE)] == [
        10 <= index < 16 for index in range(20)
    ]


def test_only_messages_of_slow_links_are_delegated() -> None:
    trace = DelayTrace([8], [[[0, 0], [30, 0], [0, 0]]], by="iteration", end=20)
    last = ran(ADAPTIVE, trace)[-1]
    assert np.argwhere(last.plan.delegates).tolist() == [[1, 0]]
    assert last.estimate_ms.tolist() == [[0, 0], [30, 0], [0, 0]]


def test_an_oracle_swaps_at_the_first_boundary() -> None:
    times = [one.duration_ms for one in ran(ORACLE)]
    healthy = static_ms(ADAPTIVE, [0, 0, 0], replanned=False)
    assert (
        times
        == [healthy] * 8 + [static_ms(ADAPTIVE, [40, 0, 0], replanned=True)] * 6 + [healthy] * 6
    )


def test_a_fixed_plan_stays() -> None:
    found = ran(FIXED, costs=None)
    assert not any(one.swapped for one in found)
    healthy, slow = (static_ms(FIXED, [c, 0, 0], replanned=False) for c in (0, 40))
    assert [one.duration_ms for one in found] == [healthy] * 8 + [slow] * 6 + [healthy] * 6


def test_delegation_alone_keeps_the_order() -> None:
    planning = Planning(SCENARIO, DELEGATING)
    slow = planning.plan(np.array([[40.0, 40.0], [0.0, 0.0], [0.0, 0.0]]))
    assert slow.runs is not planning.healthy.runs
    assert slow.schedule.orders == planning.healthy.schedule.orders
    assert any(one.plan.delegates.any() for one in ran(DELEGATING))


def test_what_adaptation_costs_is_in_the_iterations() -> None:
    costs = Costs(profile_ms=2, plan_ms=0, switch_ms=30, first_ms=500)
    free, paid = ran(ADAPTIVE), ran(ADAPTIVE, costs=costs)
    extra = [b.duration_ms - a.duration_ms for a, b in zip(free, paid, strict=True)]
    expected = [2.0] * 20
    expected[10], expected[16] = 532.0, 32.0
    assert extra == pytest.approx(expected)
    assert [one.switch_ms for one in paid if one.swapped] == [530, 30]


def test_a_plan_that_takes_long_comes_late() -> None:
    healthy = static_ms(ADAPTIVE, [0, 0, 0], replanned=False)
    slow = static_ms(ADAPTIVE, [40, 0, 0], replanned=False)
    found = ran(ADAPTIVE, costs=replace(FREE, plan_ms=1.5 * slow))
    assert next(one.index for one in found if one.swapped) == 11
    # For ever: it is never ready.
    assert not any(one.swapped for one in ran(ADAPTIVE, costs=replace(FREE, plan_ms=100 * healthy)))


def test_plans_are_made_no_oftener_than_asked() -> None:
    assert [one.index for one in ran(ADAPTIVE, replan_every=10) if one.swapped] == [10]


def test_a_lead_gives_a_baseline_and_does_not_count() -> None:
    trace = DelayTrace([0], [[40, 0, 0]], by="iteration", end=10)
    found = ran(ADAPTIVE, trace, lead=6)
    assert [one.index for one in found] == list(range(10))
    assert found[0].start_ms == 0
    assert [one.index for one in found if one.swapped] == [2]


def test_what_follows_the_pipeline_is_in_the_time() -> None:
    one, other = ran(FIXED)[0], ran(FIXED, after_ms=50)[0]
    assert other.duration_ms == one.duration_ms + 50
    assert other.pipeline_ms == one.pipeline_ms


def test_a_trace_over_time_meets_the_job_where_it_is() -> None:
    healthy, slow = (static_ms(FIXED, [c, 0, 0], replanned=False) for c in (0, 40))
    trace = DelayTrace([3 * healthy], [[40, 0, 0]], end=3 * healthy + 2 * slow + 1)
    times = [one.duration_ms for one in ran(FIXED, trace)]
    assert times == [healthy] * 3 + [slow] * 3  # the last one starts before the end


def test_a_job_ends_where_a_link_fails_for_ever() -> None:
    trace = DelayTrace([1000], [[np.inf, 0, 0]], end=60_000)
    found = ran(FIXED, trace)
    assert found
    assert found[-1].end_ms <= 1000 + found[0].duration_ms


def test_a_job_waits_for_a_link_that_recovers() -> None:
    trace = DelayTrace([1000, 9000], [[np.inf, 0, 0], [0, 0, 0]], end=20_000)
    longest = max(ran(FIXED, trace), key=lambda one: one.duration_ms)
    assert longest.start_ms < 1000 < 9000 < longest.end_ms


def test_jitter_is_the_same_for_all_and_does_not_alarm() -> None:
    quiet = DelayTrace([], np.zeros((0, 3)), by="iteration", end=300)
    sized = replace(ADAPTIVE, direct=Nccl(base_ms=5.0))
    job = Job(SCENARIO, quiet, jitter=0.05, seed=3)
    found = list(run_job(job, sized, detector=RATIO, costs=FREE))
    oracle = list(run_job(job, replace(sized, knows="delays")))
    assert [a.duration_ms for a in found] == [b.duration_ms for b in oracle]
    assert not any(one.swapped for one in found)
    assert 0.003 < np.std([one.duration_ms for one in found]) / found[0].duration_ms < 0.05
    assert np.std([one.measured_ms[0, 0] for one in found]) > 0
    assert np.mean([one.measured_ms for one in found]) == pytest.approx(5.0, rel=0.01)


@given(
    delays=st.lists(
        st.tuples(*[st.sampled_from([0.0, 5.0, 20.0, 60.0])] * 3), min_size=1, max_size=4
    ),
    seed=st.integers(0, 99),
)
def test_an_oracle_is_not_slower_by_iteration(
    delays: list[tuple[float, float, float]], seed: int
) -> None:
    starts = np.sort(np.random.default_rng(seed).choice(15, len(delays), replace=False)) + 6
    job = Job(
        Scenario(stages=4, microbatches=4), DelayTrace(starts, delays, by="iteration", end=24)
    )
    best, *others = (
        sum(one.duration_ms for one in run_job(job, strategy, detector=RATIO, costs=FREE))
        for strategy in (ORACLE, ADAPTIVE, DELEGATING)
    )
    assert best <= min(others) * (1 + 1e-9)


def test_a_plan_is_kept_where_no_other_is_shorter() -> None:
    planning = Planning(SCENARIO, replace(DELEGATING, delegated=Delegated(base_ms=500.0)))
    slow = np.zeros((3, 2))
    slow[0] = 2.0
    assert planning.plan(slow).runs is planning.healthy.runs
    assert not planning.plan(slow).plan.delegates.any()


def test_delegation_costs_what_its_messages_cost() -> None:
    slow = np.zeros((3, 2))
    slow[0] = 60.0
    free = Planning(SCENARIO, DELEGATING).plan(slow).plan
    dear = (
        Planning(SCENARIO, replace(DELEGATING, delegated=Delegated(base_ms=20.0))).plan(slow).plan
    )
    assert free.delegation_ms == 0
    assert dear.delegation_ms > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace": DelayTrace([0], [[1, 2]], end=9)}, "for 2 links, the pipeline has 3"),
        ({"trace": DelayTrace([0], [[1, 2, 3]])}, "a trace that ends"),
        ({"scenario": SCENARIO.with_delay(5, links=[0])}, "give the scenario no delay"),
        ({"jitter": -0.1}, "at least 0"),
        ({"jitter": float("nan")}, "at least 0"),
        ({"every": 0}, "every send or less often"),
    ],
)
def test_what_is_no_job(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        Job(**{"scenario": SCENARIO, "trace": SLOW, **changes})  # type: ignore[arg-type]


def test_what_adapts_needs_a_detector() -> None:
    with pytest.raises(ScenarioError, match="needs a detector"):
        run_job(Job(SCENARIO, SLOW), ADAPTIVE)
    with pytest.raises(ScenarioError, match="at most once an iteration"):
        run_job(Job(SCENARIO, SLOW), ADAPTIVE, detector=RATIO, replan_every=0)
    with pytest.raises(ScenarioError, match="plan_ms must be a time"):
        Costs(plan_ms=-1)


def test_a_link_that_fails_for_good_ends_the_job() -> None:
    """The oracle too, which tries plans under the failure that it sees coming."""
    trace = DelayTrace([2000], [[0, np.inf, 0]], end=9000)
    healthy = static_ms(ADAPTIVE, [0, 0, 0], replanned=False)
    for strategy in (FIXED, DELEGATING, ADAPTIVE, ORACLE):
        found = ran(strategy, trace)
        assert found[-1].end_ms <= 2000 + healthy
        assert len(found) == pytest.approx(2000 / found[0].duration_ms, abs=1)


def test_only_some_plans_are_kept_and_it_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = [30.0, 0.0, 50.0, 30.0, 70.0, 30.0, 0.0, 50.0]
    trace = DelayTrace(
        range(8, 8 + 4 * len(levels), 4), [[c, 0, 0] for c in levels], by="iteration", end=44
    )
    usual = [one.duration_ms for one in ran(ADAPTIVE, trace)]
    monkeypatch.setattr(strategies, "KEPT", 1)
    assert [one.duration_ms for one in ran(ADAPTIVE, trace)] == usual
    planning = Planning(SCENARIO, ADAPTIVE)
    first = weakref.ref(planning.plan(np.full((3, 2), 30.0)).runs)
    last = planning.plan(np.full((3, 2), 70.0))
    gc.collect()
    assert first() is None
    assert planning.plan(np.full((3, 2), 70.0)) is last


def test_iterations_do_not_hold_what_they_ran() -> None:
    """A job of a large pipeline would take gigabytes."""
    gc.collect()
    before = sum(type(one) is Iterations for one in gc.get_objects())
    kept = ran(ADAPTIVE)
    gc.collect()
    assert sum(type(one) is Iterations for one in gc.get_objects()) == before
    assert len(kept) == 20
