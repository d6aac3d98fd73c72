"""One name, one meaning: of a system however it is spelled, of an option in every command, and of
an activation wherever it is counted."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipesim import Scenario, compare, plan, simulate
from pipesim.documents.scenario_toml import save_scenario
from pipesim.plot import in_flight
from pipesim.studies.systems import SYSTEMS
from pipesim.transport import Delegated, Exchange, Ideal, Nccl
from tests.cli.running import error, stdout

pytestmark = pytest.mark.usefixtures("in_folder")

NAMES = {"system", "title", "plan_seconds"}
"""What of a row may depend on how its system is spelled, and the time that planning takes."""


def rows(*args: str) -> dict[str, dict[str, object]]:
    document = json.loads(stdout("compare", *args, "--json"))
    return {row["system"]: row for row in document["rows"]}


def result(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in NAMES}


# -- systems -----------------------------------------------------------------------------


def test_interleaved_1f1b_is_the_same_in_both_spellings() -> None:
    both = rows("--microbatches", "8", "--systems", "interleaved-1f1b,interleaved-1f1b:nccl")
    for row in both.values():
        assert row["iteration_ms"] == 285
        assert row["peak_activations"] == [5.5, 4.5, 3.5, 2.5]
        assert row["chunks"] == 2
    assert len({json.dumps(result(row)) for row in both.values()}) == 1


OPTIONS = {
    "none": "",
    "slow": "--slow 1=15ms",
    "chunks": "--slow 1=15ms --chunks 3",
    "one chunk": "--chunks 1",
    "cost": "--slow 0=20ms --message-cost 2ms",
    "limited": "--slow 2=20ms --activation-limit 6",
    "transports": "--slow 0=20ms --unfused --p2p-streams peer --delegates 1 --copy 1ms",
    "groups": "--microbatches 9 --group-size 5 --slow 0=20ms",
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_system_is_its_planner_and_its_transport(options: str) -> None:
    spelled = {f"{one.planner}:{one.transport}": one.name for one in SYSTEMS.values()}
    found = rows("--systems", ",".join([*spelled, *SYSTEMS]), *options.split())
    for pair, name in spelled.items():
        assert result(found[pair]) == result(found[name])


SIMULATED = {
    "1f1b:exchange": "--base 2ms --bytes-per-ms 1e6",
    "interleaved-1f1b:nccl": "--unfused --p2p-streams direction",
    "interleaved-1f1b:delegated": "--chunks 3 --delegates 2",
    "zerobubble:nccl": "--chunks 2 --base 1ms --eager-bytes 1e9",
    "pipemorph:delegated": "--message-cost 2ms --copy 1ms --copy-bytes-per-ms 1e6",
    "pipemorph:nccl": "--base 1ms",
    "pipemorph:exchange": "",
    "search:delegated": "--delegates 1 --only-slow",
    "zb-h2:isolated": "--compute-slowdown 1.5",
    "gpipe:ideal": "--base 3ms",
}


@pytest.mark.parametrize("name", SIMULATED)
def test_a_row_is_what_simulate_says_with_the_same_options(name: str) -> None:
    save_scenario(Scenario(microbatches=8, message_bytes=2e6), "s.toml")
    options = ["--scenario", "s.toml", "--slow", "1=15ms", *SIMULATED[name].split()]
    planner, _, transport = name.partition(":")
    (row,) = rows(*options, "--systems", name).values()
    one = json.loads(
        stdout("simulate", *options, "--planner", planner, "--transport", transport, "--json")
    )
    for key in ("iteration_ms", "lower_bound_ms", "bubble_fraction", "warmup", "slackness",
                "peak_activations", "host_activations", "stage_span_ms"):  # fmt: skip
        assert row[key] == one[key], key


# -- options -----------------------------------------------------------------------------


def test_options_are_for_every_row_that_has_them() -> None:
    scenario = Scenario(microbatches=8, message_bytes=2e6).with_delay(15, [1])
    save_scenario(scenario, "s.toml")
    found = rows("--scenario", "s.toml", "--systems", "1f1b,zerobubble,pipemorph", "--base", "2ms",
                 "--bytes-per-ms", "1e6", "--unfused", "--delegates", "1")  # fmt: skip
    transports = {
        "1f1b": Exchange(base_ms=2, bytes_per_ms=1e6),
        "zerobubble": Nccl(base_ms=2, bytes_per_ms=1e6, fused=False),
        "pipemorph": Delegated(base_ms=2, bytes_per_ms=1e6, delegates=1),
    }
    for name, over in transports.items():
        told = scenario.with_message_cost(2)
        schedule = plan(told, SYSTEMS[name].planner, over=replace(over, base_ms=0))
        assert found[name]["iteration_ms"] == simulate(scenario, schedule, over).iteration_ms


def test_a_default_row_that_is_left_out_is_named() -> None:
    text = stdout("compare", "--chunks", "2", "--microbatches", "9")
    assert "No row for Interleaved 1F1B: interleaved-1f1b needs 2 groups" in text


def test_the_cost_of_messages_has_two_names_and_one_meaning() -> None:
    slow = ["--delay", "20ms", "--link", "0"]
    for command in (["compare"], ["plan"], ["simulate", "--planner", "pipemorph"], ["optimal"]):
        documents = [
            json.loads(stdout(*command, *slow, "--microbatches", "4", option, "2ms", "--json"))
            for option in ("--message-cost", "--base")
        ]
        for document in documents:
            document.pop("seconds", None)
            for row in document.get("rows", ()):
                row.pop("plan_seconds")
        assert documents[0] == documents[1]
    assert documents[0]["message_cost_ms"] == 2
    planned = json.loads(stdout("plan", *slow, "--base", "2ms", "--json"))
    assert planned["result"]["iteration_ms"] == 416
    run = json.loads(stdout("simulate", *slow, "--planner", "pipemorph", "--base", "2ms", "--json"))
    assert run["iteration_ms"] == run["lower_bound_ms"] == 416


def test_the_advice_says_that_messages_take_no_time_only_where_they_do() -> None:
    save_scenario(Scenario(message_bytes=2e6), "s.toml")
    compared = ["compare", "--scenario", "s.toml", "--slow", "0=20ms"]
    free = "messages that take no time besides the delay"
    assert free in stdout(*compared)
    for cost in (["--base", "1ms"], ["--copy", "1ms"], ["--copy-bytes-per-ms", "1e6"]):
        assert free not in stdout(*compared, *cost)


def test_the_cost_of_messages_is_added_to_that_of_a_transport() -> None:
    scenario = Scenario().with_delay(20, [0])
    both = compare(scenario, ["gpipe:ideal"], transports=[Ideal(base_ms=1)], message_cost_ms=2)
    assert both.rows[0].over == Ideal(base_ms=3)
    assert both.rows[0].iteration_ms == compare(
        scenario, ["gpipe:ideal"], message_cost_ms=3
    ).rows[0].iteration_ms  # fmt: skip


def test_chunks_are_for_the_planners_that_take_some() -> None:
    found = rows("--chunks", "3", "--systems", "1f1b,interleaved-1f1b,zerobubble")
    assert [row["chunks"] for row in found.values()] == [1, 3, 3]
    assert list(rows("--chunks", "2")) == [
        "interleaved-1f1b", "zerobubble", "pipemorph-cpu", "pipemorph",
    ]  # fmt: skip
    one = json.loads(stdout("simulate", "--planner", "interleaved-1f1b", "--json"))
    assert one["iteration_ms"] == 405
    assert "405 ms" in stdout("plan", "--planner", "interleaved-1f1b")
    uncut = stdout("plan", "--planner", "interleaved-1f1b", "--chunks", "1")
    assert "450 ms" in uncut


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("compare --systems 1f1b --unfused", "--unfused is for nccl, not for exchange"),
        (
            "compare --systems 1f1b,zerobubble:ideal --delegates 2",
            "--delegates is for delegated, not for exchange or ideal",
        ),
        ("compare --compute-slowdown 2", "--compute-slowdown is for isolated, not for"),
        ("compare --systems 1f1b,zb-h1:nccl --chunks 2", "--chunks is not for 1f1b or zb-h1"),
        ("compare --group-size 4", "--group-size is for interleaved-1f1b, not for 1f1b or"),
        ("compare --eager-bytes -1", "--eager-bytes: nccl: eager_bytes must not be -1.0"),
        ("compare --delegates 0", "--delegates: delegated: delegates must be above 0"),
        ("compare --p2p-streams x", "--p2p-streams: nccl: unknown p2p_streams 'x'"),
        ("compare --copy 3", "--copy: '3' has no unit"),
        ("compare --base 3", "--message-cost: '3' has no unit"),
        ("simulate --planner 1f1b --chunks 2", "1f1b runs one stage on each device"),
        ("plan --planner zb-h1 --chunks 2", "zb-h1 runs one stage on each device"),
        ("plan --planner gpipe --group-size 2", "gpipe takes no group size"),
        ("plan --pareto --group-size 2", "--pareto plans by search: leave out --group-size"),
        ("simulate --planner 1f1b --transport nccl --eager-bytes nan", "--eager-bytes: nccl"),
        ("compare --stages x", "'--stages': it must be a whole number (see"),
        ("compare --bytes-per-ms x", "'--bytes-per-ms': it must be a number (see"),
        ("compare --chunks 0", "'--chunks': it must be at least 1 (see"),
        ("replay --planner 1f1b --port 70000", "'--port': it must be at most 65535 (see"),
    ],
)
def test_an_error_names_the_option(args: str, words: str) -> None:
    line = error(*args.split())
    assert words in line
    assert "Input" not in line


# -- activations -------------------------------------------------------------------------


def test_peaks_are_micro_batches_of_a_device_in_every_command() -> None:
    """GPipe holds all six micro-batches on every device, however its stages are cut."""
    whole = Scenario(microbatches=6)
    v = Scenario(stages=8, microbatches=6, placement=Scenario.place("v", 4, 2))
    uneven = Scenario(stages=5, microbatches=6, placement=[0, 1, 2, 3, 1])
    for number, scenario in enumerate((whole, whole.interleaved(3), v, uneven)):
        save_scenario(scenario, f"{number}.toml")
        limited = ["--scenario", f"{number}.toml", "--activation-limit", "4"]
        run = ["simulate", *limited, "--planner", "gpipe"]
        document = json.loads(stdout(*run, "--json"))
        assert document["peak_activations"] == [6] * 4
        assert document["host_activations"] == [2] * 4
        text = stdout(*run, "--quiet").splitlines()
        assert [line.split()[-2:] for line in text[3:7]] == [["6", "2"]] * 4
        assert stdout(*run).splitlines()[0].endswith("activation limit 4")
        stdout("compare", *limited, "--systems", "gpipe:ideal", "--csv", "r.csv", "-q")
        with Path("r.csv").open(newline="") as file:
            (line,) = csv.DictReader(file)
        assert line["peak_activations"] == "6.0 6.0 6.0 6.0"
        assert line["host_activations"] == "2.0 2.0 2.0 2.0"
        over = error("plan", *limited, "--planner", "gpipe")
        assert "it holds 6 activations on device" in over
        assert "the limit is 4" in over
        stdout("plan", "--planner", "gpipe", "--scenario", f"{number}.toml", "-o", "p.json", "-q")
        alone = json.loads(stdout("simulate", "p.json", "--json"))
        assert alone["peak_activations"] == [6] * 4
        figure = in_flight({"GPipe": simulate(scenario, plan(scenario, "gpipe"))})
        assert [text.get_text() for text in figure.axes[0].texts].count("6") == 4


def test_memory_is_traded_in_the_same_unit() -> None:
    for cut in ([], ["--chunks", "2"]):
        options = ["--stages", "2", "--microbatches", "3", *cut]
        document = json.loads(stdout("plan", "--pareto", *options, "--json"))
        peaks = [point["peak"] for point in document["points"]]
        assert peaks[0] == 1
        assert peaks[-1] <= 3


@pytest.mark.parametrize("command", ["plan --planner zerobubble", "optimal", "plan --pareto"])
def test_a_limit_below_one_micro_batch_fits_nothing(command: str) -> None:
    words = [*command.split(), "--stages", "2", "--microbatches", "2", "--chunks", "2"]
    if "pareto" not in command:
        assert "may hold 0.5 activation" in error(*words, "--activation-limit", "0.5")
        assert "needs 1 there" in error(*words, "--activation-limit", "0.5")
    assert stdout(*words, "--activation-limit", "1")
