"""Activations on hosts, as a replay's ``--json`` reports them: bytes, at most at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.engine import simulate
from pipesim.replay.compute.model import Model
from pipesim.replay.prepare import prepare
from pipesim.replay.run.measured import ClockFacts, Measured
from pipesim.replay.run.run import Run
from pipesim.scenario import Scenario
from planners import plan

MIB = 2**20


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As a worker runs its model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def report_of(run: Run, host_bytes: list[int], monkeypatch: pytest.MonkeyPatch, *args: str) -> str:
    """What ``pipesim replay --result`` prints of workers that said this of their hosts."""
    timeline = simulate(run.scenario, run.schedule, run.transport)
    reports = [
        {
            "gradient_errors": [1e-12], "losses": [1.0], "host_bytes": size,
            "copied_out_bytes": 7 * size, "copied_in_bytes": 7 * size,
        }
        for size in host_bytes
    ]  # fmt: skip
    clocks = [ClockFacts(0.0, 0.0, 0.0)] * run.devices
    measured = Measured(run, [timeline] * run.total_iterations, clocks, [], reports)
    monkeypatch.setattr("pipesim.cli.replay.load_result", lambda _: measured)
    result = CliRunner().invoke(app, ["replay", "--result", "result.json", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def model_run(stages: int, planner: str = "1f1b", **scenario: object) -> Run:
    what = Scenario(stages=stages, microbatches=3, **scenario)  # type: ignore[arg-type]
    return prepare(what, plan(what, planner), "nccl", compute="model", iterations=1)


@pytest.mark.parametrize("sizes", [[3 * MIB, 0, 5 * MIB], [0, 0, 1], [0, 0, 0]])
def test_each_device_s_bytes_stand_in_their_order(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(report_of(model_run(3), sizes, monkeypatch, "--json"))
    assert document["host_bytes"] == sizes


def test_the_text_has_them_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = report_of(model_run(3), [3 * MIB, 0, 5 * MIB // 2], monkeypatch)
    kept = [line for line in text.splitlines() if "on its host" in line]
    assert kept == [
        "device 0 kept up to 3.0 MiB of activations on its host",
        "device 2 kept up to 2.5 MiB of activations on its host",
    ]


def test_only_a_model_has_any(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(stages=1, microbatches=2)
    run = prepare(scenario, plan(scenario, "1f1b"), "nccl", iterations=1)
    timelines = [simulate(scenario, run.schedule)] * run.total_iterations
    measured = Measured(run, timelines, [ClockFacts(0.0, 0.0, 0.0)], [], [{}])
    monkeypatch.setattr("pipesim.cli.replay.load_result", lambda _: measured)
    result = CliRunner().invoke(app, ["replay", "--result", "result.json", "--json"])
    assert "host_bytes" not in json.loads(result.stdout)


def said(planner: str, limit: float, iterations: int = 1) -> dict[str, int]:
    """What the one device of a model says after it has run a plan of three micro-batches."""
    run = model_run(1, planner, activation_limit=limit)
    model = Model(run, 0, torch.device("cpu"))
    for iteration in range(iterations):
        model.begin(iteration)
        for op in run.schedule.orders[0]:
            model.run(op, None)
        model.finish()
    with patch("pipesim.replay.compute.model.gradient_errors", return_value=[]):
        report = model.report()
    names = ("host_bytes", "copied_out_bytes", "copied_in_bytes")
    found = {name: report[name] for name in names}
    assert all(isinstance(size, int) for size in found.values())
    return found  # type: ignore[return-value]


def test_a_worker_says_the_most_that_its_host_held_at_once() -> None:
    """1F1B of one stage holds one micro-batch at a time, GPipe all three.

    With no room on the device each of them goes to the host and comes back once.
    """
    one = said("1f1b", limit=0)
    three = said("gpipe", limit=0)
    each = one["host_bytes"]
    assert each > 0
    assert three["host_bytes"] == 3 * each
    for sizes in (one, three):
        assert sizes["copied_out_bytes"] == sizes["copied_in_bytes"] == 3 * each


@pytest.mark.parametrize(("limit", "away"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_what_fits_on_the_device_is_not_counted(limit: float, away: int) -> None:
    each = said("1f1b", limit=0)["host_bytes"]
    assert said("gpipe", limit=limit)["host_bytes"] == away * each


def test_further_iterations_hold_no_more() -> None:
    assert said("gpipe", 1, iterations=2)["host_bytes"] == said("gpipe", 1)["host_bytes"]
