from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.fidelity.jobs.stragglers import explain_job
from pipesim.formats.measurement import Measurement
from pipesim.formats.production import import_production, read_production
from pipesim.formats.production.workers import slow_ranks
from pipesim.program import Message
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from planners import plan
from tests.formats.mutations import damaged
from tests.formats.production_traces import SAMPLE, SHIPPED, job, small
from tests.strategies import tries


@pytest.fixture
def save(tmp_path: Path) -> Callable[[pd.DataFrame], Path]:
    def write(frame: pd.DataFrame) -> Path:
        path = tmp_path / "t.parquet"
        frame.to_parquet(path, index=False)
        return path

    return write


Save = Callable[[pd.DataFrame], Path]


def test_a_small_trace(save: Save) -> None:
    path = save(small())
    trace = read_production(path)
    assert [(one.step, one.dp_rank) for one in trace.iterations] == [(7, 0), (8, 0)]
    timeline = trace.iterations[0].timeline
    near = {"abs": 1e-3}
    assert timeline.start_ms == 0
    assert timeline.iteration_ms == pytest.approx(102, **near)
    assert timeline.scenario.forward_ms[:, 0] == pytest.approx([10, 20], **near)
    assert timeline.scenario.fused_backward_ms[:, 0] == pytest.approx([30, 40], **near)
    ends = [(s.message, s.device, s.start_ms, s.end_ms) for s in timeline.comm]
    down = Message(Op("F", 0, 0), Op("F", 1, 0))
    up = Message(Op("BW", 1, 0), Op("BW", 0, 0))
    assert [(m, d) for m, d, _, _ in ends] == [(down, 0), (up, 0), (down, 1), (up, 1)]
    times = [t for _, _, start, end in ends for t in (start, end)]
    assert times == pytest.approx([10, 11, 11, 72, 0, 11, 71, 72], **near)
    assert [str(op) for order in trace.iterations[0].schedule.orders for op in order] == [
        "0F0", "0BW0", "1F0", "1BW0",
    ]  # fmt: skip
    assert trace.notes == ()
    (outside,) = trace.left_out
    assert (outside.why, outside.count) == ("outside the pipeline", 2)
    assert outside.places == ("params-all-gather: 2 rows, from row 0 on",)
    assert (trace.operations, trace.sends) == (18, 8)


def test_the_shipped_trace() -> None:
    made = import_production(SHIPPED, message_bytes=5)
    assert (len(made.iterations), len(made.iteration_ms)) == (64, 32)
    assert made.scenario.name == "trace-ST"
    assert made.scenario.forward_ms.mean(axis=1) == pytest.approx([67, 67.5, 68, 140.5], abs=0.5)
    assert made.scenario.fused_backward_ms.mean(axis=1) == pytest.approx(
        [144, 145, 145, 205], abs=1
    )
    assert 1 < made.spread_ms["F"].min() < made.spread_ms["BW"].max() < 7
    assert len(made.iterations[0].timeline.comm) == 2 * 2 * 3 * 4
    assert "medians over 32 steps of dp rank 1 (1,911 to 2,046 ms)" in made.notes
    assert "stage 3: 1.63× as long as the others, in every worker" in made.notes
    for one in made.iterations:
        for device in one.timeline.compute:
            moments = [t for span in device for t in (span.start_ms, span.end_ms)]
            assert moments == sorted(moments)


def test_the_sample_is_of_the_shipped_trace() -> None:
    whole, part = read_production(SHIPPED), read_production(SAMPLE)
    expected = [one for one in whole.iterations if one.step in (33, 34, 36)]
    assert len(part.iterations) == 6
    for a, b in zip(part.iterations, expected, strict=True):
        assert a.timeline.compute == b.timeline.compute


def test_one_step_of_one_rank() -> None:
    made = import_production(SAMPLE, step=34, dp_rank=1, name="n", source="s")
    assert [one.label for one in made.iterations if one.used] == ["step 34, dp rank 1"]
    assert made.iteration_ms == (pytest.approx(1905.946, abs=0.01),)
    (used,) = [one.timeline.scenario for one in made.iterations if one.used]
    assert np.allclose(made.scenario.forward_ms, used.forward_ms, atol=1e-4)
    assert (made.scenario.name, made.scenario.source) == ("n", "s")
    with pytest.raises(FormatError, match=r"no complete iteration of step 35"):
        import_production(SAMPLE, step=35, dp_rank=0)


def test_chunks_are_placed_by_gmc(save: Save) -> None:
    frame = small(1)
    frame = frame[frame.optype.str.endswith("compute")]
    frame["stage"], frame["rank"] = np.int8(0), np.int16(0)
    timeline = read_production(save(frame)).iterations[0].timeline
    assert timeline.scenario.placement == (0, 0)
    assert timeline.comm == ()


def test_ranks_that_share_a_stage(save: Save) -> None:
    """They wait for each other: the slowest of their lanes counts."""

    def slow(step: int, dp_rank: int) -> Scenario:
        return Scenario(stages=2, microbatches=4, forward_ms=[20 if dp_rank else 10, 10])

    healthy, other = (job(slow, dp_ranks=n) for n in (1, 2))
    slow_lane = other[other.dp_rank == 1].assign(dp_rank=0)
    slow_lane["rank"] += 100
    trace = read_production(save(pd.concat([healthy, slow_lane])))
    assert [one.dp_rank for one in trace.iterations] == [0, 0, 0, 0]
    assert trace.iterations[0].iteration_ms == pytest.approx(
        simulate(slow(0, 1), plan(slow(0, 1), "1f1b")).iteration_ms
    )
    (peers,) = trace.left_out
    assert (peers.why, peers.count) == (
        "of ranks that share a stage with a slower one", len(healthy),
    )  # fmt: skip
    (rank,) = slow_ranks(trace)
    assert rank == (102, 0, 0, pytest.approx(4 / 3), True)


def without(step: int, optype: str, stage: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda f: f[~((f.step == step) & (f.optype == optype) & (f.stage == stage))]


def moved(step: int, optype: str, stage: int, by_s: float) -> Callable[[pd.DataFrame], Any]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        chosen = (frame.step == step) & (frame.optype == optype) & (frame.stage == stage)
        frame.loc[chosen, "start_ts"] += np.float32(by_s)
        return frame

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without(7, "forward-compute", 1), "stage 1 lacks the forward-compute of micro-batch 0"),
        (without(7, "backward-compute", 0), "stage 0 lacks the backward-compute of micro-batch 0"),
        (moved(7, "forward-compute", 1, -0.005), "1F0 starts 4.0 ms before 0F0 ends"),
        (moved(7, "forward-compute", 1, 0.005), "the clock of device 1 jumps: 1F0 and 1BW0 run"),
        (
            moved(7, "forward-compute", 1, 1),
            "the clocks contradict each other: 1BW0 starts 1000.0 ms before 1F0 ends",
        ),
        (lambda f: pd.concat([f, f[(f.step == 7) & (f.stage == 0)]]), "0F0 comes twice"),
    ],
)
def test_what_is_not_whole_is_skipped_and_counted(
    save: Save, change: Callable[[pd.DataFrame], pd.DataFrame], reason: str
) -> None:
    path = save(change(small()))
    trace = read_production(path)
    assert [one.step for one in trace.iterations] == [8]
    (skipped,) = trace.skipped
    assert skipped.startswith("step 7, dp rank 0: ")
    assert reason in skipped
    assert trace.notes[-1] == f"skipped 1 partial or contradictory iteration: {skipped}"


def test_nothing_left_is_an_error_with_the_first_reason(save: Save) -> None:
    path = save(moved(7, "forward-compute", 1, -0.005)(small(1)))
    with pytest.raises(FormatError, match=r"t.parquet: has no complete iteration \(step 7, dp ra"):
        read_production(path)


def test_a_rank_without_a_stage_is_skipped(save: Save) -> None:
    frame = small(dp_ranks=2)
    trace = read_production(save(frame[~((frame.dp_rank == 1) & (frame.stage == 1))]))
    assert [one.dp_rank for one in trace.iterations] == [0, 0]
    assert len(trace.skipped) == 2
    assert trace.notes[-1].endswith(", and 1 more")


def test_a_step_that_lacks_a_rank_is_counted(save: Save) -> None:
    frame = small(dp_ranks=2)
    trace = read_production(save(frame[~((frame.dp_rank == 1) & (frame.step == 8))]))
    assert len(trace.iterations) == 3
    assert trace.skipped == ("step 8, dp rank 1: there is no operator of this rank",)


def test_messages_that_do_not_match_are_left_out(save: Save) -> None:
    path = save(without(7, "backward-recv", 0)(small()))
    trace = read_production(path)
    assert [len(one.timeline.comm) for one in trace.iterations] == [0, 4]
    assert trace.notes[-1] == "1 iteration without messages: sends and receives do not match"


def with_value(column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object} if isinstance(value, str | None) else {})
        frame.loc[3, column] = value
        return frame

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns=["duration", "gmc"]), "lacks gmc, duration"),
        (lambda f: f.rename(columns={"step": "Step"}), "is not a production trace: it lacks step"),
        (lambda f: f[:0], "holds no operation"),
        (lambda f: f[f.optype == "forward-send"], "no forward-compute and no backward-compute"),
        (lambda f: f.astype({"stage": float}), "stage must hold whole numbers, not float64"),
        (lambda f: f.astype({"start_ts": str}), "start_ts must hold seconds, not "),
        (with_value("duration", float("nan")), "row 3: duration must be a time in seconds, not na"),
        (with_value("duration", float("inf")), "row 3: duration must be a time in seconds, not in"),
        (with_value("duration", -0.5), "row 3: duration must not be negative, not -0.5"),
        (with_value("step", -2), "row 3: step must be a whole number from -1 to 10⁹, not -2"),
        (with_value("optype", None), "row 3: optype must be the name of an operation"),
        (lambda f: f.assign(optype=3), "row 0: optype must be the name of an operation, not 3"),
        (lambda f: f.assign(mb_id=-1), "row 1: a compute operation without mb_id"),
        (lambda f: f.assign(mb_id=10**9), "too few operators (8) for any complete iteration"),
        (lambda f: f.assign(gmc=f.gmc * 5), "holds no operator of stage 1"),
        (lambda f: f.assign(stage=f.stage * 5), "holds no operator of device (stage) 1"),
        (lambda f: f.assign(gmc=0), "has one stage (gmc) on several devices (stage)"),
        (lambda f: f[f.stage == 0], "stage 0 sends forwards on, but there is no stage after it"),
        (lambda f: f[f.stage == 1], "holds no operator of stage 0"),
    ],
)
def test_foreign_files_are_refused(
    save: Save, change: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    path = save(change(small()))
    with pytest.raises(FormatError) as error:
        read_production(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"iteration,stage\n", SAMPLE.read_bytes()[:-9]])
def test_what_is_no_parquet_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"t.parquet: is not a whole parquet file"):
        read_production(path)
    with pytest.raises(FormatError, match=r"nope.parquet: cannot be read: No such file"):
        read_production(tmp_path / "nope.parquet")


def test_fuzz(tmp_path: Path, save: Save) -> None:
    valid = save(small()).read_bytes()
    path = tmp_path / "broken.parquet"
    errors = 0
    for broken in damaged(valid, tries(4)):
        path.write_bytes(broken)
        try:
            assert isinstance(import_production(path), Measurement)
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            errors += 1
    assert errors > tries(4 / 3)


def test_times_that_are_hardly_seconds_are_told(save: Callable[[pd.DataFrame], Path]) -> None:
    frame = small()
    seconds = read_production(save(frame))
    assert seconds.notes == ()
    frame[["start_ts", "duration"]] *= 1e3
    (note,) = read_production(save(frame)).notes
    assert note == (
        "operators take 25000 ms each (median): times are read as seconds; are the file's in "
        "another unit?"
    )
    assert note in explain_job(read_production(save(frame))).notes


def test_operators_that_take_no_time_are_no_job(save: Callable[[pd.DataFrame], Path]) -> None:
    with pytest.raises(FormatError, match="says that no operator takes any time"):
        read_production(save(small().assign(duration=0.0)))
