"""What a job knew, beside what was so."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim.adapt.detections import Detections
from pipesim.adapt.loop import Iteration, Job
from pipesim.adapt.outcome import Outcome
from pipesim.adapt.strategy import Planning, Strategy
from pipesim.delays import DelayTrace
from pipesim.scenario import Scenario
from pipesim.transport import Nccl

SCENARIO = Scenario(stages=2, microbatches=2)
STRATEGY = Strategy("zerobubble", "ZeroBubble", "zerobubble", Nccl())
HEALTHY = Planning(SCENARIO, STRATEGY).healthy.plan
PEAKS = np.array([2.0, 1.0])


def job(known: str, delayed: str, each_ms: float = 100.0) -> list[Iteration]:
    """A job whose only link is known to be slow, and delayed downwards, in iterations with a x."""
    both = []
    for index, (knows, delays) in enumerate(zip(known, delayed, strict=True)):
        estimate = np.array([[20.0 * (knows == "x"), 0.0]])
        late = np.array([[delays == "x", False]])
        zero = np.zeros((1, 2))
        both.append(
            Iteration(
                index, index * each_ms, each_ms, each_ms, HEALTHY, False, 0.0, 0.0, 0.0, zero, late,
                estimate, PEAKS,
            )
        )  # fmt: skip
    return both


SLOW = DelayTrace([200, 500], [[[20, 0]], [[0, 0]]], end=1000)


def test_a_delay_is_from_the_onset_to_the_end_of_the_iteration_that_tells() -> None:
    found = Detections.of(SLOW, job("...xx.....", "..xxx....."))
    assert found.delays_ms.tolist() == [200]
    assert (found.mean_ms, found.missed, found.false_alarms) == (200, 0, 0)


def test_an_onset_in_the_middle_of_an_iteration() -> None:
    trace = DelayTrace([250, 500], [[[20, 0]], [[0, 0]]], end=1000)
    assert Detections.of(trace, job("..xxx.....", "..xxx.....")).delays_ms.tolist() == [50]


def test_what_recovers_before_it_is_known_is_missed() -> None:
    found = Detections.of(SLOW, job(".....x....", "..xxx....."))
    assert (found.delays_ms.size, found.missed, found.mean_ms) == (0, 1, None)


def test_what_was_still_known_is_known_at_once() -> None:
    trace = DelayTrace([0, 150, 200], [[[20, 0]], [[0, 0]], [[20, 0]]], end=400)
    found = Detections.of(trace, job("xxxx", "xxxx"))
    assert found.delays_ms.tolist() == [100, 0]


def test_false_alarms_are_of_iterations_without_a_delay() -> None:
    assert Detections.of(SLOW, job("x..xx..x..", "..xxx.....")).false_alarms == 2
    # Delays that injectors adopt late are none.
    assert Detections.of(SLOW, job("...xxxx.x.", "..xxxxx.x.")).false_alarms == 0


def test_onsets_count_by_iteration_too() -> None:
    trace = DelayTrace([2, 5], [[[20, 0]], [[0, 0]]], by="iteration", end=10)
    assert Detections.of(trace, job("...xx.....", "..xxx.....")).delays_ms.tolist() == [200]
    late = DelayTrace([50], [[[20, 0]]], by="iteration", end=90)
    assert Detections.of(late, job("..", "..")).missed == 0


def test_levels_of_the_slowest_link() -> None:
    trace = DelayTrace([200, 400, 600], [[5], [40], [90]], end=1000)
    outcome = Outcome(Job(SCENARIO, trace), STRATEGY, False, job("." * 10, "." * 10))
    shares = [(pace.above_ms, pace.upto_ms, pace.share) for pace in outcome.paces]
    assert shares == [(0, 0, 0.2), (0, 10, 0.2), (10, 30, 0.0), (30, 60, 0.2), (60, np.inf, 0.4)]
    assert outcome.paces[0].per_minute == pytest.approx(600)
    assert np.isnan(outcome.paces[2].per_minute)


def test_pace_and_memory() -> None:
    trace = DelayTrace([], np.zeros((0, 1)), end=1000)
    limited = SCENARIO.replaced(activation_limit=1.5, activation_bytes=100)
    outcome = Outcome(Job(limited, trace), STRATEGY, False, job("." * 10, "." * 10))
    assert outcome.per_minute == pytest.approx(600)
    assert (outcome.quantile_ms(0.5), outcome.elapsed_ms) == (100, 1000)
    assert outcome.host_bytes.tolist() == [50, 0]
    assert outcome.detections is None


def test_a_job_that_stops_is_slow_to_the_end() -> None:
    trace = DelayTrace([300], [[np.inf]], end=60_000)
    outcome = Outcome(Job(SCENARIO, trace), STRATEGY, False, job("...", "..."))
    assert outcome.per_minute == pytest.approx(3)
    nothing = Outcome(Job(SCENARIO, trace), STRATEGY, True, [])
    assert (nothing.per_minute, nothing.detections, nothing.host_bytes.sum()) == (0, None, 0)
    assert np.isnan(nothing.quantile_ms(0.5))
