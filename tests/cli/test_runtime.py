"""``--runtime``: what it changes in each command, what wins over it, and what export warns of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipesim import compare, evaluate, plan, simulate
from pipesim.actions import parse_action
from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.explain.attribution import attribute
from pipesim.formats.torch_csv import load_torch_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.studies.advice import advised
from pipesim.target import Target, target
from pipesim.transport import Delegated, Ideal, Nccl
from tests.cli.running import error, invoke, stdout

pytestmark = pytest.mark.usefixtures("in_folder")

SLOW = ["--delay", "20ms", "--link", "0", "--injection", "latency"]
TORCH = target("torch")
EXAMPLE = Scenario().with_delay(20, links=[0], kind="latency")
THERE = TORCH.adapted(EXAMPLE)


def made(*args: str) -> Path:
    assert invoke("plan", *args, "-o", "plan.json", "-q").exit_code == 0
    return Path("plan.json")


# -- planning and simulating -------------------------------------------------------------


def test_a_plan_says_what_it_is_for() -> None:
    assert load_plan(made(*SLOW, "--runtime", "torch")).assumed.runtime == "torch"
    assert "runtime" not in made(*SLOW).read_text()
    stdout("optimal", "--microbatches", "4", "--runtime", "torch", "-o", "best.json")
    assert load_plan("best.json").assumed.runtime == "torch"


@pytest.mark.parametrize(
    ("args", "over"),
    [
        ([], Nccl(p2p_streams="peer", fused=False)),
        (["--transport", "ideal"], Ideal()),
        (["--p2p-streams", "device"], Nccl(fused=False)),
        (["--message-cost", "2ms"], Nccl(p2p_streams="peer", fused=False, base_ms=2)),
        (["--transport", "delegated", "--base", "1ms"], Delegated(base_ms=1)),
    ],
)
def test_transports_of_options_win(args: list[str], over: Ideal | Nccl | Delegated) -> None:
    told = [*SLOW, "--runtime", "torch", *args]
    expected = plan(EXAMPLE, "pipemorph", over=over, runtime=TORCH)
    assert load_plan(made(*told)) == expected
    shown = json.loads(stdout("simulate", "plan.json", *told, "--json"))
    run = simulate(THERE, expected, over)
    assert shown["transport"] == over.name
    assert shown["iteration_ms"] == run.iteration_ms
    assert shown["peak_activations"] == run.peak_activations.tolist()
    planned = json.loads(stdout("plan", *told, "--json"))
    assert planned["result"]["iteration_ms"] == run.iteration_ms


def test_megatron_exchanges_what_it_runs_itself() -> None:
    for planner, over in (("1f1b", "exchange"), ("zerobubble", "nccl")):
        made("--planner", planner, "--runtime", "megatron")
        for what in (["plan.json"], ["--planner", planner]):
            shown = stdout("simulate", *what, "--runtime", "megatron", "--json")
            assert json.loads(shown)["transport"] == over
    assert json.loads(stdout("simulate", "plan.json", "--runtime", "ideal", "--json")) == (
        json.loads(stdout("simulate", "plan.json", "--json"))
    )


def test_a_testbed_says_what_messages_cost() -> None:
    told = [*SLOW, "--runtime", "torch", "--testbed", "a10", "--planner", "zerobubble"]
    shown = json.loads(stdout("simulate", *told, "--json"))
    assert shown["transport"] == "nccl"
    assert shown["iteration_ms"] > evaluate(
        THERE, plan(EXAMPLE, "zerobubble", runtime=TORCH), TORCH.transport()
    )


def test_optimal_proves_what_torch_can_do() -> None:
    shown = json.loads(stdout("optimal", *SLOW, "--runtime", "torch", "--json"))
    assert (shown["status"], shown["iteration_ms"]) == ("optimal", 410)


def test_what_is_cut_into_chunks_is_adapted_once_cut() -> None:
    told = [
        "--planner",
        "zerobubble",
        "--chunks",
        "2",
        "--runtime",
        "torch",
        "--transport",
        "ideal",
    ]
    cut = TORCH.adapted(Scenario().interleaved(2))
    expected = evaluate(cut, plan(cut, "zerobubble"))
    assert json.loads(stdout("simulate", *told, "--json"))["iteration_ms"] == expected
    made(*told[:4])
    again = stdout("simulate", "plan.json", *told[2:], "--json")
    by_hand = evaluate(cut, plan(Scenario().interleaved(2), "zerobubble"))
    assert json.loads(again)["iteration_ms"] == by_hand


def test_explain_removes_causes_first() -> None:
    """No stage is slower than others, though the first one does its backward otherwise."""
    made("--planner", "zerobubble")
    told = ["plan.json", *SLOW, "--runtime", "torch", "--transport", "ideal"]
    shown = json.loads(stdout("explain", *told, "--json"))
    schedule = plan(EXAMPLE, "zerobubble")
    assert shown == attribute(EXAMPLE, schedule, runtime=TORCH).as_dict()
    parts = {cause["cause"]: cause["cumulative_ms"] for cause in shown["causes"]}
    healthy_ms = evaluate(TORCH.adapted(Scenario()), schedule)
    assert (shown["iteration_ms"], shown["ideal_ms"]) == (470, healthy_ms)
    assert (parts["stage imbalance"], parts["dependency"]) == (0, 470 - healthy_ms)


def test_the_trade_off_holds_over_the_runtimes_transport() -> None:
    shown = json.loads(
        stdout("plan", "--pareto", "--microbatches", "4", *SLOW, "--runtime", "torch", "--json")
    )
    short = TORCH.adapted(EXAMPLE.replaced(microbatches=4, forward_ms=10, backward_ms=10,
                                           weight_ms=10, fused_backward_ms=None))  # fmt: skip
    for point in shown["points"]:
        capped = short.replaced(activation_limit=point["peak"])
        again = plan(capped, "search", over=TORCH.transport())
        assert point["iteration_ms"] == evaluate(short, again, TORCH.transport())


# -- comparing ---------------------------------------------------------------------------


def test_systems_of_a_runtime() -> None:
    shown = json.loads(stdout("compare", *SLOW, "--runtime", "torch", "--json"))
    rows = {row["system"]: row["iteration_ms"] for row in shown["rows"]}
    assert list(rows) == ["1f1b:nccl", "zerobubble:nccl", "pipemorph:nccl"]
    assert rows == {
        name: evaluate(
            THERE,
            plan(EXAMPLE, name.split(":")[0], over=TORCH.transport(), runtime=TORCH),
            TORCH.transport(),
        )
        for name in rows
    }
    assert (shown["runtime"], shown["lower_bound_ms"]) == ("torch", 410)
    assert "Assumes stock torch and messages" in shown["advice"]
    named = stdout("compare", *SLOW, "--runtime", "torch", "--systems", "pipemorph", "--json")
    assert [row["transport"] for row in json.loads(named)["rows"]] == ["delegated"]
    text = stdout("compare", *SLOW, "--runtime", "torch")
    assert "stock torch runs the whole backward of the first stage in W\n" in text


def test_a_runtime_with_delegates_has_the_usual_systems() -> None:
    usual, there = compare(EXAMPLE), compare(EXAMPLE, runtime=target("megatron"))
    assert [row.iteration_ms for row in there.rows] == [row.iteration_ms for row in usual.rows]
    assert "runtime" not in usual.as_dict()


@pytest.mark.parametrize("runtime", [None, TORCH])
def test_a_plan_for_instant_messages_is_not_advised_where_they_are_not(
    runtime: Target | None,
) -> None:
    """Within six activations search reaches 410 ms, but not where a message takes 2 ms."""
    limited = EXAMPLE.replaced(activation_limit=6)
    systems = ["pipemorph:delegated", "search:delegated", "zerobubble:delegated"]
    over, there = Delegated(base_ms=2), (runtime or target("ideal")).adapted(limited)
    instant = compare(limited, systems, runtime=runtime)["search:delegated"]
    costly = compare(limited, systems, message_cost_ms=2, runtime=runtime)
    best = advised(costly)
    assert best is not None
    meant = costly["search:delegated"]
    assert meant.iteration_ms == evaluate(there, meant.schedule, over)
    assert meant.iteration_ms <= evaluate(there, instant.schedule, over)
    assert best.iteration_ms <= meant.iteration_ms * 1.001


def test_a_budget_counts_what_messages_cost() -> None:
    free, costly = (
        json.loads(stdout("budget", *SLOW, *more, "--json"))
        for more in ([], ["--message-cost", "2ms"])
    )
    assert costly["message_cost_ms"] == 2
    assert costly["plan"]["iteration_ms"] > free["plan"]["iteration_ms"]
    there = stdout("budget", *SLOW, "--runtime", "torch", "--json")
    expected = evaluate(THERE, plan(EXAMPLE, "zerobubble", runtime=TORCH))
    assert json.loads(there)["plan"]["iteration_ms"] == expected


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_a_plan_for_another_runtime_is_not_run_without_a_word(command: str) -> None:
    told = [command, "plan.json", *SLOW]
    made(*SLOW, "--planner", "zerobubble", "--runtime", "torch")
    said = "this plan was made for stock torch: --runtime torch runs it as that does\n"
    for elsewhere in ([], ["--runtime", "megatron"]):
        assert invoke(*told, *elsewhere).stderr == said
    for quietly in (["--runtime", "torch"], ["--quiet"]):
        assert invoke(*told, *quietly).stderr == ""
    made(*SLOW, "--planner", "zerobubble")
    assert invoke(*told).stderr == ""


# -- exporting ---------------------------------------------------------------------------


def test_export_warns_of_a_plan_for_something_else() -> None:
    made("--planner", "zerobubble")
    told = ["plan.json", "--format", "torch-csv", "-o", "out.csv"]
    result = invoke("export", *told, *SLOW, "--transport", "ideal")
    assert (result.exit_code, result.stdout) == (0, "")
    warning, wrote = result.stderr.splitlines()
    assert wrote == "wrote out.csv"
    assert warning == (
        "warning: stock torch runs the whole backward of the first stage in W, and this plan was "
        "made for an ideal runtime: it takes 470 ms there instead of 440 ms, holding up to 12 "
        "activations instead of 9.5 on device 0, and 410 ms if planned for it (pipesim plan "
        "--planner zerobubble --runtime torch); predicted over ideal for 4 stages × 12 "
        "micro-batches · F 10, B 10, W 10 ms · link 0: 20 ms each way"
    )
    assert invoke("export", *told, "--quiet").stderr == ""
    assert invoke("export", *told, "--runtime", "ideal").stderr == "wrote out.csv\n"


def test_it_checks_with_the_delays_that_the_plan_was_made_for() -> None:
    made(*SLOW)
    result = invoke("export", "plan.json", "--format", "torch-csv-comms", "-o", "out.csv")
    assert "link 0: 20 ms each way\n" in result.stderr


@pytest.mark.parametrize("args", [["--planner", "1f1b"], ["--runtime", "torch"]])
def test_it_has_nothing_to_warn_of(args: list[str]) -> None:
    made(*SLOW, *args)
    result = invoke("export", "plan.json", "--format", "torch-csv", "-o", "out.csv")
    assert (result.exit_code, result.output) == (0, "wrote out.csv\n")


def test_export_says_that_torch_has_no_batches() -> None:
    """A fused first stage runs everywhere as planned, so nothing else warns of this plan."""
    first = ["0F0", "0F1", "(0SEND_F0;0SEND_F1)BATCH", "0RECV_B0", "0BW0", "0RECV_B1", "0BW1"]
    last = ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1BW0", "1SEND_B0", "1BW1", "1SEND_B1"]
    rows = [list(map(parse_action, row)) for row in (first, last)]
    save_plan(Schedule.of_actions(rows, (0, 1), 2), "plan.json")
    told = ["export", "plan.json", "--format", "torch-csv-comms", "-o", "out.csv"]
    assert invoke(*told).stderr == (
        "taken apart: 1 batch; torch launches each message alone (--runtime torch plans so)\n"
        "wrote out.csv\n"
    )


def test_export_plans_for_torch() -> None:
    told = ["--planner", "zerobubble", *SLOW, "-o", "out.csv"]
    result = invoke("export", *told, "--format", "torch-csv")
    assert (result.exit_code, result.output) == (0, "wrote out.csv\n")
    expected = plan(EXAMPLE, "zerobubble", over=TORCH.transport(), runtime=TORCH)
    assert load_torch_csv("out.csv").orders == expected.orders
    assert invoke("export", *told, "--format", "torch-csv", "--runtime", "ideal").exit_code == 0
    assert load_torch_csv("out.csv").orders == plan(EXAMPLE, "zerobubble").orders
    assert invoke("export", *told, "--format", "timeline-csv").exit_code == 0


# -- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("plan --runtime jax", "--runtime: unknown runtime 'jax': one of torch, megatron, ideal"),
        ("compare --runtime jax", "unknown runtime 'jax'"),
        ("compare --dp 2 --runtime torch", "--runtime is not for --dp"),
        ("plan --runtime torch --delegates 2", "--delegates is for delegated, not for nccl"),
        ("plan --runtime torch --testbed h800 --base 1ms", "--message-cost contradicts --testbed"),
        (
            "replay --planner zerobubble --runtime torch --transport nccl --compute model",
            "--runtime torch and --compute model contradict each other",
        ),
        ("replay --planner zerobubble --runtime torch", "replay needs --transport nccl"),
    ],
)
def test_errors(args: str, words: str) -> None:
    assert words in error(*args.split())
