"""Labelled series: what is measured is the truth, but for the noise."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim.adapt.series import CASES, synthetic, traced
from pipesim.delays import DelayTrace
from pipesim.errors import ScenarioError


@pytest.mark.parametrize("case", CASES)
def test_without_noise_the_truth_is_measured(case: str) -> None:
    one, other = synthetic(case, jitter=0, trials=2, base_ms=4)
    assert (one.delay_ms == other.delay_ms).all()
    assert (one.delay_ms[:50] == 0).all()
    assert (one.delay_ms[-50:] == 0).all()
    base = one.measured_ms - one.delay_ms
    if case == "no base":
        assert (base == 0).all()
    elif case == "drift":
        assert base.min() == 4
        assert base.max() == 6
    elif case == "outliers":
        assert set(base) == {4.0, 12.0}
    else:
        assert base == pytest.approx(4)


def test_a_step_is_to_so_many_times_the_base() -> None:
    (one,) = synthetic("step to 5×", jitter=0, trials=1)
    assert (one.measured_ms[50:100] == 50).all()


def test_noise_has_a_seed_and_the_jitter_that_was_asked_for() -> None:
    (one,), (same,) = (list(synthetic("healthy hour", trials=1, seed=7)) for _ in range(2))
    (other,) = synthetic("healthy hour", trials=1, seed=8)
    assert (one.measured_ms == same.measured_ms).all()
    assert (one.measured_ms != other.measured_ms).any()
    assert np.log(one.measured_ms).std() == pytest.approx(0.05, rel=0.05)


def test_a_trace_by_iteration_labels_its_iterations() -> None:
    trace = DelayTrace([2, 4], [[[20, 5]], [[0, 0]]], by="iteration", end=6)
    down, up = traced(trace, jitter=0)
    assert down.delay_ms.tolist() == [0, 0, 20, 20, 0, 0]
    assert up.measured_ms.tolist() == [10, 10, 15, 15, 10, 10]


def test_a_trace_over_time_is_looked_at_once_an_iteration() -> None:
    trace = DelayTrace([150, 350], [[20], [0]])
    down, _ = traced(trace, iteration_ms=100, jitter=0, base_ms=0)
    assert down.measured_ms.tolist() == [0, 0, 20, 20] + [0] * 10


def test_what_is_sent_over_a_failed_link_waits_for_its_recovery() -> None:
    trace = DelayTrace([100, 200, 350], [[np.inf], [np.inf], [7]], end=500)
    down, _ = traced(trace, iteration_ms=100, jitter=0)
    assert down.delay_ms.tolist() == [0, 257, 157, 57, 7]
    assert down.measured_ms.tolist() == [10, 267, 167, 67, 17]
    lost, _ = traced(DelayTrace([100], [[np.inf]], end=300), iteration_ms=100, jitter=0)
    assert np.isnan(lost.measured_ms).tolist() == [False, True, True]


def test_an_iteration_takes_time() -> None:
    with pytest.raises(ScenarioError, match="iteration_ms must be over 0"):
        next(traced(DelayTrace([100], [[1]]), iteration_ms=0))
