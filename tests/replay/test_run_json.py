from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pipesim.errors import FormatError
from pipesim.replay.prepare import prepare
from pipesim.replay.run import run_json
from pipesim.replay.run.run import LinkFault, Run
from pipesim.replay.run.run_json import load_run, run_document, save_run
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from planners import plan
from tests.formats.mutations import damaged, strange
from tests.replay.random_runs import changed, runs, set_to
from tests.strategies import examples, tries


def prepared(transport: str = "delegated", **options: Any) -> Run:
    scenario = Scenario(stages=3, microbatches=4, latency_ms=[[0.0, 0.0], [5.0, 5.0]])
    return prepare(scenario, plan(scenario, "1f1b"), transport, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


@examples(2 / 5)
@given(runs())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, run: Run) -> None:
    path = tmp_path_factory.getbasetemp() / "run_round_trip.json"
    save_run(run, path)
    again = load_run(path)
    assert again == run
    assert run_document(again) == run_document(run)


@pytest.mark.parametrize("transport", ["nccl", "exchange", "delegated"])
def test_what_is_prepared_comes_back(path: Path, transport: str) -> None:
    run = prepared(transport)
    save_run(run, path)
    assert load_run(path) == run


def test_a_prepared_failover_comes_back(path: Path) -> None:
    run = prepared("nccl", fault=LinkFault(2, Op("F", 0, 1), "stop"))
    save_run(run, path)
    assert load_run(path) == run


def test_the_documented_keys_are_those_written() -> None:
    documented = run_json.__doc__.split("code-block:: json")[1].split("``failover_ms``")[0]
    assert list(json.loads(documented)) == list(run_document(prepared()))


def without(key: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        del document[key]

    return change


ROUTE = {"sender": 0, "receiver": 1, "direction": "down", "processes": 1}
FAULT = {"iteration": 0, "producer": "0F0", "how": "stop"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("seed"), "the key seed is missing"),
        (set_to("color", to=1), r"color: unknown key \(known: "),
        (set_to("format", to="pipesim-plan"), "format: must be 'pipesim-replay'"),
        (set_to("version", to=2), "this release reads version 1, not 2"),
        (set_to("compute", to="think"), "compute must be one of sleep, matmul, model, not 'think'"),
        (set_to("device", to="tpu"), "device must be one of cpu, cuda, not 'tpu'"),
        (set_to("iterations", to=0), "needs at least one iteration"),
        (set_to("iterations", to=1.5), "iterations: must be a whole number"),
        (set_to("warmup", to=-1), "warmup: must be a whole number"),
        (set_to("timeout_s", to=0), "the time to wait for a peer must be above 0"),
        (set_to("timeout_s", to=1e9), "must be above 0 and at most"),
        (set_to("transport", to={"name": "ideal"}), "a replay cannot run over ideal"),
        (set_to("transport", "name", to="pigeon"), "pigeon"),
        (set_to("transport", "wings", to=2), "transport.wings: unknown key"),
        (set_to("transport", "only_slow", to=1), "transport.only_slow: must be true or false"),
        (set_to("transport", "base_ms", to=-1), "base_ms"),
        (set_to("scenario", "pipeline", "stages", to=4), "scenario"),
        (set_to("plan", "orders", 0, 0, to="F"), r"plan\.orders\[0\]\[0\]: "),
        (set_to("plan", "microbatches", to=5), r"plan\.orders\[0\]: 0F4 is missing"),
        (set_to("delegates", to=[]), "delegates: 0→1 down has none"),
        (set_to("delegates", 0, to=ROUTE | {"processes": 0}), "needs 1 to 4, not 0"),
        (set_to("delegates", 0, to=ROUTE | {"processes": 5}), "needs 1 to 4, not 5"),
        (set_to("delegates", 0, to=ROUTE | {"receiver": 2}), "nothing is sent from 0→2 down"),
        (set_to("delegates", 0, to=ROUTE | {"direction": "left"}), "must be one of down, up"),
        (set_to("delegates", to=[ROUTE, ROUTE]), r"delegates\[1\]: 0→1 down is given twice"),
        (set_to("failover_ms", to=1), "fail-over needs a direct path"),
        (set_to("fault", to=FAULT), "a link can be broken only with fail-over on"),
        (set_to("fault", to=FAULT | {"how": "x"}), "fault.how: must be one of raise, stop"),
        (set_to("fault", to=FAULT | {"producer": "0F" + "9" * 5000}), "fault.producer: "),
    ],
)
def test_refused(path: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    document: dict[str, Any] = json.loads(json.dumps(run_document(prepared())))
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=says) as caught:
        load_run(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def valid() -> list[bytes]:
    broken = prepared("nccl", fault=LinkFault(2, Op("F", 0, 1), "stop"))
    return [
        json.dumps(run_document(run), ensure_ascii=False, indent=1).encode()
        for run in (prepared(), broken)
    ]


def test_damage_is_a_format_error(path: Path) -> None:
    contents = [bad for good in valid() for bad in damaged(good, tries(10))]
    assert sum(is_refused(path, content) for content in contents) > tries(13)


def is_refused(path: Path, content: bytes) -> bool:
    """Whether it is, and with its name and no other error."""
    path.write_bytes(content)
    try:
        load_run(path)
    except FormatError as error:
        return str(error).startswith(str(path)) or pytest.fail(str(error))
    return False


def test_strange_values_are_format_errors(path: Path) -> None:
    chance = random.Random(0)
    for document in map(json.loads, valid()):
        for _ in range(tries(10)):
            is_refused(path, json.dumps(strange(document, chance)).encode())


def test_a_schedule_that_does_not_fit(path: Path) -> None:
    run = prepared()
    document: dict[str, Any] = json.loads(json.dumps(run_document(run)))
    other = Scenario(stages=2, microbatches=4)
    document["plan"] = json.loads(json.dumps(document["plan"])) | {
        "placement": [0, 1],
        "orders": [[str(op) for op in order] for order in plan(other, "1f1b").orders],
    }
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="stages"):
        load_run(path)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        load_run(path)


def test_writing_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no folder"):
        save_run(prepared(), tmp_path / "nowhere" / "run.json")


def test_schedules_keep_their_names(path: Path) -> None:
    run = prepared()
    named = Schedule(run.schedule.orders, range(3), 4, "mine", Assumptions(transport="é"))
    save_run(changed(run, schedule=named), path)
    again = load_run(path).schedule
    assert (again.planner, again.assumed) == ("mine", Assumptions(transport="é"))
