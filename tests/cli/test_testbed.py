"""``--testbed``: five commands on a testbed, and one's own from two runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipesim import Scenario, compare, plan, simulate
from pipesim.cli.options.testbed import _complete
from pipesim.documents.plan_json import load_plan
from pipesim.documents.scenario_toml import save_scenario
from pipesim.fidelity import shipped
from pipesim.fidelity.calibration import Calibration
from pipesim.fidelity.calibration_file import load_calibration, save_calibration
from pipesim.text import milliseconds
from pipesim.transport import Exchange
from tests.cli.running import error, invoke, stdout

pytestmark = pytest.mark.usefixtures("in_folder")

MIB = 2**20
SLOW = ["--delay", "20ms", "--link", "0"]
H800 = shipped.testbed_named("h800")
SCENARIO = Scenario(message_bytes=H800.message_bytes).with_delay(20, links=[0])
COMMANDS = {
    "compare": ["compare"],
    "plan": ["plan"],
    "pareto": ["plan", "--pareto", "--microbatches", "6"],
    "budget": ["budget"],
    "explain": ["explain", "--planner", "zerobubble", "--transport", "nccl"],
    "simulate": ["simulate", "--planner", "pipemorph", "--transport", "delegated"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_the_testbed_and_what_messages_cost(name: str) -> None:
    command = [*COMMANDS[name], *SLOW]
    head = f"testbed h800: a message of {H800.message_bytes / MIB:g} MiB takes "
    assert head in stdout(*command, "--testbed", "h800").splitlines()[1]
    assert head not in stdout(*command, "--testbed", "h800", "--quiet")
    assert "testbed" not in stdout(*command)
    document = json.loads(stdout(*command, "--testbed", "h800", "--json"))
    told = (document["result"] if name == "plan" else document)["testbed"]
    assert told["name"] == "h800"
    assert told["message_bytes"] == [H800.message_bytes] * 3
    sizes = SCENARIO.message_bytes
    for kind in ("nccl", "delegated"):
        over = H800.transport(kind)
        assert told[f"{kind}_ms"] == over.unblocked.transfer_ms(sizes).tolist()


def test_compare_is_that_of_python() -> None:
    document = json.loads(stdout("compare", *SLOW, "--testbed", "h800", "--json"))
    expected = compare(Scenario().with_delay(20, links=[0]), testbed="h800")
    for row, own in zip(document["rows"], expected.rows, strict=True):
        assert row["iteration_ms"] == own.iteration_ms
        assert row["interval_ms"] == (own.interval_ms and list(own.interval_ms))
    assert "Predictions of PipeMorph on h800 were" in document["advice"]
    table = stdout("compare", *SLOW, "--testbed", "h800")
    low, high = expected["pipemorph"].interval_ms or (0, 0)
    assert "90 % in" in table
    assert f" {low:.0f}–{high:.0f} " in table
    assert "90 % in" not in stdout("compare", *SLOW)


def test_simulate_runs_what_messages_cost_and_plans_for_it() -> None:
    for kind in ("ideal", "nccl", "exchange", "delegated", "isolated"):
        over = H800.transport(kind)
        schedule = plan(SCENARIO, "pipemorph", over=over)
        run = json.loads(
            stdout("simulate", *SLOW, "--planner", "pipemorph", "--transport", kind, "--testbed",
                   "h800", "--json")
        )  # fmt: skip
        assert run["iteration_ms"] == simulate(SCENARIO, schedule, over).iteration_ms


@pytest.mark.parametrize("testbed", ["a10", "h800"])
def test_plan_makes_the_plan_that_compare_runs(testbed: str) -> None:
    plan_it = ["plan", *SLOW, "--testbed", testbed, "-o", "p.json"]
    made = json.loads(stdout(*plan_it, "--json"))
    row = compare(Scenario().with_delay(20, links=[0]), ["pipemorph"], testbed=testbed).rows[0]
    assert load_plan("p.json") == row.schedule
    assert made["result"]["iteration_ms"] == row.iteration_ms
    assert made["result"]["bound_ms"] >= row.lower_bound_ms * (1 - 1e-9)
    run = ["simulate", "p.json", *SLOW, "--transport", "delegated", "--testbed", testbed, "--json"]
    assert json.loads(stdout(*run))["iteration_ms"] == row.iteration_ms
    assert f"{milliseconds(row.iteration_ms)} (transport delegated)" in stdout(*plan_it)


def test_budgets_and_trade_offs_are_for_messages_through_delegates() -> None:
    cost = float(H800.transport("delegated").costs_ms(SCENARIO)[0])
    links = json.loads(stdout("budget", *SLOW, "--testbed", "h800", "--json"))["plan"]["links"]
    assert [link["budget_ms"] for link in links] == pytest.approx([10 - cost] * 3)
    points = ["plan", "--pareto", *SLOW, "--microbatches", "6", "--testbed", "h800", "--json"]
    fastest = json.loads(stdout(*points))["points"][-1]["iteration_ms"]
    six = Scenario(microbatches=6).with_delay(20, links=[0]).with_message_cost(cost)
    assert fastest <= simulate(six, plan(six, "pipemorph")).iteration_ms * (1 + 1e-9)


def test_the_size_of_messages_is_the_user_s_where_there_is_one() -> None:
    def sizes(*options: str) -> list[float]:
        command = ["compare", "--testbed", "h800", "--systems", "1f1b", "--json", *options]
        found: list[float] = json.loads(stdout(*command))["testbed"]["message_bytes"]
        return found

    assert sizes("--message-mib", "2.5") == [2.5 * MIB] * 3
    assert sizes("--message-bytes", "7") == [7] * 3
    save_scenario(Scenario(message_bytes=[1, 0, 3]), "s.toml")
    assert sizes("--scenario", "s.toml") == [1, H800.message_bytes, 3]
    assert sizes("--scenario", "s.toml", "--message-mib", "1") == [MIB] * 3
    assert sizes("--chunks", "2", "--systems", "interleaved-1f1b") == [H800.message_bytes] * 3


def test_other_options_go_before_the_testbed() -> None:
    command = ["simulate", "--planner", "1f1b", "--transport", "exchange", "--testbed", "h800"]
    run = json.loads(stdout(*command, "--bytes-per-ms", "1e6", "--json"))
    over = Exchange(bytes_per_ms=1e6)
    scenario = SCENARIO.without_delay()
    assert run["iteration_ms"] == simulate(scenario, plan(scenario, "1f1b"), over).iteration_ms
    alone, shared = (
        json.loads(stdout("compare", "--testbed", "h800", "--ranks-per-host", n, "--json"))
        for n in ("1", "8")
    )
    assert shared["testbed"]["delegated_ms"] > alone["testbed"]["delegated_ms"]
    assert shared["testbed"]["ranks_per_host"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--testbed h801", "unknown testbed 'h801': one of h800, a10, or a calibration file"),
        ("--testbed none.toml", "none.toml"),
        ("--testbed=", "unknown testbed ''"),
        ("--testbed h800 --message-mib 0", "a size of 0 stands for none given"),
        ("--ranks-per-host 2", "--ranks-per-host is for --testbed"),
        ("--testbed h800 --ranks-per-host 0", "--ranks-per-host"),
        ("--message-mib 1 --message-bytes 1", "give --message-mib or --message-bytes, not both"),
        ("--message-mib -1", "--message-mib must be a size of at least 0"),
        ("--message-bytes nan", "--message-bytes must be a size of at least 0"),
    ],
)
@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_is_one_line(name: str, options: str, message: str) -> None:
    assert message in error(*COMMANDS[name], *options.split())


@pytest.mark.parametrize("name", ["compare", "plan", "explain", "simulate"])
def test_a_testbed_says_what_messages_cost(name: str) -> None:
    cost = [] if name == "plan" else ["--base", "1ms"]
    command = [*COMMANDS[name], "--testbed", "h800", *(cost or ["--message-cost", "1ms"])]
    assert "--message-cost contradicts --testbed, which says what messages cost" in error(*command)


def test_a_production_trace_runs_where_it_ran() -> None:
    Path("t.parquet").write_bytes(b"PAR1")
    assert "--testbed is for scenarios" in error("explain", "t.parquet", "--testbed", "h800")


def test_the_shell_knows_the_testbeds() -> None:
    assert _complete("") == ["h800", "a10"]
    assert _complete("h") == ["h800"]


# -- one's own ---------------------------------------------------------------------------

HEADER = (
    "testbed,model,stages,microbatches,gpus_per_node,message_mib,system,slow_links,slow_sends,"
    "delay_ms,delegates_per_direction,healthy_ms,slow_ms\n"
)
TWO = HEADER + (
    "mine,7B,4,12,1,10,1f1b,0,0>1 1>0,30,0,425.3,802.0\n"
    "mine,7B,4,12,1,10,pipemorph-cpu,0,0>1 1>0,30,3,396.0,539.2\n"
)


def test_two_runs_make_a_testbed() -> None:
    Path("runs.csv").write_text(TWO)
    result = invoke("calibrate", "runs.csv", "-o", "mine.toml")
    assert result.exit_code == 0, result.output
    assert "mine: a single setting, so nothing says how far off others are" in result.stdout
    assert "leaving one setting out" not in result.stdout
    text = stdout("calibrate", "runs.csv", "-o", "mine.toml", "--no-leave-out")
    assert "single setting" not in text
    testbed = load_calibration("mine.toml").testbeds["mine"]
    assert testbed.message_bytes == 10 * MIB
    assert testbed.errors == {}
    document = json.loads(stdout("compare", *SLOW, "--testbed", "mine.toml", "--json"))
    assert document["testbed"]["name"] == "mine"
    assert [row["interval_ms"] for row in document["rows"]] == [None] * 4
    text = stdout("compare", *SLOW, "--testbed", "mine.toml")
    assert "How far off predictions of PipeMorph on mine are is not known." in text
    assert "90 % in" not in text


def test_what_runs_cannot_tell_is_said() -> None:
    single = "a single run, and a constant needs 2: none is fitted"
    for row, other in ((1, "through delegates"), (2, "over NCCL")):
        lines = TWO.splitlines()
        Path("runs.csv").write_text(f"{lines[0]}\n{lines[row]}\n")
        text = stdout("calibrate", "runs.csv", "-o", "mine.toml")
        assert "over 1 run\n" in text
        assert f"mine: {single}" in text
        assert f"mine: no run is {other}, so what messages cost there is taken as nothing" in text
    Path("runs.csv").write_text(TWO)
    text = stdout("calibrate", "runs.csv", "-o", "mine.toml")
    assert single not in text
    assert "taken as nothing" not in text


def test_settings_left_out_tell_how_far_off_predictions_are() -> None:
    Path("runs.csv").write_text(TWO + TWO.removeprefix(HEADER).replace(",30,", ",60,"))
    text = stdout("calibrate", "runs.csv", "-o", "mine.toml")
    assert "leaving one setting out" in text
    errors = load_calibration("mine.toml").testbeds["mine"].errors
    assert {system: len(own) for system, own in errors.items()} == {"1f1b": 2, "pipemorph-cpu": 2}


def test_a_file_of_several_asks_which() -> None:
    beds = {name: shipped.testbed_named(name) for name in ("a10", "h800")}
    save_calibration(Calibration(beds, (), 0.0), "both.toml")
    assert "give one, as in both.toml:NAME" in error("compare", "--testbed", "both.toml")
    one, other = (
        json.loads(stdout("compare", *SLOW, "--testbed", name, "--json"))
        for name in ("a10", "both.toml:a10")
    )
    assert one["testbed"] == other["testbed"]
