from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.documents import plan_json
from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.engine import deadlocked
from pipesim.errors import FormatError, ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from tests.formats.mutations import damaged, strange
from tests.strategies import cases, communicating, tries


def gpipe(stages: int, microbatches: int, *, planner: str = "gpipe") -> Schedule:
    """All forwards, then all fused backwards."""
    orders = [
        [Op(kind, s, m) for kind in ("F", "BW") for m in range(microbatches)] for s in range(stages)
    ]
    return Schedule(orders, range(stages), microbatches, planner, ASSUMED)


ASSUMED = Assumptions(delay_ms=[[0.5, 20]], activation_limit=[3, math.inf], runtime="torch")


SMALL = """\
{
  "format": "pipesim-plan",
  "version": 1,
  "planner": "gpipé",
  "assumed": {"delay_ms": [[0.5, 20.0]], "activation_limit": [3.0, null], "runtime": "torch"},
  "placement": [0, 1],
  "microbatches": 2,
  "orders": [
    ["0F0", "0F1", "0BW0", "0BW1"],
    ["1F0", "1F1", "1BW0", "1BW1"]
  ]
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


def load(path: Path, content: str) -> Schedule:
    path.write_text(content, encoding="utf-8")
    return load_plan(path)


def test_exact_text(path: Path) -> None:
    schedule = gpipe(2, 2, planner="gpipé")
    save_plan(schedule, path)
    assert path.read_text(encoding="utf-8") == SMALL
    assert load_plan(path) == schedule


def test_the_documented_example(path: Path) -> None:
    schedule = load(path, plan_json.__doc__.split("code-block:: json")[1].split("``planner``")[0])
    save_plan(schedule, path)
    assert json.loads(path.read_text())["orders"] == [["0F0", "0BW0"], ["1F0", "1BW0"]]


def test_planner_and_assumed_may_be_left_out(path: Path) -> None:
    plan = json.loads(SMALL)
    del plan["planner"], plan["assumed"]
    schedule = load(path, json.dumps(plan))
    assert (schedule.planner, schedule.assumed) == ("", Assumptions())
    plan["assumed"] = {"delay_ms": 0.0, "activation_limit": None}
    assert load(path, json.dumps(plan)).assumed == Assumptions(delay_ms=0.0)


OWN = """\
{
  "format": "pipesim-plan",
  "version": 1,
  "planner": "",
  "assumed": {},
  "placement": [0, 1],
  "microbatches": 1,
  "orders": [
    ["0UNSHARD", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0W0", "0REDUCE_GRAD"],
    ["1RECV_F0", "(1F0;1BW0)OVERLAP_F_B", "1SEND_B0"]
  ]
}
"""


def test_what_else_devices_do_stands_between_their_operators(path: Path) -> None:
    schedule = load(path, OWN)
    assert [str(op) for op in schedule.orders[1]] == ["1F0", "1BW0"]
    assert schedule.communicates
    save_plan(schedule, path)
    assert path.read_text() == OWN


@given(communicating())
def test_round_trip_of_a_plans_own_order(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Scenario, Schedule]
) -> None:
    path = tmp_path_factory.getbasetemp() / "own.json"
    save_plan(case[1], path)
    assert load_plan(path) == case[1]


times = st.floats(0, 1e15)


def assumptions(made: Schedule) -> st.SearchStrategy[Assumptions]:
    """What a plan of that shape may have assumed."""

    def each(values: st.SearchStrategy[object], count: int) -> st.SearchStrategy[object]:
        return st.none() | st.lists(values, min_size=count, max_size=count)

    limits = each(times | st.just(math.inf), made.devices)
    return st.builds(
        Assumptions,
        delay_ms=times | each(st.tuples(times, times), made.stages - 1),
        activation_limit=limits,
        host_limit=limits,
        warmup=each(st.integers(0, 99), made.stages),
        transport=st.none() | st.text(),
    )


@given(cases(), st.data())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Scenario, Schedule], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.json"
    _, made = case
    save_plan(made, path)
    assert load_plan(path) == made
    other = replace(made, assumed=data.draw(assumptions(made)))
    save_plan(other, path)
    assert load_plan(path) == other


def test_assumptions_are_no_mapping() -> None:
    with pytest.raises(ScheduleError, match="assumed must be an Assumptions"):
        Schedule(gpipe(1, 1).orders, [0], 1, "x", {"delay_ms": 0.0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ('"version": 1,', '"version": 1', ":4:3", "not JSON: Expecting ',' delimiter"),
        ('"1BW1"]\n  ]\n}\n', '"1BW1"', ":10:34", "not JSON: Expecting"),
        (SMALL, "", ":1:1", "not JSON"),
        (SMALL, "[]", "", "must be a table, not a list"),
        (SMALL, "[" * 100000, "", "is nested too deeply"),
        ('"version": 1', '"version": 1, "version": 1', "", "the key 'version' is given twice"),
        ("0.5", "NaN", "", "NaN is not a number"),
        ("0.5", "-Infinity", "", "-Infinity is not a number"),
        ("0.5", "1e999", "", "1e999 is too large a number"),
        ("0.5", "1" * 5000, "", "not JSON: Exceeds the limit"),
        ("gpipé", "\\ud800", "", "a lone surrogate"),
        ('"format": "pipesim-plan",', "", "", "is not a pipesim-plan file"),
        ("pipesim-plan", "pipesim-scenario", ": format", "must be 'pipesim-plan'"),
        ('"version": 1', '"version": 3', ": version", "reads version 1, not 3"),
        ('"gpipé"', "null", ": planner", "must be text, not None"),
        ("[[0.5, 20.0]]", "[0.5]", ": assumed.delay_ms[0]", "must be a list, not 0.5"),
        ("[3.0, null]", '["3"]', ": assumed.activation_limit[0]", "must be a finite number"),
        ('"activation_limit"', '"limit"', ": assumed.limit", "unknown key"),
        ("[[0.5, 20.0]]", "-1", ": assumed.delay_ms", "must not be below 0, which -1 is"),
        ("0.5", "-0.5", ": assumed.delay_ms[0][0]", "must not be below 0"),
        ("[3.0, null]", "[-3, null]", ": assumed.activation_limit[0]", "must not be below 0"),
        ("[[0.5, 20.0]]", "[[0.5]]", ": assumed.delay_ms[0]", "must be [down, up], not 1 number"),
        ("[[0.5, 20.0]]", "[]", ": assumed.delay_ms", "one for each link, 1 in all, not 0"),
        ("[3.0, null]", "[3.0]", ": assumed.activation_limit", "each device, 2 in all, not 1"),
        ('"activation_limit": [3.0', '"host_limit": [1, 2', ": assumed.host_limit", "not 3"),
        ('"activation_limit": [3.0, null', '"warmup": [2', ": assumed.warmup", "each stage, 2"),
        ('"microbatches": 2,', "", "", "the key microbatches is missing"),
        ('"microbatches": 2', '"microbatches": 2.0', ": microbatches", "a whole number"),
        ('"microbatches": 2', '"microbatches": 0', ": microbatches", "must be at least 1"),
        ('"microbatches": 2', '"microbatch": 2', "", "the key microbatches is missing"),
        ('"version": 1', '"version": 1, "order": 1', ": order", "did you mean orders?"),
        ("[0, 1]", "[0, true]", ": placement[1]", "must be a whole number"),
        ("[0, 1]", "[0, -1]", ": placement[1]", "must be a whole number"),
        ("[0, 1]", "[]", "", "2 device orders, but stages on devices []"),
        ("[0, 1]", "[0, 99999999999]", "", "2 device orders, but stages"),
        ('"0F1"', '"0f1"', ": orders[0][1]", "'0f1' is not an operator"),
        ('"0F1"', '"0F1", "0SEND_F1"', ": orders[0]", "device 0 lacks 0RECV_B0"),
        ('"0F1"', '"0F1", "1SEND_B1"', ": orders[0][2]", "stage 1 is not on device 0"),
        ('"0F1"', '"0SEND_F1", "0F1"', ": orders[0][1]", "0SEND_F1 stands before the forward"),
        ('"0F1"', '"0F1", "0SEND_F2"', ": orders[0][2]", "is not a message between devices"),
        ('"0F1"', '"0F1 "', ": orders[0][1]", "'0F1 ' is not an operator"),
        ('"0F1"', "1", ": orders[0][1]", "must be text, not 1"),
        ('"0F1"', '"0F' + "1" * 5000 + '"', ": orders[0][1]", "is not an operator"),
        ('["1F0", "1F1", "1BW0", "1BW1"]', '"1F0"', ": orders[1]", "must be a list"),
        ('"0F1", ', "", ": orders[0]", "0F1 is missing from device 0"),
        ('"0F1"', '"0F1", "0F1"', ": orders[0][2]", "0F1 is scheduled 2 times"),
        ('"0F1"', '"1F1"', ": orders[0][1]", "1F1 on device 0: stage 1 is on device 1"),
        ('"0F1"', '"0F2"', ": orders[0][1]", "0F2 on device 0: there are 2 stages and 2 micro"),
        ('"0F0", "0F1", "0BW0"', '"0BW0", "0F0", "0F1"', ": orders[0][0]", "cannot make progress"),
    ],
)
def test_errors_name_file_and_place(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in SMALL
    wanted = re.escape(f"{path}{place}: ") + ".*" + re.escape(says)
    with pytest.raises(FormatError, match=wanted) as error:
        load(path, SMALL.replace(old, new, 1))
    assert "\n" not in str(error.value)


def _damaged(valid: str, count: int) -> Iterator[bytes]:
    """Half of them damaged in bytes, half in one value."""
    chance = random.Random(0)
    document = json.loads(valid)
    yield from damaged(valid.encode(), count // 2)
    for _ in range(count - count // 2):
        yield json.dumps(strange(document, chance)).encode()


def _fuzz(path: Path, valid: str, count: int) -> None:
    """Load damaged plans, and run those that load where they queue."""
    errors = 0
    for content in _damaged(valid, count):
        path.write_bytes(content)
        try:
            schedule = load_plan(path)
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            errors += 1
        else:
            assert isinstance(deadlocked(schedule, "nccl"), tuple)
    assert errors > count / 2


@pytest.mark.parametrize("valid", [SMALL, OWN])
def test_fuzz(path: Path, valid: str) -> None:
    _fuzz(path, valid, tries(10))


@pytest.mark.slow
@pytest.mark.parametrize("valid", [SMALL, OWN])
def test_fuzz_2000(path: Path, valid: str) -> None:
    before = getrusage(RUSAGE_SELF).ru_maxrss
    _fuzz(path, valid, 2000)
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
