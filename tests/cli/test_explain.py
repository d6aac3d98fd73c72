"""``pipesim explain``: the contract of its numbers, its files and its errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from pipesim.documents.scenario_toml import save_scenario
from pipesim.scenario import Scenario
from tests import ROOT
from tests.cli.running import error, invoke, stdout
from tests.formats.production_traces import job

pytestmark = pytest.mark.usefixtures("in_folder")

SLOW = ["--slow", "0=20ms", "--planner", "zerobubble", "--transport", "nccl"]
A10 = ROOT / "traces" / "a10-gpt-7b.toml"


def explained(*args: str) -> dict[str, object]:
    document = json.loads(stdout("explain", *args, "--json"))
    assert isinstance(document, dict)
    return document


def straggling() -> str:
    times = np.full((4, 12), 10.0)
    times[3, 5] = 100
    save_scenario(Scenario(forward_ms=times, name="one slow"), "run.toml")
    return "run.toml"


def test_json_of_the_worked_example() -> None:
    document = explained(*SLOW)
    assert document["iteration_ms"] == 800
    assert document["ideal_ms"] == 390
    assert document["slowdown"] == pytest.approx(800 / 390)
    assert document["waste"] == pytest.approx(410 / 800)
    assert (document["planner"], document["transport"]) == ("zerobubble", "nccl")
    causes = document["causes"]
    assert isinstance(causes, list)
    assert [cause["cause"] for cause in causes] == [
        "hol", "dependency", "slow operators", "stage imbalance", "micro-batch variation",
        "transport", "warm-up and drain", "work",
    ]  # fmt: skip
    assert causes[0] == {
        "cause": "hol",
        "removal_ms": 360,
        "removal_fraction": 0.45,
        "recovered": pytest.approx(360 / 410),
        "cumulative_ms": 360,
        "cumulative_fraction": 0.45,
    }
    assert causes[-1]["removal_ms"] is None
    assert sum(cause["cumulative_fraction"] for cause in causes) == pytest.approx(1)
    assert document["links"] == [
        {
            "link": 0, "dependency_ms": 50, "hol_ms": 360, "removal_ms": 410,
            "removal_fraction": 0.5125, "recovered": 1,
        }
    ]  # fmt: skip


def test_an_imported_run_is_an_argument() -> None:
    run = straggling()
    document = explained(run)
    assert document["planner"] == "1f1b"
    assert document["slow_operators"] == [
        {"operator": "3F5", "duration_ms": 100, "median_ms": 10, "removal_ms": 90}
    ]
    assert document == explained("--scenario", run, "--planner", "1f1b")
    text = stdout("explain", run)
    assert "one slow: 4 stages" in text
    assert "3F5 (100 instead of 10 ms)" in text
    assert text.endswith(
        "Look at operator 3F5 first: it takes 100 ms instead of 10, which costs 90 ms "
        "(16.7 % of the iteration).\n"
    )
    assert "3F5" not in stdout("explain", run, "--outlier", "10")


def test_a_plan_is_explained_over_its_own_shape() -> None:
    stdout("plan", "--stages", "2", "--slow", "0=20ms", "-o", "plan.json", "--quiet")
    document = explained("plan.json", "--slow", "0=20ms", "--transport", "delegated")
    assert document["planner"] == "pipemorph"
    stages = document["stages"]
    assert isinstance(stages, list)
    assert len(stages) == 2
    save_scenario(Scenario(stages=2), "run.toml")
    both = ["plan.json", "run.toml", "--slow", "0=20ms", "--transport", "delegated"]
    assert explained(*both)["iteration_ms"] == document["iteration_ms"]


def test_chunks_are_planned_interleaved() -> None:
    document = explained("--chunks", "2", "--transport", "ideal")
    assert document["planner"] == "interleaved-1f1b"
    assert document["iteration_ms"] == 405


@pytest.mark.parametrize("width", [None, 140, 100, 80])
def test_the_table_fits_and_adds_up(width: int | None) -> None:
    options = ["--slow", "2=60ms", "--slow", "0=20ms", "--planner", "zerobubble"]
    text = stdout("explain", str(A10), *options, "--transport", "nccl", width=width)
    table = text[text.index("cause") : text.index("Healthy")].splitlines()
    assert max(map(len, table)) <= 80
    assert "…" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    rows = [line for line in table[3:] if line and not line.startswith(" ")]
    *parts, total = [float(row.split()[-2]) for row in rows]
    assert sum(parts) == pytest.approx(total, abs=0.5)
    assert rows[-1].split()[0] == "iteration"
    assert rows[-1].split()[-1] == "100.0"
    assert "-0.0" not in text


def test_quiet_leaves_the_results() -> None:
    text = stdout("explain", *SLOW, "--quiet")
    assert text.startswith("cause")
    assert "Look at" not in text
    assert "slowdown 2.05×" in text


def test_files() -> None:
    run = straggling()
    result = invoke("explain", run, "--csv", "causes.csv", "--plot", "causes.svg")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["wrote causes.csv", "wrote causes.svg"]
    rows = list(csv.DictReader(Path("causes.csv").read_text(encoding="utf-8").splitlines()))
    whole = [row for row in rows if not row["part"]]
    assert sum(float(row["cumulative_ms"]) for row in whole) == pytest.approx(540)
    (part,) = [row for row in rows if row["part"]]
    assert (part["cause"], float(part["removal_ms"])) == ("slow operators", 90)
    assert part["cumulative_ms"] == ""
    assert Path("causes.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["no.toml"], "no.toml"),
        (["no.json"], "no.json"),
        (["run.toml", "run.toml"], "one scenario"),
        (["a.json", "b.json"], "one plan"),
        (["run.toml", "--scenario", "run.toml"], "one scenario"),
        (["a.json", "--planner", "1f1b"], "not both"),
        (["run.toml", "--stages", "3"], "contradicts"),
        (["run.toml", "--planner", "nobody"], "nobody"),
        (["run.toml", "--slow", "9=5ms"], "no link 9"),
        (["run.toml", "--transport", "pigeon"], "unknown transport"),
        (["run.toml", "--outlier", "0"], "outlier must be at least 1"),
        (["run.toml", "--csv", "run.toml"], "would overwrite an input"),
        (["run.toml", "--plot", "causes.gif"], "unknown ending"),
    ],
)
def test_errors_are_one_line(args: list[str], reason: str) -> None:
    straggling()
    assert reason in error("explain", *args)


def test_help_has_an_example() -> None:
    text = stdout("explain", "--help")
    assert "Example:\n    pipesim explain traces/a10-gpt-7b.toml" in text
    assert "--outlier" in text
    assert "…" not in text


# -- production traces ---------------------------------------------------------------------


def slow_start() -> str:
    """A job of three workers: stage 0 of dp rank 0 is three times as slow as the others'."""

    def scenario(step: int, dp_rank: int) -> Scenario:
        factor = 3 if dp_rank == 0 else 1
        return Scenario(
            stages=2,
            microbatches=2,
            forward_ms=[10 * factor, 10],
            fused_backward_ms=[20 * factor, 20],
        )

    job(scenario, steps=[1, 2], dp_ranks=3, sends=False).to_parquet("trace.parquet", index=False)
    return "trace.parquet"


def test_a_slow_worker_of_a_job() -> None:
    document = json.loads(stdout("explain", slow_start(), "--json"))
    assert (document["measured_ms"], document["iteration_ms"]) == pytest.approx((180, 180))
    (suspect,) = document["suspects"]
    assert (suspect["kind"], suspect["dp_rank"], suspect["stage"]) == ("worker", 0, 0)
    assert suspect["factor"] == pytest.approx(3)
    assert suspect["without_ms"] == pytest.approx(90)
    text = stdout("explain", "trace.parquet")
    assert "dp rank 0, stage 0   90.0  -50.0      90.0  -50.0" in text
    assert "- dp rank 0, stage 0: forward and backward 3.00× the other workers'" in text
    assert "The slowest worker is dp rank 0, 180 ms; the others: 90 ms" in text
    assert text.splitlines()[-1] == (
        "It is a slow worker: dp rank 0, stage 0 (forward and backward 3.00× the other workers'). "
        "The step takes 90 ms without it, 50 % less."
    )
    assert max(map(len, stdout("explain", "trace.parquet", width=60).splitlines())) <= 60


def test_files_of_a_job() -> None:
    invoked = invoke("explain", slow_start(), "--csv", "out.csv", "--plot", "out.svg", "-q")
    assert (invoked.exit_code, invoked.stderr) == (0, "")
    (row,) = csv.DictReader(Path("out.csv").read_text().splitlines())
    assert (row["kind"], row["dp_rank"], row["rank"]) == ("worker", "0", "")
    assert "without dp rank 0, stage 0" in Path("out.svg").read_text()


def test_a_trace_is_known_by_its_first_bytes() -> None:
    Path(slow_start()).rename("trace")
    assert "dp rank 0, stage 0" in stdout("explain", "trace")


def test_a_job_without_anything_slow() -> None:
    job(lambda t, w: Scenario(), steps=range(3)).to_parquet("trace.parquet", index=False)
    assert "No worker, stage or link stands apart." in stdout("explain", "trace.parquet")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["trace.parquet", "--planner", "1f1b"], "--planner is for scenarios"),
        (["trace.parquet", "--slow", "0=5ms"], "--slow is for scenarios"),
        (["trace.parquet", "--activation-limit", "4"], "--activation-limit is for scenarios"),
        (["trace.parquet", "--transport", "nccl"], "--transport is for scenarios"),
        (["trace.parquet", "--chunks", "2"], "--chunks is for scenarios"),
        (["trace.parquet", "--csv", "trace.parquet"], "would overwrite an input"),
        (["trace.parquet", "other.toml"], "explain takes trace.parquet alone"),
        (["nope.parquet"], "nope.parquet: cannot be read"),
        (["train.log"], "import it first, `pipesim import megatron train.log -o run.toml`"),
        (["ops.csv"], "import it first, `pipesim import timeline ops.csv -o run.toml`"),
        (["torch.csv"], "import it first, `pipesim import torch-csv torch.csv -o plan.json`"),
        (["rank0.json"], "import it first, `pipesim import profiler rank0.json -o run.toml`"),
    ],
)
def test_errors_about_a_job(args: list[str], words: str) -> None:
    slow_start()
    Path("ops.csv").write_text("iteration,stage,op,index,host_start_ms,host_end_ms,gpu_ms\n")
    Path("torch.csv").write_text("0F0,0B0\n")
    Path("rank0.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert words in error("explain", *args)


@pytest.mark.parametrize(
    "words", [["simulate"], ["replay", "--transport", "nccl"], ["export", "--format", "torch-csv"]]
)
def test_other_commands_that_take_a_plan_say_the_same(words: list[str]) -> None:
    slow_start()
    Path("rank0.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    Path("run.toml").touch()
    command = [*words, "-o", "out.csv"] if words[0] == "export" else words
    assert "pipesim import profiler rank0.json" in error(*command, "rank0.json")
    assert "pipesim import production trace.parquet" in error(*command, "trace.parquet")
    assert "give it as --scenario run.toml" in error(*command, "run.toml")


def test_a_plan_need_not_be_given_for_any_placement() -> None:
    v = Scenario(stages=6, microbatches=5, placement=[0, 1, 2, 2, 1, 0])
    save_scenario(v, "v.toml")
    assert explained("v.toml") == explained("v.toml", "--planner", "zerobubble")
