"""What stands around the pipelines, by hand: each path of the graph once as the longest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipesim.fidelity.jobs.job import Job, Times, job_of
from pipesim.fidelity.jobs.whole_step import (
    Durations,
    measured_durations,
    measured_steps_ms,
    pipeline_ends_ms,
    steps_ms,
)
from pipesim.formats.production import read_production
from pipesim.scenario import Scenario
from tests.formats.production_traces import AROUND_MS, job, surrounded

DEVICES, WORKERS = 2, 2


@pytest.fixture
def chunked(tmp_path: Path) -> Job:
    """Two devices with two stages each, one micro-batch: F 10, BW 20 ms, messages 1 ms.

    Forwards end at 10, 21, 32 and 43 ms, backwards of stages 3, 2, 1 and 0 at 63, 84, 105 and 126.
    """
    scenario = Scenario(
        stages=2 * DEVICES, microbatches=1, placement=(0, 1, 0, 1),
        forward_ms=10, fused_backward_ms=20, latency_ms=1,
    )  # fmt: skip
    frame = job(lambda t, w: scenario, steps=[0], dp_ranks=WORKERS, planner="gpipe")
    frame.to_parquet(tmp_path / "t.parquet")
    return job_of(read_production(tmp_path / "t.parquet"))[0]


def step_ms(job: Job, **outside: object) -> float:
    """The step with some times around it: [operation] or [device, operation] or with workers."""
    around = {
        name.replace("_", "-"): np.broadcast_to(
            np.asarray(own, dtype=float), (1, WORKERS, DEVICES, np.shape(own)[-1])
        )
        for name, own in outside.items()
    }
    durations = Durations(job.times, around)
    (result,) = steps_ms(job, around, pipeline_ends_ms(job, durations))
    return float(result)


def test_ends_of_stages(chunked: Job) -> None:
    ends = pipeline_ends_ms(chunked, Durations(chunked.times, {}))
    assert ends == pytest.approx(np.broadcast_to([126, 105, 84, 63], (1, WORKERS, 4)))
    assert step_ms(chunked) == pytest.approx(126)


def test_workers_whose_messages_alone_differ(chunked: Job) -> None:
    messages = chunked.times.messages_ms.copy()
    messages[:, 1] += 5
    operators = chunked.times.operators_ms.round(6)
    durations = Durations(Times(operators, messages), {})
    ends = pipeline_ends_ms(chunked, durations)[0, :, 0]
    assert ends == pytest.approx([126, 126 + 6 * 5])
    second = np.array([1])
    assert pipeline_ends_ms(chunked, durations.of(second), second)[0, :, 0] == ends[1]


def test_workers_whose_orders_differ(tmp_path: Path) -> None:
    scenario = Scenario(stages=3, microbatches=4, latency_ms=4)
    first = job(lambda t, w: scenario, steps=[0], dp_ranks=1, planner="gpipe")
    second = job(lambda t, w: scenario, steps=[0], dp_ranks=1).assign(dp_rank=1)
    pd.concat([first, second]).to_parquet(tmp_path / "t.parquet")
    whole, _ = job_of(read_production(tmp_path / "t.parquet"))
    durations = Durations(whole.times, {})
    gpipe, one_f_one_b = whole.measured_ms[0]
    assert gpipe < one_f_one_b
    both = pipeline_ends_ms(whole, durations)
    assert both[0].max(axis=1) == pytest.approx([gpipe, one_f_one_b])
    last = np.array([1])
    assert (pipeline_ends_ms(whole, durations.of(last), last) == both[:, last]).all()


def test_inside_a_device_nothing_is_sent(tmp_path: Path) -> None:
    """Two stages on the last device: no message between them is known, and none is taken to be."""
    scenario = Scenario(stages=4, microbatches=3, placement=(0, 1, 1, 0), latency_ms=[4, 0, 4])
    frame = job(lambda t, w: scenario, steps=[0], dp_ranks=1, planner="gpipe")
    frame.to_parquet(tmp_path / "t.parquet")
    whole, _ = job_of(read_production(tmp_path / "t.parquet"))
    assert whole.times.messages_ms[0, 0, 0] == pytest.approx(4)
    ends = pipeline_ends_ms(whole, Durations(whole.times, {}))
    assert ends.max() == pytest.approx(whole.measured_ms[0, 0])


@pytest.mark.parametrize(
    ("gathered", "begins"),
    [
        ([[5], [5]], 5),
        ([[5], [14]], 5),  # hidden: the first activations come at 11 ms
        ([[5], [18]], 7),
        ([[5, 15], [0, 0]], 5),  # the second chunk's are there at 20, its activations at 22
        ([[5, 22], [0, 0]], 5),
        ([[5, 30], [0, 0]], 13),
        ([[0, 0], [9, 30]], 6),
        ([[3, 3, 3, 3], [0] * 4], 6),  # two for each chunk
        ([[3, 3, 3, 40], [0] * 4], 27),
    ],
)
def test_gathers_that_the_first_forwards_wait_for(
    chunked: Job, gathered: list[list[float]], begins: float
) -> None:
    assert step_ms(chunked, params_all_gather=gathered) == pytest.approx(126 + begins)


def test_reductions_after_the_pipeline(chunked: Job) -> None:
    assert step_ms(chunked, grads_reduce_scatter=[[3, 4], [0, 0]]) == pytest.approx(126 + 7)
    # Device 1 is done at 105 ms, and waits for nothing before the clipping.
    assert step_ms(chunked, grads_reduce_scatter=[[3], [20]]) == pytest.approx(129)
    assert step_ms(chunked, grads_reduce_scatter=[[3], [40]]) == pytest.approx(145)
    both = {"grads_reduce_scatter": [[3], [40]], "optimizer_clip_main_grad": [[5], [0]]}
    assert step_ms(chunked, **both) == pytest.approx(150)
    assert step_ms(chunked, gc=[2], layernorm_grads_all_reduce=[1]) == pytest.approx(129)
    # The devices with the first and the last stage reduce the embeddings together.
    assert step_ms(chunked, embedding_grads_all_reduce=[[1], [30]]) == pytest.approx(156)


def test_workers_wait_for_each_other(chunked: Job) -> None:
    """The longest time of the first counts, and then the longest of the second."""
    reduced = [[[3, 8], [0, 0]], [[9, 2], [0, 0]]]
    assert step_ms(chunked, grads_reduce_scatter=reduced) == pytest.approx(126 + 17)


@pytest.mark.parametrize(
    ("reduced", "gc", "ends"),
    [
        ([[10, 10], [0, 0]], 0, 136),  # stage 2's at 84 to 94 ms, stage 0's from 126 ms on
        ([[60, 10], [0, 0]], 0, 154),  # from 84 to 144, then stage 0's
        ([[0, 0], [10, 10]], 0, 126),
        ([[0, 0], [70, 10]], 0, 143),  # from 63 to 133, then stage 1's
        ([[0, 0], [0, 30]], 0, 135),  # stage 1's from 105 ms on
        ([[10, 10], [0, 0]], 25, 151),  # memory is freed meanwhile
    ],
)
def test_reductions_beside_the_pipeline(
    chunked: Job, reduced: list[list[float]], gc: float, ends: float
) -> None:
    step = step_ms(chunked, grads_reduce_scatter=reduced, gc=[gc], separate_grads_all_reduce=[2])
    assert step == pytest.approx(ends + 2)


def test_what_is_missing_in_some_steps_takes_its_usual_time(tmp_path: Path) -> None:
    frame = surrounded(job(lambda t, w: Scenario(stages=2, microbatches=2), steps=range(5)))
    frame = frame[~((frame.optype == "optimizer") & (frame.step == 3))]
    frame.to_parquet(tmp_path / "t.parquet")
    trace = read_production(tmp_path / "t.parquet")
    whole, _ = job_of(trace)
    durations = measured_durations(trace, whole)
    assert durations.outside["optimizer"] == pytest.approx(
        np.full((5, 2, 2, 1), AROUND_MS["optimizer"])
    )
    steps = steps_ms(whole, durations.outside, pipeline_ends_ms(whole, durations))
    measured = measured_steps_ms(trace, whole)
    assert np.ptp(steps) < 1e-6
    assert steps - measured == pytest.approx([0, 0, 0, AROUND_MS["optimizer"], 0], abs=1e-6)


def test_what_is_only_in_steps_that_are_left_out(tmp_path: Path) -> None:
    frame = surrounded(job(lambda t, w: Scenario(stages=2, microbatches=2), steps=range(3)))
    frame = frame[(frame.optype != "optimizer") | (frame.step == 2)]
    lost = (frame.step == 2) & (frame.dp_rank == 1) & (frame.optype == "forward-compute")
    frame[~lost].to_parquet(tmp_path / "t.parquet")
    trace = read_production(tmp_path / "t.parquet")
    whole, _ = job_of(trace)
    assert whole.steps == (0, 1)
    assert "optimizer" not in measured_durations(trace, whole).outside
