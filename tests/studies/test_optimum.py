"""The optimum from the best plan, and the command that shows it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipesim.cli.app import app
from pipesim.documents.plan_json import load_plan
from pipesim.engine import simulate
from pipesim.scenario import Scenario
from pipesim.studies.optimum import best_within_limits, optimum
from tests.processes import PATIENCE_S, Background, waited_for

SLOW = ("--delay", "20ms", "--link", "0")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, ["optimal", *args], prog_name="pipesim")


def test_the_incumbent_keeps_within_the_limits() -> None:
    scenario = Scenario(activation_limit=4).with_delay(40, links=[0])
    best = best_within_limits(scenario)
    assert best is not None
    assert (simulate(scenario, best).peak_activations <= 4).all()
    assert best_within_limits(Scenario(activation_limit=0.5)) is None


def test_a_limited_optimum_is_below_every_plan() -> None:
    scenario = Scenario(activation_limit=5).with_delay(20, links=[1])
    best = best_within_limits(scenario)
    assert best is not None
    result = optimum(scenario, threads=2)
    assert (result.status, result.objective_ms) == ("optimal", 440)
    assert result.objective_ms <= simulate(scenario, best).iteration_ms


@pytest.mark.parametrize(("args", "value"), [(SLOW, 410), ((), 390)])
@pytest.mark.parametrize("solver", ["highs", "cpsat"])
def test_json(args: tuple[str, ...], value: float, solver: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    result = invoke(*args, "--solver", solver, "--json", "-o", str(file))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document) == [
        "status", "iteration_ms", "bound_ms", "gap", "solver", "seconds", "schedule",
    ]  # fmt: skip
    assert document["status"] == "optimal"
    assert document["iteration_ms"] == document["bound_ms"] == value
    assert document["gap"] == 0
    assert document["solver"] == solver
    assert document["seconds"] > 0
    assert document["schedule"] == json.loads(file.read_text())
    scenario = Scenario().with_delay(20 if args else 0, links=[0])
    assert simulate(scenario, load_plan(file)).iteration_ms == value


def test_text() -> None:
    result = invoke("--slow", "1=20ms", "--memory-limit", "5")
    assert result.exit_code == 0, result.output
    within = "optimal: no order of the operators within the activation limits is shorter"
    assert within in " ".join(result.stdout.split())
    assert "  440 ms where nothing blocks and messages cost nothing (transport" in result.stdout
    assert "optimal: no order of the operators is shorter" in " ".join(invoke().stdout.split())


def test_time_may_run_out() -> None:
    shape = ("--stages", "6", "--microbatches", "16", "--slow", "2=35ms", "--slow", "4=13ms")
    times = ("--forward", "9ms,11ms,7ms,13ms,12ms,8ms", "--activation-limit", "7")
    result = invoke(*shape, *times, "--time-limit", "10ms", "--json")
    document = json.loads(result.stdout)
    assert document["status"] == "feasible"
    assert document["bound_ms"] < document["iteration_ms"]
    assert document["gap"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--activation-limit", "0.5"), "device 0 may hold 0.5 activations"),
        (("--time-limit", "0s"), "the time limit must be above 0 seconds"),
        (("--time-limit", "60"), "--time-limit: '60' has no unit"),
        (("--solver", "abacus"), "unknown solver 'abacus': one of highs, cbc, cpsat"),
        (("--threads", "0"), "at least 1 thread"),
    ],
)
def test_errors_are_one_line(args: tuple[str, ...], message: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_missing_solver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    result = invoke("--solver", "cpsat")
    assert result.exit_code == 2
    assert "pip install 'pipesim[cpsat]'" in result.stderr


TELLS_WHEN_IT_SOLVES = """\
from pathlib import Path
from milp import ctrl_c

run = ctrl_c.run

def telling(work, *more):
    def solve():
        Path("begun").touch()
        work()
    run(solve, *more)

ctrl_c.run = telling
from pipesim.cli import main
main()
"""


@pytest.mark.usefixtures("in_folder")
def test_ctrl_c_shows_what_is_known(tmp_path: Path) -> None:
    times = "9ms,11ms,7ms,13ms,12ms,8ms,10ms,9ms"
    args = ["optimal", "--stages", "8", "--microbatches", "24", "--slow", "3=35ms", "--json",
            "--forward", times, "--activation-limit", "9"]  # fmt: skip
    args += ["--time-limit", f"{PATIENCE_S:g}s"]
    with Background(tmp_path / "run", sys.executable, "-c", TELLS_WHEN_IT_SOLVES, *args) as run:
        waited_for(Path("begun").exists, "the solver to be at work")
        run.process.send_signal(signal.SIGINT)
        run.ended()
    assert run.process.returncode == 2, run.said
    document = json.loads(run.output)
    assert document["status"] == "feasible"
    assert document["schedule"] is not None
    assert "interrupted" in run.said


def test_unequal_microbatches_may_overtake() -> None:
    """In micro-batch order 45 ms is the best; with the second first it takes 26."""
    scenario = Scenario(
        stages=2, microbatches=2, forward_ms=[[20, 1], [1, 20]], backward_ms=1, weight_ms=1
    )
    result = optimum(scenario)
    assert (result.status, result.objective_ms, result.bound_ms) == ("optimal", 26, 26)
