"""What holds a job up: what stands apart is found, and the step without it is the engine's."""

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
from pipesim.fidelity.jobs.job import job_of
from pipesim.fidelity.jobs.stragglers import JobExplanation, explain_job
from pipesim.formats.production import read_production
from pipesim.scenario import Scenario
from pipesim.transport import Exchange
from planners import plan
from tests.formats.production_traces import JOB, SHIPPED, job
from tests.strategies import examples

STAGES, MICROBATCHES, WORKERS = 4, 8, 4

Pipeline = Callable[[int, int], Scenario]


def pipeline(factor: object = 1.0, message_ms: object = 0.5) -> Scenario:
    times = np.broadcast_to(factor, (STAGES, MICROBATCHES))
    return Scenario(
        stages=STAGES, microbatches=MICROBATCHES,
        forward_ms=10 * times, fused_backward_ms=20 * times, latency_ms=message_ms,
    )  # fmt: skip


def at(stage: int, factor: float) -> np.ndarray:
    return np.where(np.arange(STAGES) == stage, factor, 1.0)[:, None]


def step_ms(scenario: Scenario) -> float:
    return simulate(scenario, plan(scenario, "1f1b")).iteration_ms


HEALTHY_MS = step_ms(pipeline())


@pytest.fixture
def explained(tmp_path: Path) -> Callable[..., JobExplanation]:
    def explain(scenario_of: Pipeline | pd.DataFrame, **options: object) -> JobExplanation:
        options = {"dp_ranks": WORKERS} | options
        frame = (
            scenario_of if isinstance(scenario_of, pd.DataFrame) else job(scenario_of, **options)  # type: ignore[arg-type]
        )
        frame.to_parquet(tmp_path / "job.parquet", index=False)
        found = explain_job(read_production(tmp_path / "job.parquet"))
        assert found.error == pytest.approx(0, abs=1e-6)  # the engine made the trace
        assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
        return found

    return explain


Explain = Callable[..., JobExplanation]


def test_a_job_in_which_nothing_is_slow(explained: Explain) -> None:
    found = explained(lambda t, w: pipeline())
    assert (found.suspects, found.slow_steps, found.notes) == ((), (), ())
    assert (found.measured_ms, found.healthy_ms) == pytest.approx((HEALTHY_MS, HEALTHY_MS))
    assert found.workers == tuple((w, pytest.approx(HEALTHY_MS)) for w in range(WORKERS))


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_stage_of_one_worker(explained: Explain, stage: int) -> None:
    found = explained(lambda t, w: pipeline(at(stage, 3) if w == 2 else 1))
    (one,) = found.suspects
    assert (one.kind, one.dp_rank, one.stage, one.link) == ("worker", 2, stage, None)
    assert one.factor == pytest.approx(3)
    assert one.what == (f"dp rank 2, stage {stage}: forward and backward 3.00× the other workers'")
    assert found.simulated_ms == one.alone_ms == pytest.approx(step_ms(pipeline(at(stage, 3))))
    assert one.without_ms == one.in_order_ms == found.healthy_ms == pytest.approx(HEALTHY_MS)


def test_a_whole_worker(explained: Explain) -> None:
    (one,) = explained(lambda t, w: pipeline(2 if w == 0 else 1)).suspects
    assert (one.kind, one.dp_rank, one.stage) == ("worker", 0, None)
    assert one.without_ms == pytest.approx(HEALTHY_MS)


def test_a_slow_backward_is_named(explained: Explain) -> None:
    def slow(step: int, dp_rank: int) -> Scenario:
        times = pipeline()
        return times.replaced(fused_backward_ms=20 * at(1, 4 if dp_rank == 3 else 1)[:, 0])

    (one,) = explained(slow).suspects
    assert one.what == "dp rank 3, stage 1: forward 1.00×, backward 4.00× the other workers'"


def test_two_slow_workers_hide_each_other(explained: Explain) -> None:
    """Either alone saves little, for then the other makes the step: the order shows both."""
    found = explained(lambda t, w: pipeline({1: at(0, 3), 2: at(3, 2.5)}.get(w, 1)))
    first, second = found.suspects
    assert (first.dp_rank, second.dp_rank) == (1, 2)
    assert first.without_ms == pytest.approx(step_ms(pipeline(at(3, 2.5))))
    assert second.without_ms == pytest.approx(found.simulated_ms)
    assert second.alone_ms == pytest.approx(step_ms(pipeline(at(3, 2.5))))
    assert second.in_order_ms == pytest.approx(HEALTHY_MS)


def test_workers_that_are_not_equally_slow(explained: Explain) -> None:
    """Half of the workers are slow on stage 2, one more than the other: no slow stage in all."""
    found = explained(lambda t, w: pipeline({1: 1.5, 3: at(2, 1.8)}.get(w, 1.0)))
    one, whole = found.suspects
    assert (one.kind, one.dp_rank, one.stage) == ("worker", 3, 2)
    assert (whole.kind, whole.dp_rank, whole.stage) == ("worker", 1, None)
    assert one.without_ms == pytest.approx(step_ms(pipeline(1.5)))
    assert found.healthy_ms == pytest.approx(HEALTHY_MS)


def test_a_stage_of_all_workers(explained: Explain) -> None:
    found = explained(lambda t, w: pipeline(at(3, 2)))
    (one,) = found.suspects
    assert (one.kind, one.dp_rank, one.stage) == ("stage", None, 3)
    assert one.without_ms == pytest.approx(HEALTHY_MS)


def test_a_slow_stage_and_a_slow_worker(explained: Explain) -> None:
    found = explained(lambda t, w: pipeline(at(3, 2) * (at(1, 4) if w == 1 else 1)))
    worker, stage = found.suspects
    assert (worker.kind, stage.kind) == ("worker", "stage")
    assert worker.without_ms == pytest.approx(step_ms(pipeline(at(3, 2))))
    assert stage.without_ms == pytest.approx(step_ms(pipeline(at(1, 4))))
    assert stage.in_order_ms == pytest.approx(HEALTHY_MS)


@pytest.mark.parametrize("link", range(STAGES - 1))
def test_a_link_of_one_worker(explained: Explain, link: int) -> None:
    slow = pipeline(message_ms=np.where(np.arange(STAGES - 1) == link, 30, 0.5))
    found = explained(lambda t, w: slow if w == 1 else pipeline())
    (one,) = found.suspects
    assert (one.kind, one.dp_rank, one.stage, one.link) == ("link", 1, None, link)
    assert one.what == (f"dp rank 1, link {link}: messages take 30.00 ms, 60.0× the other workers'")
    assert found.simulated_ms == pytest.approx(step_ms(slow))
    assert one.without_ms == pytest.approx(HEALTHY_MS)


def test_a_link_of_all_workers(explained: Explain) -> None:
    slow = pipeline(message_ms=[0.5, 30, 0.5])
    (one,) = explained(lambda t, w: slow).suspects
    assert (one.kind, one.dp_rank, one.link) == ("link", None, 1)
    assert one.without_ms == pytest.approx(HEALTHY_MS)


def test_one_direction_of_a_link(explained: Explain) -> None:
    slow = pipeline(message_ms=[[0.5, 0.5], [0.5, 30], [0.5, 0.5]])
    found = explained(lambda t, w: slow, dp_ranks=1)
    (one,) = found.suspects
    assert (one.kind, one.link) == ("link", 1)
    assert found.simulated_ms == pytest.approx(step_ms(slow))
    assert one.without_ms == pytest.approx(HEALTHY_MS)


def test_a_rank_among_those_that_share_a_stage(explained: Explain) -> None:
    healthy = job(lambda t, w: pipeline(), dp_ranks=1)
    slow = job(lambda t, w: pipeline(at(2, 3)), dp_ranks=1)
    slow["rank"] += 100
    found = explained(pd.concat([healthy, slow]))
    (rank,) = found.suspects
    assert (rank.kind, rank.rank, rank.dp_rank, rank.stage) == ("rank", 102, 0, 2)
    assert rank.what == "rank 102 (dp rank 0, device 2): 3.00× its peers there"
    assert rank.without_ms == pytest.approx(HEALTHY_MS)


def test_only_the_lane_that_was_read_is_changed(explained: Explain) -> None:
    """Another rank is slow as well, but nobody waits for it: the trace is of the slower lane."""
    lanes = [job(lambda t, w, f=f: pipeline(f), dp_ranks=1) for f in (1, at(2, 3), at(0, 1.5))]
    for number, lane in enumerate(lanes):
        lane["rank"] += 100 * number
    found = explained(pd.concat(lanes))
    assert [one.rank for one in found.suspects] == [102]


def test_messages_that_hold_up_both_devices(tmp_path: Path) -> None:
    """The job waits for its exchanges, as Megatron-LM does: the engine's exchange fits better."""

    def slow(step: int, dp_rank: int) -> Scenario:
        return pipeline(at(1, 2.5) if dp_rank == 1 else 1, message_ms=0)

    frame = job(slow, over=Exchange(base_ms=6))
    frame.to_parquet(tmp_path / "job.parquet")
    found = explain_job(read_production(tmp_path / "job.parquet"))
    assert found.transport == "exchange"
    assert abs(found.error) < 0.02
    (one,) = found.suspects
    assert (one.dp_rank, one.stage) == (1, 1)
    healthy = pipeline(message_ms=0)
    expected = simulate(healthy, plan(healthy, "1f1b"), Exchange(base_ms=6)).iteration_ms
    assert one.without_ms == pytest.approx(expected, rel=0.01)


def test_over_exchanges_a_message_takes_its_time_once_both_ends_are_there(tmp_path: Path) -> None:
    slow = pipeline(message_ms=[[25, 0], *[[0, 0]] * (STAGES - 2)])
    job(lambda t, w: slow, dp_ranks=1).to_parquet(tmp_path / "job.parquet")
    measured, _ = job_of(read_production(tmp_path / "job.parquet"))
    measured.__dict__["transport"] = "exchange"
    expected = simulate(slow, plan(slow, "1f1b"), "exchange").iteration_ms
    assert measured.spans_ms == pytest.approx(expected)


def test_pauses(explained: Explain) -> None:
    chance = np.random.default_rng(3)

    def pausing(step: int, dp_rank: int) -> Scenario:
        times = np.ones((STAGES, MICROBATCHES))
        if dp_rank == 1:
            times[chance.integers(STAGES), chance.integers(MICROBATCHES)] = 30
        return pipeline(times)

    found = explained(pausing, steps=range(5))
    (one,) = found.suspects
    assert (one.kind, one.dp_rank) == ("pauses", 1)
    assert one.what.startswith("pauses, dp rank 1: ")
    assert "operators of 1,280 take 30.0× as long as usual" in one.what
    assert one.without_ms == pytest.approx(HEALTHY_MS)
    everywhere = explained(lambda t, w: pausing(t, 1), steps=range(5)).suspects[0]
    assert (everywhere.kind, everywhere.dp_rank) == ("pauses", None)


def test_micro_batches_of_unlike_length(explained: Explain) -> None:
    """Evened out, all do the same work: the mean of all that was measured."""
    chance = np.random.default_rng(3)
    lengths = np.exp(chance.normal(0, 0.4, (1, WORKERS, MICROBATCHES)))
    found = explained(lambda t, w: pipeline(lengths[t, w][None], message_ms=0), steps=[0])
    (one,) = found.suspects
    assert one.kind == "micro-batches"
    even = pipeline(lengths.mean(), message_ms=0)
    assert one.without_ms == pytest.approx(step_ms(even))
    assert one.without_ms < 0.95 * found.simulated_ms


def test_one_step(explained: Explain) -> None:
    found = explained(lambda t, w: pipeline(at(2, 4) if (t, w) == (3, 1) else 1), steps=range(6))
    (one,) = found.slow_steps
    assert (one.step, one.what) == (3, "dp rank 1, stage 2: 4.00× its usual time")
    assert one.measured_ms == pytest.approx(step_ms(pipeline(at(2, 4))))
    assert one.without_ms == pytest.approx(HEALTHY_MS)
    assert (found.steps, found.suspects) == (5, ())


def test_a_link_in_one_step(explained: Explain) -> None:
    slow = pipeline(message_ms=[0.5, 0.5, 40])
    found = explained(lambda t, w: slow if (t, w) == (0, 2) else pipeline(), steps=range(5))
    (one,) = found.slow_steps
    assert (one.step, one.what) == (0, "dp rank 2, link 2: messages take 40.00 ms")
    assert one.without_ms == pytest.approx(HEALTHY_MS)


def test_a_worker_that_is_never_complete_is_told(explained: Explain) -> None:
    frame = job(lambda t, w: pipeline(), dp_ranks=3)
    found = explained(frame[~((frame.dp_rank == 1) & (frame.mb_id == 0))])
    assert [rank for rank, _ in found.workers] == [0, 2]
    skipped, left_out = found.notes
    assert skipped.startswith("skipped 4 partial or contradictory iterations: step 0, dp rank 1")
    assert left_out.startswith("no step has all workers complete: dp rank 1 is left out")


def test_the_shipped_job_has_a_slow_stage_and_no_slow_worker() -> None:
    found = explain_job(read_production(SHIPPED))
    (one,) = found.suspects
    assert all(note.startswith("costs nothing: link") for note in found.notes)
    assert (one.kind, one.stage, one.dp_rank) == ("stage", 3, None)
    assert one.what == "stage 3, in every worker: forward 2.07×, backward 1.42× the other stages'"
    assert abs(found.error) < 0.002
    assert 0.7 < one.without_ms / found.simulated_ms < 0.78


def test_the_made_job() -> None:
    found = explain_job(read_production(JOB))
    assert [(one.kind, one.dp_rank, one.stage) for one in found.suspects[:1]] == [("worker", 1, 2)]
    assert abs(found.error) < 1e-6
    other = max(ms for rank, ms in found.workers if rank != 1)
    assert found.suspects[0].without_ms == pytest.approx(other, rel=0.01)


def test_large_jobs_are_run_in_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "pipesim.fidelity.jobs.job._MOST_OPERATORS", 2 * 2 * STAGES * MICROBATCHES * 3
    )
    job(lambda t, w: pipeline(), steps=range(10), dp_ranks=2).to_parquet(tmp_path / "t.parquet")
    small, notes = job_of(read_production(tmp_path / "t.parquet"))
    assert (small.steps, len(small.left_out)) == ((0, 4, 9), 7)
    assert notes == ("3 of 10 complete steps are run again",)


@examples(0.5)
@given(st.data())
def test_a_step_without_anything_slow_is_never_longer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Times only shrink where something slow is replaced by its peers, and the engine is
    monotonic for a fixed order without blocking."""
    factors = data.draw(st.lists(st.sampled_from([1, 1, 1, 1.5, 3]), min_size=12, max_size=12))
    grid = np.reshape(factors, (3, STAGES))
    frame = job(lambda t, w: pipeline(grid[w][:, None]), steps=[0], dp_ranks=3)
    path = tmp_path_factory.mktemp("job") / "job.parquet"
    frame.to_parquet(path)
    found = explain_job(read_production(path))
    for one in found.suspects:
        assert one.without_ms <= found.simulated_ms + 1e-9
        assert one.in_order_ms <= one.without_ms + 1e-9
    assert found.simulated_ms == pytest.approx(max(step_ms(pipeline(g[:, None])) for g in grid))
