"""The planner of the published runs has the orders that the published runs ran."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.analysis import warmup
from pipesim.formats.operator_timeline import import_timelines
from planners.pipemorph_artifact import artifact_warmup
from tests import ROOT

TIMELINES = ROOT / "traces" / "a10_timelines"

# The profile that a run planned with is not published. These are within 5 ms of the means of
# the healthy iterations, and give the measured orders on all four stages.
PROFILES = {
    60: ([29, 35, 39, 34], [34, 47, 44, 39], [18, 23, 28, 19]),
    120: ([25, 38, 36, 35], [31, 46, 48, 38], [15, 23, 23, 27]),
}
WARMUPS = {60: [9, 7, 5, 1], 120: [11, 9, 9, 1]}


@pytest.mark.parametrize("delay", [60, 120])
def test_it_plans_the_order_that_the_timelines_show(delay: int) -> None:
    timelines = import_timelines([TIMELINES / f"pipemorph_link2_{delay}ms.csv"])
    measured = next(one.timeline for one in timelines.iterations if not one.used)
    forward, backward, weight = PROFILES[delay]
    for times, kind in zip((forward, backward, weight), ("F", "B", "W"), strict=True):
        means = timelines.scenario.durations_ms(kind).mean(axis=1)
        assert np.abs(means - times).max() < 5
    scenario = Scenario(forward_ms=forward, backward_ms=backward, weight_ms=weight)
    schedule = plan(scenario.with_delay(delay, [2]), "pipemorph-artifact")
    for planned, ran in zip(schedule.orders, measured.compute, strict=True):
        assert list(planned) == [span.op for span in ran]
    assert list(warmup(schedule)) == WARMUPS[delay]


def test_warm_ups_count_delays_in_forwards() -> None:
    schedule = plan(Scenario(stages=3, microbatches=30).with_delay(21, [1]), "pipemorph-artifact")
    assert schedule.assumed.warmup == (8, 6, 1)
    assert list(warmup(schedule)) == [8, 6, 1]


def test_no_warm_up_is_longer_than_the_iteration() -> None:
    schedule = plan(Scenario(microbatches=6).with_delay(100, [0, 1, 2]), "pipemorph-artifact")
    assert schedule.assumed.warmup == (6, 6, 6, 1)


def test_it_plans_in_whole_milliseconds() -> None:
    scenario = Scenario(forward_ms=9.8, backward_ms=10.3, weight_ms=10.49).with_delay(19.2, [0])
    rounded = Scenario().with_delay(20, [0])
    assert plan(scenario, "pipemorph-artifact").orders == plan(rounded, "pipemorph-artifact").orders


@st.composite
def in_whole_ms(draw: st.DrawFn) -> Scenario:
    stages = draw(st.integers(1, 5))
    times = st.lists(st.integers(1, 15), min_size=stages, max_size=stages)
    scenario = Scenario(
        stages=stages,
        microbatches=draw(st.integers(1, 14)),
        forward_ms=draw(times),
        backward_ms=draw(times),
        weight_ms=draw(times),
    )
    for link in range(stages - 1):
        scenario = scenario.with_delay(draw(st.sampled_from([0, 3, 10, 30, 60])), [link])
    return scenario


def by_the_clock(scenario: Scenario) -> list[list[str]]:
    """Plan with a clock that looks at every stage in every millisecond."""
    n, last = scenario.microbatches, scenario.stages - 1
    least, delays = artifact_warmup(scenario), scenario.delay_ms[:, 0]
    lasts = {kind: scenario.durations_ms(kind)[:, 0] for kind in "FBW"}
    orders: list[list[str]] = [[] for _ in least]
    ends: dict[str, list[list[float]]] = {kind: [[] for _ in least] for kind in "FBW"}
    more, free, now = [False] * len(least), [0.0] * len(least), 0.0
    while any(len(order) < 3 * n for order in orders):
        for s in range(len(least)):
            ran = {kind: len(ends[kind][s]) for kind in "FBW"}
            forwards = [end + delays[s - 1] for end in ends["F"][s - 1]] if s else [0.0] * n
            left = ends["B"][s + 1] if s < last else ends["F"][s]
            gradients = [end + (delays[s] if s < last else 0) for end in left]
            there = {"F": forwards, "B": gradients, "W": ends["B"][s]}
            warm = ran["F"] >= least[s]
            can = [
                kind
                for kind in ("BFW" if warm else "F")
                if ran[kind] < len(there[kind]) and there[kind][ran[kind]] <= now
            ]
            if free[s] > now:
                continue
            if warm and not can and left and left[0] <= now:
                more[s] = True  # its first gradient is under way, and it has nothing to run
            if can and (can[0] != "F" or not warm or ran["B"] or more[s]):
                kind = can[0]
                orders[s].append(f"{s}{kind}{ran[kind]}")
                free[s] = now + lasts[kind][s]
                ends[kind][s].append(free[s])
        now += 1
    return orders


# Here stage 1 has run its warm-up, and waits, when the first gradient leaves stage 2.
WAITING = Scenario(
    stages=3,
    microbatches=14,
    forward_ms=[8, 5, 10],
    backward_ms=[10, 9, 14],
    weight_ms=[5, 8, 10],
    latency_ms=[30, 10],
)


@given(in_whole_ms())
@example(WAITING)
def test_it_plans_as_a_clock_does(scenario: Scenario) -> None:
    schedule = plan(scenario, "pipemorph-artifact")
    assert [list(map(str, order)) for order in schedule.orders] == by_the_clock(scenario)


def test_a_stage_that_waits_for_its_first_gradient_runs_more_forwards() -> None:
    schedule = plan(WAITING, "pipemorph-artifact")
    assert schedule.assumed.warmup == (11, 5, 1)
    assert list(warmup(schedule)) == [11, 7, 1]
