"""``pipesim trace run`` and ``pipesim trace sweep``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.running import error, invoke, stdout

SUPERPOD = str(ROOT / "traces/superpod.csv")
TRACE = "iteration,slow_links,delay_ms\n6,0,30\n14,0,0\n20,,\n"
SHAPE = ("--microbatches", "8")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE)


def test_the_table() -> None:
    shown = stdout("trace", "run", "t.csv", *SHAPE)
    assert "4 stages × 8 micro-batches · F 10, B 10, W 10 ms · delays of t.csv\n" in shown
    assert "3 links, 20 iterations, 2 changes; no link is slow for 60.0 % of it\n" in shown
    for title in ("1F1B", "ZeroBubble", "PipeMorph-CPU", "PipeMorph", "Oracle"):
        assert f"\n{title} " in shown
    assert "\nno delay " in shown
    assert "\n10 to 30 ms " in shown
    assert "PipeMorph spends of its time: profiling " in shown
    quiet = stdout("trace", "run", "t.csv", *SHAPE, "-q")
    assert quiet.startswith("system ")
    assert "spends" not in quiet


def test_json_has_the_contract() -> None:
    found = json.loads(stdout("trace", "run", SUPERPOD, "--stages", "8", "--microbatches", "24",
                              "--iterations", "20", "--json"))  # fmt: skip
    assert list(found["systems"]) == [
        "1f1b", "zerobubble", "pipemorph-cpu", "pipemorph", "oracle",
    ]  # fmt: skip
    for figures in found["systems"].values():
        assert {
            "iterations", "iterations_per_minute", "replans", "median_iteration_ms",
            "p99_iteration_ms", "detection_delay_s", "share_of_oracle",
        } <= set(figures)  # fmt: skip
        assert figures["iterations"] == 20
    assert found["duration_s"] > 0


def test_messages_cost_what_is_said() -> None:
    cost = (*SHAPE, "--message-cost", "2ms", "--systems", "zerobubble", "--json")
    ran = json.loads(stdout("trace", "run", "t.csv", "--iterations", "6", *cost))
    (row,) = json.loads(stdout("compare", *cost))["rows"]
    healthy = json.loads(stdout("compare", *SHAPE, "--systems", "zerobubble", "--json"))
    assert ran["systems"]["zerobubble"]["median_iteration_ms"] == row["iteration_ms"]
    assert row["iteration_ms"] > healthy["rows"][0]["iteration_ms"]
    swept = (
        "trace",
        "sweep",
        "--stages",
        "3",
        "--duration",
        "6s",
        "--change-every",
        "3s",
        "--json",
    )
    cheap, dear = (
        json.loads(stdout(*swept, *more))["oracle_iteration_ms"][0]
        for more in ((), ("--message-cost", "9ms"))
    )
    assert dear > cheap


def test_rows_of_iterations_and_a_second_run() -> None:
    args = ("trace", "run", "t.csv", *SHAPE, "--csv", "run.csv", "--systems", "pipemorph", "--json")
    first = stdout(*args)
    with Path("run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["system"], int(row["iteration"])) for row in rows] == [
        (system, index) for system in ("pipemorph", "oracle") for index in range(20)
    ]
    assert [row["delegated"] for row in rows[6:10]] == ["", "", "0>1 1>0", "0>1 1>0"]
    assert float(rows[8]["known_link0_down_ms"]) == 30
    assert stdout(*args) == first
    assert "another run" in error(*args, "--seed", "3")


def test_options_that_say_how_it_runs() -> None:
    def run(*args: str) -> dict[str, dict[str, float]]:
        out = stdout(
            "trace", "run", "t.csv", *SHAPE, "--systems", "1f1b,pipemorph", "--json", *args
        )
        systems: dict[str, dict[str, float]] = json.loads(out)["systems"]
        return systems

    usual = run()
    late = run("--after", "50ms")
    assert late["1f1b"]["median_iteration_ms"] == usual["1f1b"]["median_iteration_ms"] + 50
    assert run("--plan-time", "10min")["pipemorph"]["replans"] == 0
    slower = run("--switch-time", "1s", "--first-time", "0ms", "--profile-time", "0ms")
    costs = {"profiling": 0, "planning": 0.2, "switching": 2, "delegation": 0}
    assert slower["pipemorph"]["costs_s"] == costs  # type: ignore[comparison-overlap]
    lagging = run("--adopt-every", "64,8")
    later = (one["pipemorph"]["detection_delay_s"] for one in (usual, lagging))
    assert next(later) < next(later)
    shaky = run("--jitter", "5%")
    assert shaky["1f1b"]["median_iteration_ms"] != usual["1f1b"]["median_iteration_ms"]
    assert run("--jitter", "5%", "--seed", "1") != shaky
    there = run("--testbed", "h800")
    assert there["pipemorph"]["costs_s"]["delegation"] > 0  # type: ignore[index]


def test_a_trace_over_time_and_its_end() -> None:
    Path("o.csv").write_text("time_s,slow_links,delay_ms\n5,0>1,30\n10,0,failed\n12,0,0\n")
    shown = json.loads(stdout("trace", "run", "o.csv", *SHAPE, "--duration", "20s", "--json"))
    assert shown["duration_s"] == 20
    assert shown["systems"]["1f1b"]["p99_iteration_ms"] > 1400
    assert json.loads(stdout("trace", "run", "o.csv", *SHAPE, "--json"))["duration_s"] == 17


@pytest.mark.parametrize("file", ["pace.png", "pace.svg"])
def test_the_figure(file: str) -> None:
    stdout("trace", "run", "t.csv", *SHAPE, "--plot", file)
    assert Path(file).stat().st_size > 10_000


BAD = {
    "out of order": "iteration,slow_links,delay_ms\n6,0,30\n5,0,0\n",
    "unknown link": "iteration,slow_links,delay_ms\n6,7,30\n",
    "negative": "iteration,slow_links,delay_ms\n6,0,-3\n",
    "nan": "iteration,slow_links,delay_ms\n6,0,nan\n",
    "empty": "",
    "only a header": "iteration,slow_links,delay_ms\n",
    "ends at once": "time_ms,slow_links,delay_ms\n0,,\n",
    "cut": "iteration,slow_links,delay_ms\n6,0",
    "no baseline": "iteration,slow_links,delay_ms\n0,0,30\n",
    "slow at once": "time_s,slow_links,delay_ms\n0.5,0,30\n5,0,0\n",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_trace_is_one_line_with_its_place(kind: str) -> None:
    Path("bad.csv").write_text(BAD[kind])
    said = error("trace", "run", "bad.csv", *SHAPE, "--csv", "out.csv", "--plot", "out.png")
    assert said.startswith("error: bad.csv")
    assert said.partition("bad.csv:")[2][0] in "123"


@pytest.mark.parametrize("text", ["3;0_1;0.03\n9;;inf\n", "\n3;1_2;0.03\n9;;inf\n"])
def test_a_missing_baseline_is_told_with_the_line_that_makes_a_link_slow(text: str) -> None:
    Path("a.txt").write_text(text)
    where = f"a.txt:{text.index('3') + 1}: link {int('1_2' in text)} is slow before the detector"
    assert where in error("trace", "run", "a.txt", *SHAPE)


def test_delays_that_count_as_healthy_leave_a_baseline() -> None:
    Path("a.csv").write_text("iteration,slow_links,delay_ms\n0,0,0.4\n20,0,30\n30,,\n")
    found = json.loads(stdout("trace", "run", "a.csv", *SHAPE, "--json"))["systems"]["pipemorph"]
    assert (found["replans"], found["onsets_missed"], found["false_alarms"]) == (1, 0, 0)


def test_whole_numbers_of_the_artifact_are_seconds_if_told() -> None:
    Path("a.txt").write_text("3;0_1;0.03\n9;;inf\n")
    args = ("trace", "run", "a.txt", *SHAPE, "--lead", "5", "--json")
    assert json.loads(stdout(*args))["by"] == "iteration"
    assert json.loads(stdout(*args, "--by", "time"))["duration_s"] == 9
    assert "3 links, 9 s, 1 change" in stdout("trace", "show", "a.txt", "--by", "time",
                                              "--links", "3")  # fmt: skip
    assert "2 directions of a link" in stdout("trace", "detect", "a.txt", "--by", "time",
                                              "--detectors", "ratio")  # fmt: skip
    assert "--by: 'day' is neither time nor iteration" in error(*args, "--by", "day")
    assert "t.csv: counts by iteration, not by time" in error("trace", "run", "t.csv", "--by",
                                                              "time")  # fmt: skip


def test_a_link_that_fails_for_good_is_told() -> None:
    Path("f.csv").write_text("time_s,slow_links,delay_ms\n5,1,failed\n20,,\n")
    shown = stdout("trace", "run", "f.csv", *SHAPE)
    assert "A link fails for good: what waits for it never ends" in shown
    assert "P99 failed\n" in shown
    assert "fails for good" not in stdout("trace", "run", "t.csv", *SHAPE)


def test_a_trace_without_an_end_says_how_far_it_is_run() -> None:
    Path("o.csv").write_text("time_s,slow_links,delay_ms\n5,0,30\n")
    said = invoke("trace", "run", "o.csv", *SHAPE, "--systems", "1f1b")
    assert said.stderr == "o.csv has no end: run as far as its longest piece goes on\n"
    assert invoke("trace", "run", "o.csv", *SHAPE, "--duration", "9s", "--systems",
                  "1f1b").stderr == ""  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0;0_1;0.03\n9;;inf\n", 1),
        ("1;;0\n2;1_2;0.03\n9;;inf\n", 2),
        ("iteration,slow_links,delay_ms\n\n\n0,1,0\n3,1,30\n9,,\n", 5),
    ],
)
def test_what_is_slow_too_early_is_named_by_its_line(text: str, line: int) -> None:
    Path("early.txt").write_text(text)
    said = error("trace", "run", "early.txt", *SHAPE)
    assert said.startswith(f"error: early.txt:{line}: link ")
    assert "has no baseline" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--link", "0", "--delay", "5ms"), "leave out --delay and --slow"),
        (("--injection", "latency"), "--injection: delays of a trace are spent on the sender"),
        (("--systems", "nobody"), "unknown system 'nobody'"),
        (("--detector", "nobody"), "nobody"),
        (("--detector", "ratio:threshold=0.5"), "threshold must be over 1"),
        (("--jitter", "150%"), "--jitter: '150%' is not between 0% and 100%"),
        (("--adopt-every", "0"), "--adopt-every: '0'"),
        (("--adopt-every", "1,2,3"), "--adopt-every: '1,2,3'"),
        (("--adopt-every", "99999999999999999999"), "--adopt-every: '99999999999999999999'"),
        (("--duration", "1min"), "--duration is for traces over time"),
        (("--plan-time", "5"), "--plan-time: '5' has no unit"),
        (("--stages", "9"), "bad"),
        (("--plot", "pace.gif"), "unknown ending"),
        (("--compute-slowdown", "3"), "--compute-slowdown is for isolated"),
    ],
)
def test_bad_options_are_one_line(args: tuple[str, ...], message: str) -> None:
    if args == ("--stages", "9"):
        Path("t.csv").write_text("time_ms,delay_link0_ms\n900000,5\n")
        message = "t.csv"
    assert message in error("trace", "run", "t.csv", *SHAPE, *args)


def test_sweep() -> None:
    args = ("trace", "sweep", "--microbatches", "6", "--stages", "3", "--duration", "6s",
            "--change-every", "300ms,3s", "--replan-every", "1,3")  # fmt: skip
    shown = stdout(*args)
    assert "Gap to the oracle in %, of iterations a minute:\n" in shown
    assert "\n300 ms " in shown
    found = json.loads(stdout(*args, "--json"))
    assert found["change_every_ms"] == [300, 3000]
    assert [len(row) for row in found["share_of_oracle"]] == [2, 2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--replan-every 0", "--replan-every: '0' is not a list of whole numbers"),
        ("--replan-every 9999999999", "--replan-every: '9999999999' is not"),
        ("--change-every x", "--change-every: 'x' is not a time"),
        ("--link 0 --delay 1ms", "leave out --delay and --slow"),
        ("--change-every 1h", "changes every 3.6e+06 ms do not fit a trace of 60000 ms"),
        ("--stages 1", "there is no link"),
        (
            "--change-every 1us --duration 1us",
            "no iteration starts after the first 10% of 0.001 ms",
        ),
    ],
)
def test_a_bad_sweep_is_one_line(args: str, message: str) -> None:
    assert message in error("trace", "sweep", *args.split())
