"""What ``pipesim import megatron`` prints of unlike iterations and workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipesim.cli.app import app
from pipesim.documents.scenario_toml import load_scenario
from tests.formats.megatron_dialects import DATA, Run, of_all_ranks, text

SLOW = Run((10.0,) * 4, (20.0,) * 4, 12, copies=2, slow_copy=2.0, start_up=3.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.log").write_text(text(of_all_ranks, SLOW))


def imported(*args: str) -> Result:
    result = CliRunner().invoke(app, ["import", "megatron", *args, "-o", "s.toml"])
    assert result.exit_code == 0, result.output
    return result


def test_the_slowest_worker_is_named_and_taken() -> None:
    result = imported("train.log")
    assert "a data-parallel job's step is its slowest rank's" in result.stdout
    assert f"takes {SLOW.pipeline_ms:g} ms simulated" in result.stdout
    assert result.stderr == "wrote s.toml\n"
    assert load_scenario("s.toml").forward_ms[0, 0] == pytest.approx(20, abs=1e-3)
    Path("s.toml").unlink()
    other = imported("train.log", "--dp-rank", "0")
    assert load_scenario("s.toml").forward_ms[0, 0] == pytest.approx(10, abs=1e-3)
    assert "in doubt" in other.stderr  # this worker does not make the step


def test_what_is_not_used_is_listed() -> None:
    lines = imported("train.log", "--explain-drops").stdout.splitlines()
    assert "not used: 1 iteration, start-up:" in lines
    assert "not used: 4 ranks, of another data-parallel rank:" in lines
    assert "  rank 6" in lines


def test_places_that_hold_a_comma_are_told_apart() -> None:
    output = " ".join(imported("train.log").stdout.split())
    assert "about times or shape (train.log, line 2; train.log, line 5; " in output
    assert "(rank 0, rank 2, rank 4, rank 6)" in output


def test_a_log_of_virtual_stages_simulates_as_it_says() -> None:
    result = imported(str(DATA / "cases" / "virtual-stages.log"))
    assert "which interleaved 1F1B over ideal gives back as 285 ms" in result.stdout
    assert load_scenario("s.toml").devices == 4
