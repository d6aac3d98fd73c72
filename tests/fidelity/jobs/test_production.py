from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipesim.fidelity.jobs.production import check_production
from pipesim.formats.production import read_production
from tests.formats.production_traces import JOB, SAMPLE, small


def test_all_of_it() -> None:
    steps: list[str] = []
    found = check_production(read_production(SAMPLE), steps.append)
    document = found.as_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["kind"] == "replay check"
    assert document["max_abs_error"] < 0.001  # type: ignore[operator]
    assert document["slowdown"] == document["step_ms"] / document["ideal_ms"]  # type: ignore[operator]
    assert document["step_ms"] < document["measured_ms"]  # type: ignore[operator]
    assert len(document["from_other_steps"]["rows"]) == 3  # type: ignore[index]
    assert len(steps) == len(set(steps)) > 3


def test_a_job_with_a_slow_rank() -> None:
    """Stage 2 of dp rank 1 takes twice as long as its peers, the last stage of all a fifth more."""
    what_if = check_production(read_production(JOB)).what_if
    assert what_if.healed_ranks.argmax() == 2 * 4 + 1
    assert what_if.slowest == ((2, 1),)
    assert 0.8 < what_if.healed_slowest < 1


def test_one_step(tmp_path: Path) -> None:
    small(steps=1).to_parquet(tmp_path / "t.parquet")
    found = check_production(read_production(tmp_path / "t.parquet"))
    assert found.from_other_steps is None
    assert found.as_dict()["from_other_steps"] is None
    # Gathering begins 5 ms before the first forward, and takes 10 ms by the log's own account.
    assert found.what_if.measured_ms == pytest.approx(107, abs=2e-3)


def test_a_worker_that_is_never_complete_is_told(tmp_path: Path) -> None:
    frame = small(steps=2, dp_ranks=2)
    frame = frame[~((frame.dp_rank == 1) & (frame.optype == "forward-compute"))]
    frame.to_parquet(tmp_path / "t.parquet")
    found = check_production(read_production(tmp_path / "t.parquet"))
    assert found.what_if.workers == (0,)
    assert any("dp rank 1 is left out" in note for note in found.notes)
