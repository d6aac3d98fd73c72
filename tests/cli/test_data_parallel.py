"""``pipesim compare --dp``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pipesim.adapt import mapping
from tests.cli.running import error, stdout

DP = ("compare", "--dp", "2", "--slow-dp", "1=30ms")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_table_has_a_row_for_each_system_and_use_of_the_nodes() -> None:
    text = stdout(*DP, "--systems", "zerobubble,pipemorph")
    assert "all-reduce of stage 1: 30 ms each way" in text
    assert "7200 MiB of gradients in 48 buckets of 2 ring steps" in text
    rows = [line.split() for line in text.splitlines() if line[:4] in ("as i", "re-m", "best")]
    assert [row[:2] for row in rows] == [
        ["as", "is:"], ["as", "is:"],
        ["re-mapped:", "ZeroBubble"], ["re-mapped:", "PipeMorph"],
        ["best:", "ZeroBubble"], ["best:", "PipeMorph"],
    ]  # fmt: skip
    assert rows[0][4:8] == ["3250.0", "8.33×", "390.0", "2860.0"]
    assert rows[3][3:7] == ["420.0", "1.08×", "420.0", "0.0"]


def test_json_tells_all() -> None:
    value = json.loads(stdout(*DP, "--json"))
    assert (value["message_cost_ms"], value["testbed"]) == (0, None)
    assert value["data_parallel"] == {
        "ranks": 2,
        "slow": [
            {"from": [0, 1], "to": [1, 1], "delay_ms": 30.0},
            {"from": [1, 1], "to": [0, 1], "delay_ms": 30.0},
        ],
        "overlap": True,
        "all_places_tried": True,
        "gradient_bytes": 7549747200,
        "bucket_bytes": 160000000,
        "buckets": 48,
        "steps_per_bucket": 2,
        "bytes_per_ms": None,
    }
    row = value["rows"][1]
    assert (row["system"], row["nodes"], row["step_ms"]) == ("zerobubble", "as is", 3250)
    assert (row["pipeline_ms"], row["exposed_ms"], row["nodes_moved"]) == (390, 2860, 0)
    assert [one["ranks"] for one in row["pipelines"]] == [[0, 1]]
    assert row["assignment"]["slow"] == [
        {"nodes": [[0, 1], [1, 1]], "kind": "ring", "number": 1, "rank": 0}
    ]
    assert value["advised"] == {"system": "zerobubble", "nodes": "best"}


def test_sizes_bandwidth_and_overlap() -> None:
    def step_ms(*args: str) -> float:
        value = json.loads(stdout(*DP, "--systems", "zerobubble", "--json", *args))
        return float(value["rows"][0]["step_ms"])

    assert step_ms("--no-overlap") == 390 + 96 * 30
    assert step_ms("--gradient-mib", "300", "--bucket-mib", "100") == 370 + 6 * 30
    assert step_ms("--gradient-bytes", "0") == 390
    one = ("--gradient-bytes", "1e6", "--bucket-mib", "1")
    assert step_ms(*one, "--dp-bytes-per-ms", "1e5") == 370 + 2 * (30 + 5)


def test_a_testbed_says_how_long_bytes_take() -> None:
    value = json.loads(stdout("compare", "--dp", "2", "--testbed", "a10", "--json"))
    assert value["testbed"]["name"] == "a10"
    rate = value["data_parallel"]["bytes_per_ms"]
    assert rate is not None
    bytes_ms = value["data_parallel"]["gradient_bytes"] / rate
    assert value["rows"][0]["step_ms"] > bytes_ms
    given = ("--dp-bytes-per-ms", "inf")
    value = json.loads(stdout("compare", "--dp", "2", "--testbed", "a10", "--json", *given))
    assert value["data_parallel"]["bytes_per_ms"] is None


def test_slow_links_belong_to_a_rank() -> None:
    args = ("compare", "--dp", "3", "--slow", "0=5ms", "--slow", "0>1:2=20ms", "--json")
    value = json.loads(stdout(*args, "--systems", "1f1b"))
    assert value["data_parallel"]["slow"] == [
        {"from": [0, 0], "to": [0, 1], "delay_ms": 5.0},
        {"from": [0, 1], "to": [0, 0], "delay_ms": 5.0},
        {"from": [2, 0], "to": [2, 1], "delay_ms": 20.0},
    ]


def test_rows_as_csv(tmp_path: Path) -> None:
    stdout(*DP, "--systems", "zerobubble", "--csv", "rows.csv", "--quiet")
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["nodes"] for row in rows] == ["as is", "re-mapped", "best"]
    assert [row["moved"] for row in rows] == ["", "0.2→1.1 1.1→0.2", "0.0→0.1 0.1→0.0"]
    carried = ["all-reduce of stage 1", "rank 0 link 1", "no traffic"]
    assert [row["slow_links_carry"] for row in rows] == carried
    assert float(rows[0]["step_ms"]) == 3250


def test_places_of_many_nodes_are_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "MOST_PLACES", 0)
    args = ("compare", "--dp", "2", "--stages", "2", "--systems", "1f1b", "--slow-dp", "0=50ms")
    # As fast as on healthy links: there is nothing better to be found.
    assert "Not all places were tried" not in stdout(*args)
    every = ("--slow-dp", "1=50ms", "--slow", "0=50ms", "--slow", "0:1=50ms")
    text = stdout(*args, *every)
    assert "4 slow links" in text
    assert "Not all places were tried" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--slow-dp 1=30ms", "--slow-dp is for data-parallel ranks: give --dp, too"),
        ("--no-overlap", "--no-overlap is for data-parallel ranks"),
        ("--dp 1", "--dp must be from 2 to 1024, not 1"),
        ("--dp -3", "--dp must be from 2 to 1024, not -3"),
        ("--dp 2 --slow-dp 4=30ms", "there is no stage 4 (stages: 0 to 3)"),
        ("--dp 2 --slow-dp 1:2=30ms", "there is no rank 2 (ranks: 0 to 1)"),
        ("--dp 2 --slow-dp 1=-30ms", "--slow-dp: '-30ms' is negative"),
        ("--dp 2 --slow-dp 1=nanms", "--slow-dp: 'nanms' is not a time"),
        ("--dp 2 --slow-dp 1", "--slow-dp: '1' is not STAGE=TIME"),
        ("--dp 2 --slow-dp x=3ms", "--slow-dp: 'x' is not a stage"),
        ("--dp 2 --slow-dp 1:x=3ms", "--slow-dp: 'x' is not a rank"),
        ("--dp 2 --slow-dp 1=3ms --slow-dp 1:1=4ms", "this link is given two delays"),
        ("--dp 2 --bucket-mib 0", "--bucket-mib: a bucket cannot have 0 bytes"),
        ("--dp 2 --bucket-mib nan", "--bucket-mib: a bucket cannot have nan bytes"),
        ("--dp 2 --gradient-bytes -1", "--gradient-bytes: gradients cannot have -1 bytes"),
        ("--dp 2 --gradient-mib 1 --gradient-bytes 1", "not both"),
        ("--dp 2 --dp-bytes-per-ms 0", "--dp-bytes-per-ms: a bandwidth must be above 0"),
        ("--dp 2 --bucket-mib 1e-9", "--bucket-mib: a bucket cannot have 0.00104858 bytes"),
        ("--dp 2 --dp-bytes-per-ms 1e-300", "an all-reduce would take"),
        ("--dp 2 --slow-dp 1=1e14ms", "an all-reduce would take"),
        ("--slow 0:1=3ms", "--slow: ranks, such as 1, are for pipesim compare --dp"),
        ("--dp 2 --slow 0:2=3ms", "--slow: there is no rank 2 (ranks: 0 to 1)"),
        ("--dp 2 --slow 0:1=3ms --slow 0:1=4ms", "link 0 is given two delays"),
        ("--dp 2 --chunks 2", "--chunks is not for --dp"),
        ("--dp 2 --optimum", "--optimum is not for --dp"),
        ("--dp 2 --plot a.png", "--plot is not for --dp"),
        ("--dp 2 --systems interleaved-1f1b", "cuts stages into chunks"),
    ],
)
def test_bad_input_is_one_line(args: str, said: str) -> None:
    assert said in error("compare", *args.split())
