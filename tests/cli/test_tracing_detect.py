"""``pipesim trace detect``: the table of detectors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.running import error, stdout

pytestmark = pytest.mark.usefixtures("in_folder")

SUPERPOD = str(ROOT / "traces" / "superpod.csv")


def test_rows_of_the_detectors_case_by_case() -> None:
    out = stdout(
        "trace", "detect", "--detectors", "ratio,cusum:jitter=0.1,limit=4", "--trials", "1"
    )
    assert out.startswith("1 series of each case, 10ms a message, jitter 5 %, seed 0\n")
    lines = [line for line in out.splitlines() if line.startswith("step to 5×")]
    assert lines[0].split()[3:7] == ["ratio", "1", "0", "1.0"]
    assert "cusum:jitter=0.1,limit=4" in out


def test_json_and_csv_have_the_same_rows(in_folder: Path) -> None:
    args = ("trace", "detect", SUPERPOD, "--detectors", "ratio", "--csv", "rows.csv", "--json")
    found = json.loads(stdout(*args, "--jitter", "2%", "--base", "2ms"))
    assert (found["jitter"], found["base_ms"], found["seed"]) == (0.02, 2.0, 0)
    (row,) = found["rows"]
    assert (row["detector"], row["case"]) == ("ratio", "superpod.csv")
    assert (row["slowdowns"], row["missed"], row["false_alarms"]) == (34, 0, 0)
    assert row["detected"] == row["recovered"] == 1
    with (in_folder / "rows.csv").open() as file:
        (record,) = csv.DictReader(file)
    assert {name: str(value) for name, value in row.items()} == record


def test_a_trace_is_one_case_without_a_column_for_it() -> None:
    out = stdout("trace", "detect", SUPERPOD, "--detectors", "ratio")
    assert out.startswith("14 directions of a link, ")
    assert "case" not in out


def test_another_seed_gives_other_noise() -> None:
    args = ("trace", "detect", SUPERPOD, "--detectors", "ratio", "-q")
    assert stdout(*args) == stdout(*args, "--seed", "0")
    assert stdout(*args) != stdout(*args, "--seed", "1")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--detectors", "ratios"], "--detectors: unknown detector 'ratios'"),
        (["--detectors", ""], "--detectors: unknown detector ''"),
        (["--detectors", "ratio,ratio"], "names a detector twice"),
        (["--detectors", "threshold=2"], "unknown detector 'threshold=2'"),
        (["--detectors", "ratio:threshold=0.5"], "threshold must be over 1"),
        (["--jitter", "much"], "--jitter: 'much' is not a part"),
        (["--base", "10"], "--base: '10' has no unit"),
        (["--iteration", "0ms"], "--iteration: an iteration takes longer than 0ms"),
        (["none.csv"], "none.csv: cannot be read"),
        (["--csv", "no/rows.csv"], "there is no folder no"),
        (["--trials", "0"], "it must be at least 1"),
    ],
)
def test_bad_input(args: list[str], message: str) -> None:
    assert message in error("trace", "detect", *args)
