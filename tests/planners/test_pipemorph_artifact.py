"""The planner of the published runs has the orders that the published runs ran."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim import Scenario, plan
from pipesim.analysis import warmup
from pipesim.formats.operator_timeline import import_timelines
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
