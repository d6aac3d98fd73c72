"""Figures that only ``--json`` has, or has in another unit than the table: their exact values."""

from __future__ import annotations

import csv
import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.documents.scenario_toml import save_scenario
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from planners import plan, registry

pytestmark = pytest.mark.usefixtures("in_folder")


def stdout(*args: str) -> str:
    result = CliRunner().invoke(app, args, prog_name="pipesim")
    assert result.exit_code == 0, result.output
    return result.stdout


# -- simulate ----------------------------------------------------------------------------


def test_stage_spans_begin_with_each_device_s_own_first_operator() -> None:
    document = json.loads(
        stdout("simulate", "--planner", "1f1b", "--delay", "15ms", "--link", "1", "--json",
               "--stages", "3", "--microbatches", "2")
    )  # fmt: skip
    # F takes 10 ms, BW 20. Device 2 starts at 10 + 10 + 15 = 35: F0 35–45, BW0 45–65, F1 65–75,
    # BW1 75–95. Device 1 starts at 10: F0, F1 10–30, BW0 65 + 15 = 80–100, BW1 110–130.
    # Device 0 starts at 0: BW0 100–120, BW1 130–150.
    assert document["stage_spans_ms"] == [150, 120, 60]
    assert document["stage_span_ms"] == 150
    assert document["iteration_ms"] == 150
    assert document["busy_ms"] == [60, 60, 60]


def test_the_longest_stage_span_may_be_shorter_than_the_iteration() -> None:
    """Device 0 starts first and device 1 ends last, with a W that nobody waits for."""
    document = json.loads(
        stdout("simulate", "--planner", "zerobubble", "--json", "--stages", "2",
               "--microbatches", "1", "--weight", "0ms,60ms")
    )  # fmt: skip
    # Device 0: F 0–10, B 30–40, W 40–40. Device 1: F 10–20, B 20–30, W 30–90.
    assert document["stage_spans_ms"] == [40, 80]
    assert document["stage_span_ms"] == 80
    assert document["iteration_ms"] == 90


# -- compare: bytes on hosts -------------------------------------------------------------


def test_host_bytes_are_what_each_device_holds_over_its_limit_times_their_size() -> None:
    """1F1B holds 4 3 2 1 activations, and one has 1,000 bytes."""
    save_scenario(Scenario(activation_limit=[1, 2.5, 2, 4], activation_bytes=1000.0), "s.toml")
    document = json.loads(stdout("compare", "--scenario", "s.toml", "--systems", "1f1b", "--json"))
    (row,) = document["rows"]
    assert row["peak_activations"] == [4, 3, 2, 1]
    assert row["host_activations"] == [3, 0.5, 0, 0]
    assert row["host_bytes"] == [3000, 500, 0, 0]


def test_host_bytes_stand_in_the_csv_too() -> None:
    save_scenario(Scenario(activation_limit=[1, 2.5, 2, 4], activation_bytes=1000.0), "s.toml")
    stdout("compare", "--scenario", "s.toml", "--systems", "1f1b", "--csv", "rows.csv", "--quiet")
    with Path("rows.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert [float(size) for size in row["host_bytes"].split()] == [3000, 500, 0, 0]


# -- compare: time to plan ---------------------------------------------------------------


class Clock:
    """Seconds that pass when a planner says so."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return Clock.now_s


def slow_planner(scenario: Scenario) -> Schedule:
    """GPipe after long thought: 2.5 s with a slow link, 40 s without."""
    Clock.now_s += 2.5 if scenario.slow_links else 40.0
    return plan(scenario, "gpipe")


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> EntryPoints:
        return EntryPoints([EntryPoint("slow", f"{__name__}:slow_planner", group)])

    monkeypatch.setattr(registry, "entry_points", found)
    monkeypatch.setattr("pipesim.studies.planning.perf_counter", Clock())


SLOW = ("compare", "--systems", "slow:ideal", "--delay", "5ms", "--link", "0")


@pytest.mark.usefixtures("_clock")
def test_time_to_plan_is_in_seconds_and_that_of_the_slow_scenario_alone() -> None:
    (row,) = json.loads(stdout(*SLOW, "--json"))["rows"]
    assert row["plan_seconds"] == 2.5
    stdout(*SLOW, "--csv", "rows.csv", "--quiet")
    with Path("rows.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert float(line["plan_seconds"]) == 2.5


@pytest.mark.usefixtures("_clock")
def test_the_table_has_it_in_milliseconds() -> None:
    lines = stdout(*SLOW, "--quiet").splitlines()
    (row,) = [line for line in lines if line.startswith("slow:ideal")]
    assert float(row.split()[-1]) == 2500
    unit = lines[lines.index(row) - 2]
    assert unit.split()[-1] == "ms"
