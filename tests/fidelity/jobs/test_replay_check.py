from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipesim.fidelity.jobs.replay_check import check_replay, transfer_ms
from pipesim.formats.production import read_production
from pipesim.scenario import Scenario
from tests.formats.production_traces import SAMPLE, SHIPPED, job, small


def test_the_shipped_trace_is_replayed() -> None:
    result = check_replay(read_production(SHIPPED))
    assert (result.steps, len(result.rows), result.skipped) == (32, 64, 0)
    summary = result.as_dict()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["kind"] == "replay check"
    assert summary["median_abs_error"] < 0.0003
    assert summary["p90_abs_error"] < 0.0005
    assert summary["max_abs_error"] < 0.001
    assert result.transfer_ms == pytest.approx(0.58, abs=0.01)


def test_the_cost_of_a_message_does_not_depend_on_the_steps_it_is_read_from() -> None:
    iterations = read_production(SHIPPED).iterations
    halves = transfer_ms(iterations[:32]), transfer_ms(iterations[32:])
    assert halves[0] == pytest.approx(halves[1], rel=0.02)


def test_a_sample_of_it() -> None:
    result = check_replay(read_production(SAMPLE))
    assert [(row.step, row.dp_rank) for row in result.rows] == [
        (step, dp_rank) for step in (33, 34, 36) for dp_rank in (0, 1)
    ]
    assert np.abs([row.error for row in result.rows]).max() < 0.001


def test_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    small().to_parquet(path)
    result = check_replay(read_production(path))
    # 10 + 1 + 20 + 40 + 1 + 30 ms, the two messages read off as 1 ms.
    assert result.transfer_ms == pytest.approx(1, abs=1e-3)
    assert [row.replayed_ms for row in result.rows] == pytest.approx([102, 102], abs=2e-3)
    assert [row.measured_ms for row in result.rows] == pytest.approx([102, 102], abs=2e-3)


def test_starts_do_not_enter_the_replay(tmp_path: Path) -> None:
    """Stage 1 begins 5 ms late: the replay stays, and is 5 ms short."""
    frame = small(steps=1)
    late = (frame.stage == 1) | frame.optype.isin(["backward-recv", "backward-compute"])
    frame.loc[late, "start_ts"] += np.float32(0.005)
    frame.to_parquet(tmp_path / "t.parquet")
    (row,) = check_replay(read_production(tmp_path / "t.parquet")).rows
    assert row.replayed_ms == pytest.approx(102, abs=2e-3)
    assert row.measured_ms == pytest.approx(107, abs=2e-3)
    assert row.error == pytest.approx(-5 / 107, abs=1e-4)


def test_without_messages_they_cost_nothing(tmp_path: Path) -> None:
    frame = small(steps=1)
    frame[frame.optype.str.endswith("compute")].to_parquet(tmp_path / "t.parquet")
    (row,) = check_replay(read_production(tmp_path / "t.parquet")).rows
    assert row.replayed_ms == pytest.approx(100, abs=2e-3)


def test_messages_that_block_nobody_where_these_fit_better(tmp_path: Path) -> None:
    """Interleaved stages whose messages overlap with compute: exchanges would be far too long."""
    interleaved = Scenario(
        stages=8, microbatches=8, placement=(0, 1, 2, 3) * 2,
        forward_ms=10, fused_backward_ms=20, latency_ms=1,
    )  # fmt: skip
    frame = job(lambda t, w: interleaved, planner="interleaved-1f1b")
    frame.to_parquet(tmp_path / "t.parquet")
    result = check_replay(read_production(tmp_path / "t.parquet"))
    assert (result.transport, result.transfer_ms) == ("ideal", pytest.approx(1))
    assert result.abs_errors.max() < 1e-9
    assert check_replay(read_production(SAMPLE)).transport == "exchange"
