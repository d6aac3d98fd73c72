"""``pipesim calibrate`` and ``pipesim validate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipesim.scenario import Scenario
from tests import ROOT
from tests.cli.running import error, invoke, stdout
from tests.formats.production_traces import job

pytestmark = pytest.mark.usefixtures("in_folder")

TRACES = ROOT / "traces"
RUNS = str(TRACES / "measured_iterations.csv")
CALIBRATION = ["--calibration", str(TRACES / "calibration.toml")]
THROUGHPUT = str(TRACES / "zero_bubble_throughput.csv")
DYNAMIC = str(TRACES / "dynamic_iterations.csv")
TRACE = str(TRACES / "dynamic_trace_200-400ms.csv")
DELEGATION = str(TRACES / "delegation_iterations.csv")
PRODUCTION = str(TRACES / "production" / "trace-ST.parquet")


def few_runs(*lines: int, of: str = RUNS) -> str:
    header, *rows = Path(of).read_text().splitlines()
    Path("few.csv").write_text("\n".join([header, *(rows[i] for i in lines), ""]))
    return "few.csv"


def test_validate_prints_every_run_and_the_figures() -> None:
    text = stdout("validate", few_runs(0, 16), *CALIBRATION, "--plot", "v.svg")
    assert "h800     14B    1f1b    6         10    1081.6" in text
    assert "90 % intervals hold 2 of 2 measurements." in text.splitlines()
    assert text.splitlines()[-1].startswith("Of the 54 runs of the calibration, each predicted")
    assert Path("v.svg").read_text().startswith("<?xml")


def test_validate_json_is_the_contract() -> None:
    document = json.loads(stdout("validate", few_runs(1, 4, 7, 10), *CALIBRATION, "--json"))
    assert set(document["rows"][0]) == {
        "testbed", "model", "system", "slow_links", "delay_ms", "measured_ms", "predicted_ms",
        "error", "interval_ms",
    }  # fmt: skip
    assert document["ranking_agreement"] == 1
    assert abs(document["bias"]) <= document["mape"] <= 0.05
    assert set(document["by_testbed"]) == {"h800"}
    assert set(document["by_system"]) == {"1f1b", "zerobubble", "pipemorph-cpu", "pipemorph"}


def test_a_production_trace() -> None:
    document = json.loads(stdout("validate", PRODUCTION, "--format", "production", "--json"))
    assert document["steps"] == 32
    assert document["median_abs_error"] <= 0.003
    assert document["p90_abs_error"] <= 0.01
    assert document["max_abs_error"] >= document["p90_abs_error"]
    for row in document["rows"]:
        assert row["replayed_ms"] == row["predicted_ms"]
    assert document["slowdown"] == pytest.approx(1.179, abs=0.001)
    assert document["slowdown"] == document["step_ms"] / document["ideal_ms"]
    shares = document["attribution"]
    assert (len(shares["stages"]), len(shares["workers"])) == (4, 2)
    assert [len(row) for row in shares["ranks"]] == [2] * 4
    assert {"mape", "naive_mape"} < set(document["from_other_steps"])

    text = stdout("validate", PRODUCTION)
    assert text.startswith("Replay check: ")
    assert "It predicts nothing." in text
    assert "median absolute error" in text
    assert "slowdown               1.179\n" in text
    assert "pp rank" in text
    assert "Each step predicted from the other 31 only" in text
    quiet = stdout("validate", PRODUCTION, "--format", "production", "--quiet")
    assert "Replay" not in quiet
    assert "slowdown               1.179\n" in quiet


def test_a_job_with_many_workers_and_one_in_which_nothing_is_slow() -> None:
    def scenario(step: int, dp_rank: int) -> Scenario:
        return Scenario(stages=2, microbatches=2, forward_ms=10 + 5 * (dp_rank == 7))

    job(scenario, dp_ranks=9).to_parquet("many.parquet")
    text = stdout("validate", "many.parquet")
    assert "Of 9 workers, those that cost most." in text
    assert "dp rank 7" in text
    assert "dp rank 6" not in text
    job(lambda t, w: Scenario(stages=2, microbatches=2)).to_parquet("even.parquet")
    text = stdout("validate", "even.parquet")
    assert "slowdown               1.000\n" in text
    assert "pp rank" not in text


def few_throughputs() -> str:
    """1.5B over 24 micro-batches: 1F1B, 1F1B-I, ZB-H2 (not measured), ZB-1p and ZB-2p."""
    return few_runs(0, 6, 18, 24, 30, of=THROUGHPUT)


def test_measured_throughput_is_predicted_from_its_profile() -> None:
    result = invoke("validate", few_throughputs())
    assert "1.5B        24  ZB-2p     1241.4" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("ranked as measured in 1 of 1 settings.")
    assert "from 1F1B with 24 micro-batches, which is not predicted." in result.stderr
    assert "rounding alone is up to 0.4 %" in result.stderr
    assert "1.5B " not in stdout("validate", "few.csv", "--quiet")


def test_throughput_json_has_the_figures_of_runs() -> None:
    runs = json.loads(stdout("validate", few_runs(0, 3), *CALIBRATION, "--json"))
    document = json.loads(stdout("validate", few_throughputs(), "--json"))
    assert set(runs) - {"by_testbed", "left_out"} == set(document) - {"rounding", "scaled_on"}
    assert set(document["rows"][0]) == {
        "model", "microbatches", "system", "measured_ms", "predicted_ms", "error", "interval_ms",
    }  # fmt: skip
    assert document["runs"] == len(document["rows"]) == 3
    assert document["worst"] <= 0.04
    assert set(document["by_system"]) == {"1F1B-I", "ZB-1p", "ZB-2p"}
    first = document["scaled_on"]["1.5B"]
    assert (first["system"], first["microbatches"]) == ("1F1B", 24)
    assert 1 < first["factor"] < 1.1


def test_dynamic_runs_are_predicted_from_the_trace_beside_them() -> None:
    text = stdout("validate", DYNAMIC)
    assert "200-400   7B     pipemorph-cpu  all" in text
    assert "ranked as measured in 1 of 1 settings." in text
    assert text.splitlines()[-1].startswith("Single iterations: ")
    few = few_runs(*range(15), of=DYNAMIC)
    missing = "few.csv: needs dynamic_trace_200-400ms.csv beside it, or --trace FILE"
    assert missing in error("validate", few)
    document = json.loads(stdout("validate", few, "--trace", TRACE, "--json"))
    assert set(document) >= {"rows", "mape", "bias", "worst", "by_system", "ranking_agreement"}
    assert document["rows"][0]["first_iteration"] == 10
    assert len(document["rows"][0]["iterations_predicted_ms"]) == 6


def test_one_trace_is_not_for_two_rates_of_change() -> None:
    lines = Path(DYNAMIC).read_text().splitlines()
    other = [line.replace("200-400", "50-300") for line in lines[1:]]
    Path("two.csv").write_text("\n".join(lines + other))
    assert "of several (200-400, 50-300)" in error("validate", "two.csv", "--trace", TRACE)


def test_delegation_runs_without_a_healthy_iteration_take_that_of_other_runs() -> None:
    result = invoke("validate", DELEGATION)
    assert "overhead    30B    all-cpu" in result.stdout
    assert "zero-bubble runs that the testbed was fitted to" in result.stderr
    text = Path(DELEGATION).read_text().replace(",30B,", ",31B,")
    Path("delegation.csv").write_text(text)
    result = invoke("validate", "delegation.csv")
    assert "delegation.csv:17: left out, there are none of 31B." in result.stderr
    assert "31B" not in result.stdout


def test_calibrate_then_validate() -> None:
    few = few_runs(16, 28, 24, 20, 17)
    text = stdout("calibrate", few, "-o", "c.toml", "--no-leave-out")
    assert "GiB/s" in text
    assert "over 5 runs" in text
    document = json.loads(stdout("validate", few, "--calibration", "c.toml", "--json"))
    assert document["mape"] <= 0.1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["validate", RUNS, *CALIBRATION, "--format", "log"], "'log' is none of runs"),
        (["validate", PRODUCTION, "--format", "production", *CALIBRATION], "--calibration is for"),
        (["validate", PRODUCTION, *CALIBRATION], "--calibration is for runs"),
        (["validate", THROUGHPUT, *CALIBRATION], "for runs, not for measured throughput"),
        (["validate", THROUGHPUT, "--plot", "x.png"], "--plot is for runs"),
        (["validate", RUNS, "--trace", TRACE], "--trace is for dynamic runs, not for runs"),
        (["validate", DYNAMIC, "--plot", "x.png"], "--plot is for runs, not for dynamic runs"),
        (["validate", DYNAMIC, "--trace", RUNS], ":1: a delay trace has one column of time_ms"),
        (["validate", RUNS, "--format", "throughput"], ":1: has no column layers"),
        (
            ["validate", PRODUCTION.replace("trace-ST.parquet", "meta-ST.yaml")],
            "is no file of measurements",
        ),
        (["validate", RUNS, "--format", "production"], "measured_iterations.csv: "),
        (["validate", RUNS, "--calibration", RUNS], "not TOML"),
        (["calibrate", RUNS, "-o", RUNS], "would overwrite an input"),
        (["calibrate", RUNS, "-o", "c.toml", "--timelines", "."], "the folder holds no CSV file"),
    ],
)
def test_wrong_input_is_one_line(args: list[str], message: str) -> None:
    assert message in error(*args)


def test_a_foreign_testbed_is_named() -> None:
    few = few_runs(0)
    Path(few).write_text(Path(few).read_text().replace("h800,", "tpu,"))
    assert "few.csv:2: the calibration has no testbed 'tpu'" in error("validate", few, *CALIBRATION)
    assert invoke("validate", few, *CALIBRATION).exit_code == 2
