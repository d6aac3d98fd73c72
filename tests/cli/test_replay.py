"""``pipesim replay``: what it refuses before any process starts, and a run from end to end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.documents.plan_json import save_plan
from pipesim.engine import simulate
from pipesim.replay.prepare import prepare
from pipesim.replay.run.measured import ClockFacts, Measured
from pipesim.replay.run.run import ComputeKind
from pipesim.scenario import Scenario
from pipesim.timeline import Timeline
from planners import plan
from tests.processes import PATIENCE_S

KEYS = (
    "planner", "transport", "compute", "device", "predicted_ms", "measured_ms", "error",
    "median_start_error_ms", "iterations_ms", "events",
    "logical_ms", "logical_iterations_ms", "logical_start_error_ms", "longest_lag_ms",
)  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--transport nccl", "give a PLAN.json or --planner NAME"),
        ("plan.json --planner 1f1b --transport nccl", "not both"),
        ("--planner 1f1b", "needs --transport nccl, exchange or delegated"),
        ("--planner 1f1b --transport isolated", "needs --transport nccl, exchange or delegated"),
        ("--planner 1f1b --transport nccl --compute magic", "--compute: 'magic' is none of"),
        ("--planner 1f1b --transport nccl --device tpu", "--device: 'tpu' is none of"),
        ("--planner 1f1b --transport nccl --iterations 0", "at least one iteration"),
        ("--planner 1f1b --transport nccl --timeout 3", "has no unit"),
        ("--planner 1f1b --transport nccl --timeout 0s", "--timeout must be above 0"),
        ("--planner 1f1b --transport nccl --fail 0F", "--fail: '0F' is not"),
        ("--planner 1f1b --transport nccl --fail 0F1:explode", "is not a failure such as"),
        ("--planner 1f1b --transport nccl --fail 3F1", "3F1 sends nothing over a link"),
        ("--planner 1f1b --transport nccl --fail 0F1@7", "no iteration 7"),
        ("--planner 1f1b --transport delegated --failover", "needs a direct path"),
        ("--planner 1f1b --transport nccl --eager-bytes 8", "no eager sends"),
        ("plan.json --stages 3 --transport nccl", "the plan places its stages"),
        ("plan.json --microbatches 5 --transport nccl", "the plan has 6 micro-batches"),
        ("nothing.json --transport nccl", "nothing.json"),
        ("--result nothing.json", "nothing.json"),
        ("--result nothing.json --planner 1f1b", "--result says what was run"),
        ("--result nothing.json --iterations 5", "was run: leave out --iterations"),
        ("--result nothing.json --link 1", "was run: leave out --link"),
        ("--result nothing.json --transport nccl", "was run: leave out --transport"),
        ("--result nothing.json --port 80", "was run: leave out --port"),
        ("plan.json --result nothing.json", "was run: leave out the plan"),
        ("--result nothing.json --prepare run.json", "was run: leave out --prepare"),
        ("plan.json --transport nccl --prepare run.json --json", "nothing: leave out --json"),
        ("plan.json --transport nccl --prepare run.json --plot a.png", "leave out --plot"),
        ("plan.json --transport nccl --prepare run.json --port 80", "leave out --port"),
        ("plan.json --transport nccl --trace plan.json", "would overwrite an input"),
    ],
)
def test_refused_before_a_process_starts(
    args: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = Scenario(microbatches=6)
    save_plan(plan(scenario, "zerobubble"), "plan.json")
    with patch("pipesim.replay.launcher.launch", side_effect=AssertionError("started")):
        result = CliRunner().invoke(app, ["replay", *args.split()], prog_name="pipesim")
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert words in line


def test_the_help_offers_what_replay_has() -> None:
    words = " ".join(CliRunner().invoke(app, ["replay", "--help"]).stdout.split())
    assert "How messages travel: nccl, exchange, delegated. --message-cost, --base" in words
    assert "--compute-slowdown" not in words


@pytest.mark.parametrize(("uncertainty_ms", "shown"), [(0.001, True), (1.0, False)])
def test_drift_is_shown_where_it_is_known(
    uncertainty_ms: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(stages=1, microbatches=2)
    schedule = plan(scenario, "1f1b")
    run = prepare(scenario, schedule, "nccl", iterations=1)
    timelines = [simulate(scenario, schedule)] * run.total_iterations
    clocks = [ClockFacts(0.0, 20.0, uncertainty_ms)]
    measured = Measured(run, timelines, clocks, [], [{}])
    monkeypatch.setattr("pipesim.cli.replay.load_result", lambda _: measured)
    result = CliRunner().invoke(app, ["replay", "--result", "result.json"])
    assert result.exit_code == 0, result.output
    assert ("drift up to 20 ppm" in result.stdout) == shown
    assert "1 worker\n" in result.stdout


@pytest.mark.parametrize("compute", ["sleep", "matmul"])
def test_what_was_measured_and_what_agrees_by_construction_are_told_apart(
    compute: ComputeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(stages=1, microbatches=2)
    schedule = plan(scenario, "1f1b")
    run = prepare(scenario, schedule, "nccl", iterations=1, compute=compute)
    logical = simulate(scenario, schedule)
    # In the midst of an operator: it starts in time, and its end is late.
    held_up = simulate(scenario.replaced(fused_backward_ms=410.0), schedule)
    physical = Timeline(scenario, held_up.compute)
    measured = Measured(
        run, [physical] * 2, [ClockFacts(0.0, 0.0, 0.0)], [], [{}],
        [logical] * 2 if run.has_logical_times else [],
    )  # fmt: skip
    monkeypatch.setattr("pipesim.cli.replay.load_result", lambda _: measured)
    said = CliRunner().invoke(app, ["replay", "--result", "result.json"]).stdout
    median = said[said.index("median") :].splitlines()[0].split()
    assert median[1:3] == ["60.0", "840.0"]
    report = json.loads(
        CliRunner().invoke(app, ["replay", "--result", "result.json", "--json"]).stdout
    )
    assert report["measured_ms"] == 840
    if compute == "sleep":
        assert median[-1] == "60.0"
        words = " ".join(said.split())
        assert "the rest agrees by construction" in words
        assert "operators physically started or ended up to 780 ms later" in words
        assert (report["logical_ms"], report["logical_start_error_ms"]) == (60, 0)
    else:
        assert "logical" not in said
        assert (report["logical_ms"], report["logical_iterations_ms"]) == (None, [])


def test_quiet_prints_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(stages=1, microbatches=2)
    schedule = plan(scenario, "1f1b")
    run = prepare(scenario, schedule, "nccl", iterations=2)
    timelines = [simulate(scenario, schedule)] * 3
    measured = Measured(run, timelines, [ClockFacts(0.0, 0.0, 0.0)], [], [{}], timelines)
    monkeypatch.setattr("pipesim.cli.replay.load_result", lambda _: measured)
    said = CliRunner().invoke(app, ["replay", "--result", "result.json", "--quiet"]).stdout
    table = said.splitlines()
    assert [line.split()[0] for line in table[-3:]] == ["iteration", "iteration", "median"]
    assert len(table) == 6
    full = CliRunner().invoke(app, ["replay", "--result", "result.json"]).stdout
    assert said in full
    assert "clocks agree" in full


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu() -> None:
    args = "replay --planner 1f1b --transport delegated --device cuda"
    result = CliRunner().invoke(app, args.split(), prog_name="pipesim")
    assert result.exit_code == 2
    assert "error: there is no CUDA device on this host: use --device cpu" in result.stderr


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    args = "replay --planner zerobubble --stages 2 --microbatches 3 --transport delegated"
    options = "--delay 5ms --link 0 --iterations 2 --json --trace trace.json --plot plot.png"
    options += f" --timeout {PATIENCE_S:g}s"
    result = CliRunner().invoke(app, [*args.split(), *options.split()], prog_name="pipesim")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(KEYS) <= set(report)
    assert report["nominal_ms"] == pytest.approx(105)
    assert report["predicted_ms"] >= report["nominal_ms"]
    assert len(report["iterations_ms"]) == 2
    assert report["measured_ms"] >= 0.9 * report["nominal_ms"]
    assert report["events"] == []
    processes = {
        event["args"]["name"]
        for event in json.loads(Path("trace.json").read_text())["traceEvents"]
        if event["name"] == "process_name"
    }
    assert processes == {
        f"zerobubble over delegated, {kind} device {device}"
        for kind in ("predicted", "measured")
        for device in (0, 1)
    }
    assert Path("plot.png").stat().st_size > 10_000
    assert dict(os.environ) == before
