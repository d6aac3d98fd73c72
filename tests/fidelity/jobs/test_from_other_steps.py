from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipesim.engine import simulate
from pipesim.fidelity.jobs.from_other_steps import (
    FromOtherSteps,
    from_other_steps,
    medians_of_others,
)
from pipesim.fidelity.jobs.job import job_of
from pipesim.formats.production import read_production
from pipesim.scenario import Scenario
from planners import plan
from tests.formats.production_traces import SHIPPED, job

STAGES, MICROBATCHES = 3, 4


def pipeline(factor: object = 1.0, message_ms: object = 0.5) -> Scenario:
    times = np.broadcast_to(factor, (STAGES, MICROBATCHES))
    return Scenario(
        stages=STAGES, microbatches=MICROBATCHES,
        forward_ms=10 * times, fused_backward_ms=20 * times, latency_ms=message_ms,
    )  # fmt: skip


def step_ms(scenario: Scenario) -> float:
    return simulate(scenario, plan(scenario, "1f1b")).iteration_ms


@pytest.fixture
def predicted(tmp_path: Path) -> Callable[[pd.DataFrame], FromOtherSteps | None]:
    def predict(frame: pd.DataFrame) -> FromOtherSteps | None:
        frame.to_parquet(tmp_path / "job.parquet")
        return from_other_steps(job_of(read_production(tmp_path / "job.parquet"))[0])

    return predict


Predicted = Callable[[pd.DataFrame], FromOtherSteps]


@given(arrays(float, st.tuples(st.integers(2, 8), st.integers(1, 3)), elements=st.integers(0, 5)))
def test_medians_of_others(values: np.ndarray) -> None:
    expected = [np.median(np.delete(values, i, axis=0), axis=0) for i in range(len(values))]
    np.testing.assert_allclose(medians_of_others(values), expected)


def test_steps_that_are_alike(predicted: Predicted) -> None:
    found = predicted(job(lambda t, w: pipeline()))
    assert (found.mape, found.naive_mape) == pytest.approx((0, 0))
    document = found.as_dict()
    assert json.loads(json.dumps(document)) == document
    assert [row["step"] for row in document["rows"]] == [0, 1, 2, 3]  # type: ignore[attr-defined]


def test_nothing_of_a_step_enters_its_own_prediction(predicted: Predicted) -> None:
    chance = np.random.default_rng(4)
    times = chance.uniform(0.5, 2, (5, 2, STAGES, MICROBATCHES))
    before = predicted(job(lambda t, w: pipeline(times[t, w]), steps=range(5)))
    times[3] = chance.uniform(4, 9, times[3].shape)
    after = predicted(job(lambda t, w: pipeline(times[t, w], 0.5 if t != 3 else 9), steps=range(5)))
    assert after.predicted_ms[3] == pytest.approx(before.predicted_ms[3])
    assert after.naive_ms[3] == pytest.approx(before.naive_ms[3])
    assert after.measured_ms[3] > 2 * before.measured_ms[3]
    others = np.arange(5) != 3
    assert (after.predicted_ms[others] > before.predicted_ms[others]).any()


def test_every_operator_takes_its_median_of_the_other_steps(predicted: Predicted) -> None:
    chance = np.random.default_rng(4)
    times = chance.uniform(0.5, 2, (4, STAGES, MICROBATCHES))
    found = predicted(job(lambda t, w: pipeline(times[t]), dp_ranks=1))
    expected = [step_ms(pipeline(np.median(np.delete(times, t, axis=0), axis=0))) for t in range(4)]
    assert found.predicted_ms == pytest.approx(expected)
    assert found.measured_ms == pytest.approx([step_ms(pipeline(own)) for own in times])


def test_pauses_that_move_about_are_in_no_median(predicted: Predicted) -> None:
    """Each step pauses somewhere else: the simulation leaves all of it out, the steps' median
    has it, and is better."""

    def pausing(step: int, dp_rank: int) -> Scenario:
        factors = np.ones((STAGES, MICROBATCHES))
        factors[step % STAGES, step % MICROBATCHES] = 5
        return pipeline(factors)

    found = predicted(job(pausing, steps=range(12), dp_ranks=1))
    assert found.predicted_ms == pytest.approx(step_ms(pipeline()))
    assert found.naive_mape < found.mape


def test_the_order_is_that_of_most_other_steps(predicted: Predicted) -> None:
    odd = job(lambda t, w: pipeline(), steps=[2], dp_ranks=1, planner="gpipe")
    found = predicted(pd.concat([job(lambda t, w: pipeline(), steps=[0, 1], dp_ranks=1), odd]))
    assert found.predicted_ms == pytest.approx(step_ms(pipeline()))


def test_its_own_order_does_not_count(predicted: Predicted) -> None:
    """Two steps of one order and two of the other: each is predicted with the one it lacks."""
    frame = pd.concat(
        [
            job(lambda t, w: pipeline(message_ms=4), steps=steps, dp_ranks=1, planner=planner)
            for planner, steps in (("1f1b", [0, 1]), ("gpipe", [2, 3]))
        ]
    )
    found = predicted(frame)
    assert found.measured_ms[0] > found.measured_ms[2]
    assert found.predicted_ms == pytest.approx(found.measured_ms[[2, 2, 0, 0]])


def test_one_step_has_no_others(predicted: Predicted) -> None:
    assert predicted(job(lambda t, w: pipeline(), steps=[0])) is None


def test_the_shipped_job() -> None:
    """Its steps stray by 1.5 %, and both predictions are about as far off: neither is said to be
    better here, as the difference is less than what another step would change."""
    found = from_other_steps(job_of(read_production(SHIPPED))[0])
    assert found is not None
    assert found.mape < 0.015
    assert found.naive_mape < 0.015
    assert abs(found.mape - found.naive_mape) < 0.002
