"""Workers, steps, stages and ranks of a production trace that are unlike, told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.production import import_production, read_production
from pipesim.formats.production.messages import transfers_ms
from pipesim.formats.production.workers import slow_places, slow_stages, slower
from pipesim.scenario import Scenario
from planners import plan
from tests.formats.production_traces import JOB, SHIPPED, job, made_job, small
from tests.strategies import examples

STAGES, MICROBATCHES = 4, 8


def pipeline(factor: object = 1.0, **options: object) -> Scenario:
    """Four stages with messages of half a millisecond."""
    times = np.broadcast_to(factor, (STAGES, MICROBATCHES))
    return Scenario(
        stages=STAGES, microbatches=MICROBATCHES,
        forward_ms=10 * times, fused_backward_ms=20 * times, latency_ms=0.5, **options,
    )  # fmt: skip


def at(stage: int, factor: float) -> np.ndarray:
    return np.where(np.arange(STAGES) == stage, factor, 1.0)[:, None]


HEALTHY_MS = simulate(pipeline(), plan(pipeline(), "1f1b")).iteration_ms


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Measurement]:
    def read(frame: pd.DataFrame, **options: int) -> Measurement:
        frame.to_parquet(tmp_path / "job.parquet", index=False)
        made = import_production(tmp_path / "job.parquet", **options)  # type: ignore[arg-type]
        for tally in made.tallies:
            assert tally.found == tally.used + sum(part.count for part in tally.dropped)
        assert made.tallies[-1].found == len(frame)
        assert made.tallies[0].found == frame.step.nunique()
        assert made.tallies[1].found == frame.dp_rank.nunique()
        return made

    return read


Import = Callable[..., Measurement]


def checked(made: Measurement) -> float:
    """The measured time, which the scenario must give back."""
    found = check_import(made)
    assert found is not None
    assert abs(found.error) < 0.05
    return found.measured_ms


def slow_start(step: int, dp_rank: int) -> Scenario:
    """Two stages; the first of dp rank 0 is three times as slow: 180 ms, and 90 elsewhere."""
    factor = 3 if dp_rank == 0 else 1
    return Scenario(
        stages=2, microbatches=2, forward_ms=[10 * factor, 10], fused_backward_ms=[20 * factor, 20]
    )


def test_the_step_of_a_job_is_that_of_its_slowest_worker(imported: Import) -> None:
    made = imported(job(slow_start, dp_ranks=3, sends=False))
    assert checked(made) == pytest.approx(180)
    assert made.scenario.forward_ms[:, 0] == pytest.approx([30, 10])
    (note,) = (note for note in made.notes if note.startswith("the job's step is that of its"))
    assert note.endswith("slowest worker, dp rank 0: 180 ms, and 90 in the others")
    assert "dp rank 0, stage 0: 3.00× as long as in the other workers" in made.notes
    other = imported(job(slow_start, dp_ranks=3, sends=False), dp_rank=2)
    assert checked(other) == pytest.approx(90)
    assert other.scenario.forward_ms[:, 0] == pytest.approx([10, 10])
    assert "dp rank 2 was asked for: the job's step may be that of another" in other.notes


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_worker(imported: Import, slow: int) -> None:
    made = imported(job(lambda t, w: pipeline(2.1 if w == slow else 1), dp_ranks=4))
    assert checked(made) == pytest.approx(
        simulate(pipeline(2.1), plan(pipeline(), "1f1b")).iteration_ms
    )
    assert f"dp rank {slow}: 2.10× as long as in the other workers" in made.notes
    assert len(made.iterations) == 16
    assert [one.label.endswith(f"dp rank {slow}") for one in made.iterations] == [
        one.used for one in made.iterations
    ]


def test_a_slow_link_is_a_delay(imported: Import) -> None:
    def slow(step: int, dp_rank: int) -> Scenario:
        return pipeline().with_delay(40, links=[1]) if dp_rank == 2 else pipeline()

    made = imported(job(slow, dp_ranks=4))
    assert made.scenario.delay_ms.tolist() == [[0, 0], pytest.approx([40, 40]), [0, 0]]
    assert checked(made) == pytest.approx(
        simulate(slow(0, 2), plan(pipeline(), "1f1b")).iteration_ms
    )
    assert not import_production(SHIPPED).scenario.delay_ms.any()


def test_a_link_that_is_hardly_slower_has_no_delay(imported: Import) -> None:
    def other(step: int, dp_rank: int) -> Scenario:
        return pipeline().with_delay(0.2 if dp_rank else 0, links=[1])

    assert not imported(job(other)).scenario.delay_ms.any()


def test_a_slow_stage_is_no_slow_worker(imported: Import) -> None:
    made = imported(job(lambda t, w: pipeline(at(3, 2)), dp_ranks=3))
    assert "stage 3: 2.00× as long as the others, in every worker" in made.notes
    assert any(note.startswith("no worker stands apart (3 of ") for note in made.notes)


def test_one_slow_step_is_left_out(imported: Import) -> None:
    def slow(step: int, dp_rank: int) -> Scenario:
        return pipeline(at(2, 4) if (step, dp_rank) == (3, 1) else 1)

    made = imported(job(slow, steps=range(6)))
    assert checked(made) == pytest.approx(HEALTHY_MS)
    (dropped,) = made.tallies[0].dropped
    assert (dropped.why, dropped.count) == ("that take longer or shorter than most", 1)
    assert dropped.places[0].startswith("step 3 (")
    assert any(note.startswith("1 step stands apart: step 3 (") for note in made.notes)


def test_steps_on_two_levels(imported: Import) -> None:
    """Three healthy steps and four slow ones: the usual level is the slow one, and it is said."""
    made = imported(job(lambda t, w: pipeline(2 if t > 2 else 1), steps=range(7)))
    assert checked(made) == pytest.approx(2 * HEALTHY_MS, rel=0.02)
    assert any(
        note.startswith("the steps are unlike: 3 steps of ") and note.endswith("taken: the longest")
        for note in made.notes
    )


def test_another_slow_worker_in_each_step(imported: Import) -> None:
    """No worker is slow in most steps, and yet each step takes twice as long."""
    made = imported(job(lambda t, w: pipeline(2 if w == t % 4 else 1), steps=range(8), dp_ranks=4))
    assert checked(made) == pytest.approx(2 * HEALTHY_MS, rel=0.02)
    assert len(made.iteration_ms) == 1
    assert any("in each step another worker is the slowest (dp ranks 0–3)" in n for n in made.notes)


def test_medians_of_unlike_micro_batches_are_of_no_step(imported: Import) -> None:
    chance = np.random.default_rng(1)

    def varied(step: int, dp_rank: int) -> Scenario:
        return pipeline(chance.lognormal(0, 0.8, MICROBATCHES)[None])

    made = imported(job(varied, steps=range(5), dp_ranks=3))
    assert any("an operator's times differ by" in note for note in made.notes)
    assert len(made.iteration_ms) == 1
    checked(made)


def test_pauses_do_not_vanish_in_medians(imported: Import) -> None:
    chance = np.random.default_rng(1)

    def pausing(step: int, dp_rank: int) -> Scenario:
        times = np.ones((STAGES, MICROBATCHES))
        times[chance.integers(STAGES), chance.integers(MICROBATCHES)] = 20
        return pipeline(times)

    made = imported(job(pausing, steps=range(9), dp_ranks=2))
    assert checked(made) > 1.5 * HEALTHY_MS
    assert not any("as long as in the other workers" in note for note in made.notes)


def test_steps_of_another_length_are_told_apart(imported: Import) -> None:
    short = Scenario(stages=STAGES, microbatches=4, forward_ms=10, fused_backward_ms=20)
    frame = job(lambda t, w: short if t == 1 else pipeline())
    made = imported(frame)
    assert made.scenario.microbatches == MICROBATCHES
    assert any("step 1, dp rank 0: has 4 micro-batches, and most have 8" in n for n in made.notes)
    (dropped,) = made.tallies[0].dropped
    assert (dropped.why, dropped.places) == ("without a complete iteration", ("step 1",))
    assert imported(frame, step=1).scenario.microbatches == 4


def test_a_step_counts_only_with_all_its_workers(imported: Import) -> None:
    """The slow worker lacks an operator in one step, which without it would look fast."""
    frame = job(lambda t, w: pipeline(2 if w == 1 else 1))
    cut = frame[(frame.step == 2) & (frame.dp_rank == 1) & (frame.mb_id == 3)].index[0]
    made = imported(frame.drop(index=cut))
    assert checked(made) == pytest.approx(2 * HEALTHY_MS, rel=0.02)
    (dropped,) = made.tallies[0].dropped
    assert dropped.why == "in which a worker is not complete"
    lacking = frame[~((frame.dp_rank == 1) & (frame.mb_id == 3))]
    alone = imported(lacking)
    assert any("no step has all 2 workers complete" in note for note in alone.notes)
    with pytest.raises(
        FormatError,
        match=r"no complete iteration of dp rank 1 \(step 0, dp rank 1: stage 0 lacks the forward",
    ):
        imported(lacking, dp_rank=1)


def test_interleaved_stages(imported: Import) -> None:
    scenario = Scenario(
        stages=4, microbatches=4, placement=(0, 1, 0, 1), forward_ms=10, fused_backward_ms=20,
        latency_ms=[1, 2, 3],
    )  # fmt: skip
    made = imported(job(lambda t, w: scenario, planner="interleaved-1f1b"))
    schedule = plan(scenario, "interleaved-1f1b")
    assert made.scenario.placement == scenario.placement
    assert made.schedule is not None
    assert made.schedule.orders == schedule.orders
    checked(made)


def test_operations_that_hold_two_ends_and_ends_that_hold_none(tmp_path: Path) -> None:
    """As other traces log exchanges, and the forwards of the last stage, which go nowhere."""
    frame = job(lambda t, w: pipeline(), steps=[0], dp_ranks=1)
    path = tmp_path / "job.parquet"
    frame.to_parquet(path)
    expected = read_production(path).iterations[0].messages_ms
    assert np.isfinite(expected).sum() == 2 * 4 * (STAGES - 1) * MICROBATCHES
    nothing = frame[(frame.stage == STAGES - 1) & (frame.optype == "forward-compute")].assign(
        optype="forward-send", mb_id=-1, gmc=-1
    )
    start = frame[(frame.stage == 0) & (frame.optype == "forward-compute")].assign(
        optype="forward-recv", mb_id=-1, gmc=-1
    )
    named = frame.assign(optype=frame.optype.astype(str).replace(
        {"forward-send": "forward-send-forward-send"}))  # fmt: skip
    pd.concat([named, nothing, start]).to_parquet(path)
    found = read_production(path).iterations[0].messages_ms
    assert np.array_equal(found, expected, equal_nan=True)


def test_chunks_whose_last_forwards_send_nothing(tmp_path: Path) -> None:
    """Device 1 has stages 1 and 3; for stage 3 it logs sends, too, which go nowhere."""
    scenario = Scenario(
        stages=4, microbatches=4, placement=(0, 1, 0, 1), forward_ms=10, latency_ms=[1, 2, 3]
    )
    frame = job(lambda t, w: scenario, steps=[0], dp_ranks=1, planner="interleaved-1f1b")
    path = tmp_path / "job.parquet"
    frame.to_parquet(path)
    expected = read_production(path).iterations[0].messages_ms
    last = frame[(frame.gmc == 3) & (frame.optype == "forward-compute")]
    nothing = last.assign(
        optype="forward-send", start_ts=last.start_ts + last.duration, duration=0, mb_id=-1, gmc=-1
    )
    pd.concat([frame.assign(optype=frame.optype.astype(str)), nothing]).to_parquet(path)
    found = read_production(path).iterations[0].messages_ms
    assert np.isfinite(expected).any()
    assert np.array_equal(found, expected, equal_nan=True)


@examples(1)
@given(st.data())
def test_operator_times_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Scenarios of workers → the engine → a trace → the same scenarios."""
    stages, n, workers = (data.draw(st.integers(low, 4)) for low in (1, 1, 1))
    draws = st.lists(st.floats(0.1, 50), min_size=stages * n, max_size=stages * n)
    drawn = [
        Scenario(
            stages=stages, microbatches=n,
            forward_ms=np.reshape(data.draw(draws), (stages, n)),
            fused_backward_ms=np.reshape(data.draw(draws), (stages, n)),
            latency_ms=data.draw(st.floats(0, 5)),
        )
        for _ in range(workers)
    ]  # fmt: skip
    planner = data.draw(st.sampled_from(["1f1b", "gpipe"]))
    frame = job(lambda t, w: drawn[w], steps=[5], dp_ranks=workers, planner=planner)
    path = tmp_path_factory.mktemp("job") / "job.parquet"
    frame.sample(frac=1, random_state=0).to_parquet(path)
    trace = read_production(path)
    assert trace.skipped == ()
    for one, scenario in zip(trace.iterations, drawn, strict=True):
        forward, backward = one.times_ms
        assert np.allclose(forward, scenario.forward_ms, rtol=1e-6, atol=1e-6)
        assert np.allclose(backward, scenario.fused_backward_ms, rtol=1e-6, atol=1e-6)
        took = transfers_ms(one.messages_ms[None])[0]
        assert np.allclose(took, scenario.delay_ms.T[:, :, None], atol=1e-6)
        schedule = plan(scenario, planner)
        assert one.iteration_ms == pytest.approx(simulate(scenario, schedule).iteration_ms)
    slowest = max(drawn, key=lambda one: simulate(one, plan(one, planner)).iteration_ms)
    made = import_production(path)
    assert np.allclose(made.scenario.forward_ms, slowest.forward_ms, rtol=1e-6, atol=1e-4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8))
def test_clocks_that_differ_by_the_same_time_in_all_steps(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[float]
) -> None:
    """Messages take as long both ways: then the middle of both bounds is the truth."""
    what = Scenario(stages=4, microbatches=6, forward_ms=10, latency_ms=0.5)
    right = job(lambda t, w: what, steps=range(3))
    late = np.reshape(offsets, (2, 4))[right["dp_rank"], right["stage"]]
    path = tmp_path_factory.mktemp("job") / "job.parquet"
    right.assign(start_ts=right["start_ts"] + late / 1e3).to_parquet(path)
    trace = read_production(path)
    assert trace.skipped == ()
    for one in trace.iterations:
        assert one.iteration_ms == pytest.approx(
            simulate(what, plan(what, "1f1b")).iteration_ms, abs=1.1
        )


@given(st.floats(-1e6, 1e6), st.booleans())
def test_the_clock_of_a_whole_worker(
    tmp_path_factory: pytest.TempPathFactory, late_ms: float, gathered: bool
) -> None:
    """Workers wait for each other; one kind of wait alone may be a late worker."""
    frame = small(steps=3, dp_ranks=2)
    reduced = frame[frame["optype"] == "params-all-gather"].assign(
        optype="grads-reduce-scatter", start_ts=np.float32(1.105), duration=np.float32(0.01)
    )
    kept = frame if gathered else frame[frame["optype"] != "params-all-gather"]
    right = pd.concat([kept, reduced]).astype({"start_ts": float, "seq_id": "int32"})
    moved = right.assign(start_ts=right["start_ts"] + late_ms / 1e3 * (right["dp_rank"] == 1))
    path = tmp_path_factory.mktemp("job") / "job.parquet"
    moved.to_parquet(path)
    trace = read_production(path)
    first, second = (one.start_ms.min() for one in trace.iterations[:2])
    if not gathered:
        assert trace.notes == ()
        assert second - first == pytest.approx(late_ms, abs=1e-3)
        return
    assert abs(second - first) < 12  # as long as they wait for each other
    if abs(late_ms) > 12:
        assert trace.notes[0].endswith(f": dp rank 1 by {-late_ms:+,.1f} ms")
        assert second == pytest.approx(first, abs=1e-2)


def test_a_clock_that_jumps_in_one_step_is_not_set_right(tmp_path: Path) -> None:
    frame = job(lambda t, w: Scenario(stages=3, microbatches=4), steps=range(5))
    jumped = (frame["step"] == 2) & (frame["dp_rank"] == 1) & (frame["stage"] == 1)
    frame.assign(start_ts=frame["start_ts"] + 0.3 * jumped).to_parquet(tmp_path / "job.parquet")
    trace = read_production(tmp_path / "job.parquet")
    assert len(trace.iterations) == 9
    assert trace.skipped[0].startswith("step 2, dp rank 1: ")
    assert not any("set right" in note for note in trace.notes)


@pytest.mark.parametrize(("up_ms", "known"), [(0.5, False), (20, True)])
def test_an_exchange_tells_the_time_of_its_longer_message(up_ms: float, known: bool) -> None:
    """Two stages, two micro-batches: the first's gradient travels with the second's activation."""
    ends = np.full((1, 4, 2, 2, 2), np.nan)
    ends[0, :2, [0, 1], 0] = 10, 40  # F0 alone
    ends[0, :2, [0, 1], 1] = ends[0, 2:, [1, 0], 0] = 60, 90  # F1 and B0
    ends[0, 2:, [1, 0], 1] = 120, 120 + up_ms  # B1 alone
    ((down, up),) = transfers_ms(ends)
    assert down.tolist() == [[30, 30]]
    assert np.array_equal(up, [[30 if known else np.nan, up_ms]], equal_nan=True)


def test_a_realistic_job(imported: Import) -> None:
    """The file in tests/data is made by the generator, and says what it was made from."""
    frame = pd.read_parquet(JOB)
    again = made_job()
    for column in again:
        assert (frame[column].astype(again[column].dtype) == again[column]).all(), column
    made = imported(frame)
    scenario = made.scenario
    assert np.median(scenario.forward_ms, axis=1) == pytest.approx([30, 30, 60, 36], rel=0.01)
    assert np.median(scenario.fused_backward_ms, axis=1) == pytest.approx(
        [62, 62, 124, 74], rel=0.01
    )
    assert "dp rank 1, stage 2: 2.00× as long as in the other workers" in made.notes
    checked(made)


def test_how_much_slower() -> None:
    assert slower([10, 10.5, 9.8]).tolist() == [1, 1, 1]
    assert slower([]).tolist() == []
    assert slower([1, 3, 3, 3]).tolist() == [1, 1, 1, 1]  # one is fast: the others are usual
    assert slow_stages(np.array([[10.0, 10, 10], [30, 10, 10]])) == []
    busy = np.array([[10.0, 10, 20], [10, 30, 20], [10, 10, 20]])
    assert slow_places(busy) == [(1, (1,), pytest.approx(3))]
    assert slow_stages(busy) == [(2, pytest.approx(2))]
