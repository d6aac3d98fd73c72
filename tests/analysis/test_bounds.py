"""Bounds: by hand, against solved instances, and against everything that runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given

from pipesim import analysis
from pipesim.analysis.bounds import (
    fits_limits,
    grain_ms,
    horizon_bound_ms,
    serial_ms,
    shortest_horizon_ms,
)
from pipesim.analysis.windows import find_windows
from pipesim.engine import simulate
from pipesim.scenario import Scenario
from pipesim.timeline import Timeline
from planners import plan
from tests.strategies import examples, planned, scenarios


def ideal(scenario: Scenario) -> Iterator[tuple[Timeline, bool]]:
    """Every planner's run, and whether it kept within the limits."""
    for schedule in planned(scenario).values():
        timeline = simulate(scenario, schedule, "ideal")
        fits = timeline.peak_activations <= np.asarray(scenario.activation_limit) + 1e-9
        yield timeline, bool(fits.all())


@examples(1 / 6)
@given(scenarios(limited=True))
def test_no_planner_is_below_the_bound(scenario: Scenario) -> None:
    small = scenario.microbatches * scenario.stages <= 24
    limited = horizon_bound_ms(scenario) if small else analysis.lower_bound_ms(scenario)
    free = horizon_bound_ms(scenario, within_limits=False) if small else 0.0
    assert free <= limited * (1 + 1e-9)
    for timeline, fits in ideal(scenario):
        bound = limited if fits else free
        assert bound <= timeline.iteration_ms * (1 + 1e-9)


@examples(1 / 6)
@given(scenarios(limited=True))
def test_windows_hold_every_schedule_within_the_horizon(scenario: Scenario) -> None:
    if scenario.microbatches * scenario.stages > 24:
        return
    for timeline, fits in ideal(scenario):
        split = all(op.kind != "BW" for op in timeline.spans)
        if not fits or not split:
            continue
        windows = find_windows(scenario, timeline.iteration_ms * (1 + 1e-9))
        assert windows is not None
        slack = 1e-6 * (1 + timeline.iteration_ms)
        for (kind, s, m), start, end in timeline.spans.values():
            if kind == "F":
                assert windows.forward_head_ms[s, m] <= start + slack
                assert windows.forward_deadline_ms[s, m] >= end - slack
            if kind == "B":
                assert windows.backward_head_ms[s, m] <= start + slack
                assert windows.backward_deadline_ms[s, m] >= end - slack
        for spans in timeline.compute:
            done = {(kind, s): 0 for kind in "FBW" for s in range(scenario.stages)}
            for (kind, s, m), _, _ in spans:
                for first, then, ranges in (
                    ("B", "F", windows.backwards_before_forward),
                    ("W", "F", windows.weights_before_forward),
                    ("W", "B", windows.weights_before_backward),
                ):
                    if kind == then:
                        fewest, most = ranges[s, m]
                        assert fewest <= done[first, s] <= most
                done[kind, s] += 1


def test_a_limit_of_one_serialises_the_first_stage() -> None:
    # F, two stages down and back up, B, W: 70 ms for each micro-batch.
    scenario = Scenario(stages=3, microbatches=3, activation_limit=[1, math.inf, math.inf])
    assert horizon_bound_ms(scenario) == 210
    assert horizon_bound_ms(scenario, within_limits=False) == 110


@pytest.mark.parametrize(("limit", "bound"), [(4, 480), (5, 440), (6, 410), (8, 410)])
def test_the_bound_sees_the_limit(limit: int, bound: float) -> None:
    """Each is the proven optimum."""
    scenario = Scenario(activation_limit=limit).with_delay(20, links=[1])
    assert horizon_bound_ms(scenario) == bound
    assert analysis.lower_bound_ms(scenario) == 410


def test_an_incumbent_that_cannot_be_improved_is_returned() -> None:
    scenario = Scenario(activation_limit=5).with_delay(20, links=[1])
    assert horizon_bound_ms(scenario, incumbent_ms=440) == 440
    assert horizon_bound_ms(scenario, incumbent_ms=450) == 440
    assert shortest_horizon_ms(scenario, high_ms=440) == (440, 440)


def test_unequal_microbatches_count_with_their_shortest() -> None:
    forward = [[5.0, 10.0], [10.0, 5.0]]
    scenario = Scenario(stages=2, microbatches=2, forward_ms=forward, activation_limit=1)
    best = Scenario(stages=2, microbatches=2, forward_ms=5, activation_limit=1)
    assert horizon_bound_ms(best) <= horizon_bound_ms(scenario)
    assert horizon_bound_ms(scenario) >= analysis.lower_bound_ms(scenario)


def test_a_cheap_fused_backward_lowers_the_bound() -> None:
    scenario = Scenario(stages=2, microbatches=4, fused_backward_ms=12)
    fused = simulate(scenario, plan(scenario, "1f1b"), "ideal").iteration_ms
    assert horizon_bound_ms(scenario) <= fused


def test_two_stages_on_a_device() -> None:
    # See tests/milp/test_milp.py: 170 is the optimum.
    place = Scenario.place("v", devices=2, chunks=2)
    limited = Scenario(stages=4, microbatches=2, placement=place, activation_limit=2)
    assert analysis.lower_bound_ms(limited) < horizon_bound_ms(limited) <= 170


@pytest.mark.parametrize("scenario", [Scenario(stages=1, microbatches=1), Scenario(stages=1)])
def test_one_stage(scenario: Scenario) -> None:
    assert horizon_bound_ms(scenario) == serial_ms(scenario) == 30 * scenario.microbatches


def test_nothing_takes_no_time() -> None:
    assert horizon_bound_ms(Scenario(forward_ms=0, backward_ms=0, weight_ms=0)) == 0


def test_a_limit_below_one_microbatch_has_no_schedule() -> None:
    scenario = Scenario(activation_limit=0.5)
    assert not fits_limits(scenario)
    assert horizon_bound_ms(scenario) == math.inf


def test_large_scenarios_get_the_simple_bound() -> None:
    scenario = Scenario(stages=64, microbatches=512, activation_limit=64)
    assert horizon_bound_ms(scenario) == analysis.lower_bound_ms(scenario)


def test_times_without_a_grain() -> None:
    assert grain_ms(Scenario(forward_ms=math.pi)) == 0
    scenario = Scenario(forward_ms=math.pi, activation_limit=4).with_delay(20 / 7, links=[1])
    bound = horizon_bound_ms(scenario)
    assert find_windows(scenario, bound * (1 - 1e-5)) is None
    assert find_windows(scenario, bound * (1 + 1e-5)) is not None
