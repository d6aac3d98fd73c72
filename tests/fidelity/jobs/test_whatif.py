"""What stragglers cost a job, against what made the job and against a graph of all operations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.engine import simulate
from pipesim.fidelity.jobs.healing import KINDS, Healing, mixed
from pipesim.fidelity.jobs.job import Times, job_of
from pipesim.fidelity.jobs.whatif import WhatIf, what_if
from pipesim.fidelity.jobs.whole_step import (
    Durations,
    measured_durations,
    pipeline_ends_ms,
    steps_ms,
)
from pipesim.formats.production import read_production
from pipesim.scenario import Scenario
from planners import plan
from tests.fidelity.jobs.operation_graph import Graph
from tests.formats.production_traces import AROUND_MS, SHIPPED, job, surrounded
from tests.strategies import examples

STAGES, MICROBATCHES, WORKERS = 4, 6, 3
PUBLISHED = 1.179
"""The slowdown of the shipped job, as it was published."""


def pipeline(factor: object = 1.0, message_ms: object = 0.5, *, chunks: int = 1) -> Scenario:
    stages = STAGES * chunks
    times = np.broadcast_to(factor, (stages, MICROBATCHES + 2 * (chunks - 1)))
    return Scenario(
        stages=stages, microbatches=times.shape[1],
        placement=tuple(s % STAGES for s in range(stages)),
        forward_ms=10 * times, fused_backward_ms=20 * times, latency_ms=message_ms,
    )  # fmt: skip


def at(stage: int, factor: float) -> np.ndarray:
    return np.where(np.arange(STAGES) == stage, factor, 1.0)[:, None]


def step_ms(scenario: Scenario) -> float:
    return simulate(scenario, plan(scenario, "1f1b")).iteration_ms


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[pd.DataFrame], WhatIf]:
    def ask(frame: pd.DataFrame) -> WhatIf:
        frame.to_parquet(tmp_path / "job.parquet", index=False)
        trace = read_production(tmp_path / "job.parquet")
        found = what_if(trace, job_of(trace)[0])
        assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
        # The engine made the job, and waits are all that stands between its operations.
        assert found.step_ms == pytest.approx(found.measured_ms, rel=1e-9)
        return found

    return ask


Asked = Callable[[pd.DataFrame], WhatIf]


def test_the_published_slowdown() -> None:
    """Three digits were published. The graph of all operations gives them; with one time for the
    messages of a link and step, and receives that are posted early, 0.0007 more come out."""
    trace = read_production(SHIPPED)
    found = what_if(trace, job_of(trace)[0])
    graph = Graph(SHIPPED)
    assert graph.slowdown() == pytest.approx(PUBLISHED, abs=0.0005)
    assert found.slowdown == pytest.approx(PUBLISHED, abs=0.001)
    assert found.step_ms == pytest.approx(graph.step_ms(graph.durations).mean(), rel=5e-4)
    assert found.ideal_ms == pytest.approx(graph.step_ms(graph.ideal()).mean(), rel=5e-4)
    assert found.measured_ms == pytest.approx(2214.4, abs=0.1)
    assert int(np.argmax(found.healed_stages)) == 3
    assert found.healed_ranks.max() < 0.05  # it is no single rank
    assert found.healed_kinds["messages"] < 0.01


def test_a_job_in_which_nothing_is_slow(asked: Asked) -> None:
    found = asked(surrounded(job(lambda t, w: pipeline(), dp_ranks=WORKERS)))
    assert found.slowdown == pytest.approx(1)
    assert not found.attributed
    assert not found.healed_ranks.any()
    assert not found.healed_stages.any()
    assert set(found.healed_kinds.values()) == {0}
    around = sum(AROUND_MS.values())
    assert found.step_ms == pytest.approx(step_ms(pipeline()) + around)


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_slow_rank(asked: Asked, stage: int) -> None:
    """Its operators take 3 times as long; the ideal ones take the mean of all."""
    found = asked(job(lambda t, w: pipeline(at(stage, 3) if w == 1 else 1), dp_ranks=WORKERS))
    mean = 1 + 2 / (STAGES * WORKERS)
    slow, ideal = step_ms(pipeline(at(stage, 3))), step_ms(pipeline(mean))
    assert found.slowdown == pytest.approx(slow / ideal)
    healed = step_ms(pipeline(at(stage, mean)))
    assert found.healed_ranks[stage, 1] == pytest.approx((slow - healed) / (slow - ideal))
    assert np.argmax(found.healed_ranks) == stage * WORKERS + 1
    others = np.delete(found.healed_ranks, stage * WORKERS + 1)
    assert others.max() <= 1e-9  # they are faster than the mean, and their worker waits for none
    assert found.alone_stages[stage] == pytest.approx(
        step_ms(pipeline(at(stage, 3 / mean) * mean)) / ideal
    )
    assert found.alone_workers[1] == pytest.approx(slow / ideal)
    assert found.slowest == ((stage, 1),)
    assert found.healed_slowest == found.healed_ranks[stage, 1]


def test_a_slow_worker(asked: Asked) -> None:
    found = asked(job(lambda t, w: pipeline(2 if w == 2 else 1), dp_ranks=WORKERS))
    assert found.slowdown == pytest.approx(step_ms(pipeline(2)) / step_ms(pipeline(4 / 3)))
    assert found.healed_workers == pytest.approx([0, 0, 1])
    assert found.alone_workers[:2] == pytest.approx(1)


def test_a_slow_stage(asked: Asked) -> None:
    found = asked(job(lambda t, w: pipeline(at(2, 2)), dp_ranks=WORKERS))
    ideal = step_ms(pipeline(5 / 4))
    assert found.slowdown == pytest.approx(step_ms(pipeline(at(2, 2))) / ideal)
    assert np.argmax(found.healed_stages) == 2
    assert np.argmax(found.alone_stages) == 2
    assert found.healed_workers == pytest.approx(0)  # the others still have it


@pytest.mark.parametrize(("way", "device"), [(0, 2), (1, 1)])
def test_a_slow_link_belongs_to_who_receives(asked: Asked, way: int, device: int) -> None:
    message_ms = np.full((STAGES - 1, 2), 0.5)
    message_ms[1, way] = 40
    found = asked(job(lambda t, w: pipeline(1, message_ms if w == 0 else 0.5), dp_ranks=WORKERS))
    assert found.slowdown == pytest.approx(step_ms(pipeline(1, message_ms)) / step_ms(pipeline()))
    expected = np.zeros((STAGES, WORKERS))
    expected[device, 0] = 1
    assert found.healed_ranks == pytest.approx(expected)
    assert found.healed_kinds == pytest.approx(dict.fromkeys(KINDS, 0) | {"messages": 1})


def test_a_slow_reduction_outside_the_pipeline(asked: Asked) -> None:
    def took(name: str, dp_rank: int, device: int) -> float:
        slow = name == "grads-reduce-scatter" and (dp_rank, device) == (1, 0)
        return AROUND_MS[name] + 30 * slow

    found = asked(surrounded(job(lambda t, w: pipeline(), dp_ranks=WORKERS), took))
    healthy = step_ms(pipeline()) + sum(AROUND_MS.values())
    assert found.slowdown == pytest.approx((healthy + 30) / healthy)
    assert found.healed_ranks[0, 1] == pytest.approx(1)
    assert found.healed_kinds == pytest.approx(dict.fromkeys(KINDS, 0) | {"outside": 1})


@examples(0.3)
@given(st.data())
def test_as_a_graph_of_all_operations_has_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Without message times, when a receive is posted does not matter: both agree exactly."""
    chunks = data.draw(st.sampled_from([1, 1, 2]))
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def scenario(step: int, dp_rank: int) -> Scenario:
        shape = STAGES * chunks, MICROBATCHES + 2 * (chunks - 1)
        slow = 1 + 2 * (chance.random((shape[0], 1)) < 0.2)
        return pipeline(slow * chance.uniform(0.8, 1.2, shape), 0, chunks=chunks)

    frame = job(scenario, dp_ranks=WORKERS, planner="1f1b" if chunks == 1 else "interleaved-1f1b")
    if data.draw(st.booleans()):
        factors = chance.uniform(0.2, 5, (len(AROUND_MS), WORKERS, STAGES))
        factors[0] = 1  # all pipelines of a job begin at once
        names = list(AROUND_MS)
        frame = surrounded(
            frame, lambda name, w, d: AROUND_MS[name] * factors[names.index(name), w, d]
        )
    path = tmp_path_factory.mktemp("job") / "job.parquet"
    frame.to_parquet(path)
    trace, graph = read_production(path), Graph(path)
    found = what_if(trace, job_of(trace)[0])
    assert found.step_ms == pytest.approx(graph.step_ms(graph.durations).mean(), rel=1e-6)
    assert found.ideal_ms == pytest.approx(graph.step_ms(graph.ideal()).mean(), rel=1e-6)


def test_reductions_beside_the_pipeline(tmp_path: Path) -> None:
    """Two chunks a device: the gradients of the second are reduced while the first still runs."""
    chance = np.random.default_rng(5)
    frame = surrounded(
        job(
            lambda t, w: pipeline(chance.uniform(0.5, 2, (2 * STAGES, 1)), 0, chunks=2),
            dp_ranks=2,
            planner="interleaved-1f1b",
        )
    )
    frame = frame[frame.optype != "grads-reduce-scatter"]
    last = frame[frame.optype == "gc"]
    overlapped = [
        last.assign(optype="grads-reduce-scatter", duration=(60 + 25 * number) / 1e3, seq_id=number,
                    start_ts=last.start_ts + 0.06 * number)
        for number in range(2)
    ]  # fmt: skip
    for one in overlapped:  # they begin together, and take the time that they are logged with
        one["start_ts"] = one["start_ts"].max()
    overlapped[1]["start_ts"] += 0.001
    separate = last.assign(
        optype="separate-grads-all-reduce", start_ts=last.start_ts.max() + 0.2, duration=0.005
    )
    path = tmp_path / "job.parquet"
    pd.concat([frame, *overlapped, separate]).to_parquet(path)
    trace, graph = read_production(path), Graph(path)
    durations = measured_durations(trace, job_of(trace)[0])
    assert durations.outside["grads-reduce-scatter"].shape[-1] == 2
    found = what_if(trace, job_of(trace)[0])
    assert found.step_ms == pytest.approx(graph.step_ms(graph.durations).mean(), rel=1e-6)
    assert found.ideal_ms == pytest.approx(graph.step_ms(graph.ideal()).mean(), rel=1e-6)


@pytest.mark.parametrize(("chunks", "within"), [(1, 0.003), (2, 0.006)])
def test_early_receives_change_little(tmp_path: Path, chunks: int, within: float) -> None:
    """Messages take 5 % of a forward; the published graph posts a receive after the operator
    before."""
    chance = np.random.default_rng(5)

    def scenario(step: int, dp_rank: int) -> Scenario:
        own = chance.uniform(0.9, 1.1, (STAGES * chunks, MICROBATCHES + 2 * (chunks - 1)))
        own[1] *= 1 + (dp_rank == 1)
        return pipeline(own, chunks=chunks)

    frame = job(scenario, dp_ranks=2, planner="1f1b" if chunks == 1 else "interleaved-1f1b")
    frame.to_parquet(tmp_path / "job.parquet")
    trace = read_production(tmp_path / "job.parquet")
    found = what_if(trace, job_of(trace)[0])
    assert found.slowdown == pytest.approx(Graph(tmp_path / "job.parquet").slowdown(), rel=within)


@examples(0.5)
@given(st.data())
def test_healing_never_lengthens_a_step_where_times_only_shrink(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    slow = chance.choice([1, 1, 1.5, 3], (WORKERS, STAGES, 1))
    names = list(AROUND_MS)
    factors = chance.uniform(0.2, 5, (len(names), WORKERS, STAGES))
    frame = surrounded(
        job(lambda t, w: pipeline(slow[w]), steps=[0, 1], dp_ranks=WORKERS),
        lambda name, w, d: AROUND_MS[name] * factors[names.index(name), w, d],
    )
    path = tmp_path_factory.mktemp("job") / "job.parquet"
    frame.to_parquet(path)
    trace = read_production(path)
    whole, _ = job_of(trace)
    healing = Healing(whole, measured_durations(trace, whole))
    before, ideal = healing.measured, healing.ideal
    shorter = Durations(
        Times(
            np.minimum(before.times.operators_ms, ideal.times.operators_ms),
            np.minimum(before.times.messages_ms, ideal.times.messages_ms),
        ),
        {name: np.fmin(own, ideal.outside[name]) for name, own in before.outside.items()},
    )
    few = chance.random((STAGES, WORKERS)) < 0.3
    more = few | (chance.random((STAGES, WORKERS)) < 0.3)
    kind = data.draw(st.sampled_from([None, *KINDS]))

    def steps(cells: np.ndarray) -> np.ndarray:
        part = mixed(before, shorter, cells, healing.placement, kind)
        return steps_ms(whole, part.outside, pipeline_ends_ms(whole, part))

    none, some, many = (steps(cells) for cells in (np.zeros_like(few), few, more))
    assert (some <= none + 1e-9).all()
    assert (many <= some + 1e-9).all()
    assert none.mean() == pytest.approx(healing.step_ms)


def test_only_changed_workers_need_to_run() -> None:
    trace = read_production(SHIPPED)
    whole, _ = job_of(trace)
    healing = Healing(whole, measured_durations(trace, whole))
    cells = np.array([[False, True]] * STAGES)
    part = mixed(healing.measured, healing.ideal, cells, healing.placement)
    all_ms = steps_ms(whole, part.outside, pipeline_ends_ms(whole, part)).mean()
    expected = (healing.step_ms - all_ms) / (healing.step_ms - healing.ideal_ms)
    assert healing.healed(cells) == pytest.approx(expected)
    assert healing.healed(np.ones((STAGES, 2), dtype=bool)) == pytest.approx(1)
    assert healing.alone(np.zeros((STAGES, 2), dtype=bool)) == pytest.approx(1)


def test_one_stage_and_one_worker(asked: Asked) -> None:
    single = Scenario(stages=1, microbatches=3)
    found = asked(job(lambda t, w: single.replaced(forward_ms=10 * (t + 1)), dp_ranks=1))
    assert found.slowdown == pytest.approx(1)
    assert found.healed_ranks.shape == (1, 1)
