from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.replay.device.failover import Switch
from pipesim.replay.prepare import prepare
from pipesim.replay.report import Replayed
from pipesim.replay.run import measured as measured_module
from pipesim.replay.run.clocks import Clock, Reading
from pipesim.replay.run.logbook import rank_document, result_json
from pipesim.replay.run.measured import Measured, load_result
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Run
from pipesim.scenario import Scenario
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Transport
from planners import plan
from tests.formats.mutations import damaged, strange
from tests.replay.random_runs import runs, set_to
from tests.strategies import examples, tries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


LATE_NS = 200
"""By how much later than logically operators physically start and end in :func:`written`."""


def written(run: Run, off_ns: int = 0, switches: tuple[Switch, ...] = ()) -> str:
    """The result of processes that do what is predicted; rank r's clock is r·off_ns behind.

    With logical times these are the predicted ones, and the physical ones later.
    """
    late = LATE_NS if run.has_logical_times else 0
    predicted = simulate(run.scenario, run.schedule, run.transport)
    ranks = []
    for device, ops in enumerate(predicted.compute):
        behind = device * off_ns
        clock = Clock(Reading(0, behind, 5), Reading(10**12, behind, 7))
        records = []
        for iteration in range(run.total_iterations):
            record = Record()
            begin = iteration * 10**12 - behind

            def ns(time_ms: float, begin: int = begin) -> int:
                return begin + round(time_ms * 1e6)

            for op, start, end in ops:
                logical = ns(start), ns(end)
                physical = ns(start) + late, ns(end) + late
                record.op(op, *physical, logical if run.has_logical_times else None)
            for span in predicted.comm:
                if span.device == device:
                    record.step(span.message, span.path, ns(span.start_ms), ns(span.end_ms))
            records.append(record)
        own = [switch for switch in switches if run.route(switch.message).sender == device]
        ranks.append(json.dumps(rank_document(run, clock, records, own, {"rank": device})))
    return result_json(run, ranks)


COSTLY = Delegated(base_ms=1.0, copy_base_ms=0.5)


def small(transport: str | Transport = COSTLY, **options: Any) -> Run:
    scenario = Scenario(stages=3, microbatches=4, latency_ms=[[0.0, 0.0], [5.0, 5.0]])
    return prepare(scenario, plan(scenario, "1f1b"), transport, iterations=2, **options)


def load(path: Path, content: str) -> Measured:
    path.write_text(content, encoding="utf-8")
    return load_result(path)


def rows(timeline: Timeline) -> list[list[object]]:
    ops = [[str(op), start, end] for device in timeline.compute for op, start, end in device]
    comm = sorted([str(c.message), c.path, c.device, c.start_ms, c.end_ms] for c in timeline.comm)
    return ops + comm


@examples(1 / 4)
@given(runs(), st.sampled_from([0, -(10**9), 123_456_789]))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, run: Run, off_ns: int) -> None:
    path = tmp_path_factory.getbasetemp() / "result_round_trip.json"
    few = Run(**{n: getattr(run, n) for n in run.__dataclass_fields__ if n != "fault"} | FEW)
    measured = load(path, written(few, off_ns))
    assert measured.run == few
    predicted = simulate(few.scenario, few.schedule, few.transport)
    assert len(measured.timelines) == 3
    assert len(measured.counted) == 2
    check_rows(measured.timelines, few, predicted)
    assert len(measured.logical) == (3 if few.has_logical_times else 0)
    check_rows(measured.logical, few, predicted)
    assert [clock.offset_ms for clock in measured.clocks] == [
        device * off_ns / 1e6 for device in range(few.devices)
    ]
    assert {clock.uncertainty_ms for clock in measured.clocks} == {7e-6}
    assert measured.reports == [{"rank": device} for device in range(few.devices)]
    replayed = Replayed(measured)
    if few.compute != "model":
        assert replayed.measured_ms == pytest.approx(replayed.predicted_ms, abs=1e-5)
        assert replayed.median_start_error_ms < 1e-5
    if few.has_logical_times:
        assert replayed.logical_ms == pytest.approx(replayed.predicted_ms, abs=1e-5)
        assert replayed.longest_lag_ms == pytest.approx(LATE_NS / 1e6, abs=2e-6)
    else:
        assert (replayed.logical_ms, replayed.logical_start_error_ms) == (None, None)
        assert (replayed.logical_iterations_ms, replayed.longest_lag_ms) == ([], None)


def check_rows(timelines: Sequence[Timeline], run: Run, predicted: Timeline) -> None:
    """All are the prediction, moved to the first physical start."""
    late_ms = LATE_NS / 1e6 if run.has_logical_times else 0.0
    for timeline in timelines:
        for seen, meant in zip(rows(timeline), rows(predicted), strict=True):
            assert seen[:-2] == meant[:-2]
            assert seen[-2:] == pytest.approx(meant[-2:], abs=2e-6 + late_ms)


FEW = {"iterations": 2, "warmup": 1}


def test_switches(path: Path) -> None:
    run = small("nccl", failover=True)
    message = run.messages[0]
    switch = Switch(1, message, 10**12 + 4_000_000, 2_000_000)
    measured = load(path, written(run, switches=(switch,)))
    sender = run.route(message).sender
    at_ms = pytest.approx(4 - LATE_NS / 1e6)  # from the first physical start
    assert measured.switches == [(sender, 1, message, at_ms, 2.0)]
    (event,) = Replayed(measured).events
    assert event["iteration"] == 0
    assert event["cost_ms"] == 0.0


def test_the_documented_keys_are_those_written() -> None:
    documented = json.loads(measured_module.__doc__.split("code-block:: json")[1].split("Times")[0])
    result = json.loads(written(small()))
    assert list(documented) == list(result)
    assert list(documented["ranks"][0]) == list(result["ranks"][0])
    assert list(documented["ranks"][0]["clock"]) == list(result["ranks"][0]["clock"])
    assert list(documented["ranks"][0]["iterations"][0]) == ["compute", "logical", "steps"]


def first(key: str, *more: str | int) -> tuple[str | int, ...]:
    return ("ranks", 0, key, *more)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (set_to("format", to="pipesim-replay"), "format: must be 'pipesim-replay-result'"),
        (set_to("version", to=3), "this release reads version 2, not 3"),
        (set_to("color", to=3), "color: unknown key"),
        (set_to("run", "seed", to=-1), "run.seed: must be a whole number"),
        (set_to("ranks", to=[]), "ranks: must hold 3, one for each device"),
        (set_to("ranks", 0, to=[]), r"ranks\[0\]: must be a table"),
        (set_to(*first("color"), to=1), r"ranks\[0\].color: unknown key"),
        (set_to(*first("clock"), to={}), r"the key ranks\[0\].clock.offset_ms is missing"),
        (set_to(*first("clock", "x"), to=1), r"ranks\[0\].clock.x: unknown key"),
        (set_to(*first("iterations"), to=[]), r"ranks\[0\]: must hold 3 iterations"),
        (set_to(*first("iterations", 1, "compute"), to=[]), "did not run in the plan's order"),
        (set_to(*first("iterations", 0, "compute", 0, 0), to="2F0"), "did not run in the plan's"),
        (set_to(*first("iterations", 0, "compute", 0, 0), to="F"), r"compute\[0\]\[0\]: "),
        (set_to(*first("iterations", 0, "compute", 0, 1), to=0.5), "whole number of nanoseconds"),
        (set_to(*first("iterations", 0, "compute", 0, 1), to=2**63), "whole number of nanosec"),
        (set_to(*first("iterations", 0, "compute", 0), to=[1]), "must be a list of 3"),
        (set_to(*first("iterations", 0, "compute", 0, 2), to=2**62), "operators overlap"),
        (set_to(*first("iterations", 0, "compute", 1, 2), to=0), "operators overlap"),
        (set_to(*first("iterations", 0, "logical", 1, 1), to=0), "operators overlap"),
        (set_to(*first("iterations", 0, "logical", 0), to=[1]), "must be a list of 2"),
        (set_to(*first("iterations", 1, "logical"), to=[]), "one for each operator that sleeps"),
        (set_to(*first("iterations", 0, "steps", 0, 3), to=0), "one ends before it begins"),
        (set_to(*first("iterations", 0, "steps", 0, 0), to=99), "there is no message 99"),
        (set_to(*first("iterations", 0, "steps", 0, 1), to="air"), "must be one of wire, busy"),
        (set_to(*first("switches"), to=[[3, 0, 0, 0]]), "there is no iteration 3"),
        (set_to(*first("switches"), to=[[0, 99, 0, 0]]), "there is no message 99"),
        (set_to(*first("report"), to=[]), "must be an object"),
        (set_to(*first("report", "losses"), to=["x"]), r"report.losses\[0\]: must be a finite"),
        (set_to(*first("report", "gradient_errors"), to=1), "gradient_errors: must be a list"),
        (set_to(*first("report", "host_bytes"), to=0.5), "host_bytes: must be a whole number"),
    ],
)
def test_refused(path: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    document: dict[str, Any] = json.loads(written(small()))
    change(document)
    with pytest.raises(FormatError, match=says) as caught:
        load(path, json.dumps(document))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def is_refused(path: Path) -> bool:
    """Whether it is, with its name; what is not can be shown."""
    try:
        measured = load_result(path)
    except FormatError as error:
        return str(error).startswith(str(path)) or pytest.fail(str(error))
    json.dumps(Replayed(measured).as_dict(), allow_nan=False)
    return False


def test_damage_is_a_format_error(path: Path) -> None:
    valid = written(small()).replace('"compute": [[', '"compute": [[\n').encode()
    refused = 0
    for content in damaged(valid, tries(7)):
        path.write_bytes(content)
        refused += is_refused(path)
    assert refused > tries(3)


@pytest.mark.parametrize("compute", ["sleep", "model"])
def test_strange_values_are_format_errors(path: Path, compute: str) -> None:
    chance = random.Random(0)
    document = json.loads(written(small("nccl", failover=True, compute=compute)))
    for rank in document["ranks"]:
        rank["switches"] = [[1, 0, 10**12, 5]]
        rank["report"] |= {"losses": [1.0], "gradient_errors": [0.5], "host_bytes": 0}
    for _ in range(tries(7)):
        path.write_text(json.dumps(strange(document, chance)))
        is_refused(path)
