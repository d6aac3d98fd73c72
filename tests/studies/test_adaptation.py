"""Jobs along traces under several systems, their record, and how often to re-plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipesim.adapt.costs import FREE, Costs
from pipesim.delays import DelayTrace
from pipesim.errors import FormatError, ScenarioError
from pipesim.formats.delay_trace import load_trace
from pipesim.scenario import Scenario
from pipesim.studies.adaptation import Adaptation, NoBaselineError, adapt, ended
from pipesim.studies.replanning import changing, replanning
from pipesim.transport import Transport, transport
from tests import ROOT

SCENARIO = Scenario(stages=4, microbatches=8)
TRACE = DelayTrace(
    [6, 14, 20, 28], [[20, 0, 0], [0, 0, 0], [0, 30, 5], [0, 0, 0]], by="iteration", end=36
)
SYSTEMS = ["1f1b", "zerobubble", "pipemorph-cpu", "pipemorph"]


def test_the_contract() -> None:
    found = adapt(SCENARIO, TRACE).as_dict()
    systems = found["systems"]
    assert isinstance(systems, dict)
    assert list(systems) == [*SYSTEMS, "oracle"]
    for figures in systems.values():
        assert set(figures) >= {
            "iterations", "iterations_per_minute", "replans", "median_iteration_ms",
            "p99_iteration_ms", "detection_delay_s", "share_of_oracle",
        }  # fmt: skip
        assert figures["iterations"] == 36
    paces = [systems[name]["iterations_per_minute"] for name in systems]
    assert systems["oracle"]["share_of_oracle"] == 1
    assert paces[2] < paces[3] < paces[4]
    assert systems["1f1b"]["detection_delay_s"] is None
    assert systems["pipemorph"]["detection_delay_s"] > 0
    assert systems["pipemorph"]["replans"] == 4
    assert found["duration_s"] == pytest.approx(max(36 * 60 / pace for pace in paces))


def test_without_a_straggler_adaptation_costs_next_to_nothing() -> None:
    def over(name: str) -> Transport:
        return type(transport(name))(base_ms=2.0)

    healthy = DelayTrace([], np.zeros((0, 3)), by="iteration", end=200)
    found = adapt(SCENARIO, healthy, ["zerobubble", "pipemorph"], jitter=0.05, over=over)
    fixed, adaptive = (found.outcomes[name].per_minute for name in ("zerobubble", "pipemorph"))
    assert 0.995 < adaptive / fixed < 1
    assert found.outcomes["pipemorph"].replans == 0


def test_planners_that_cut_stages_see_the_same_links() -> None:
    found = adapt(SCENARIO, TRACE, ["interleaved-1f1b", "pipemorph:nccl"], most=8)
    assert found.outcomes["interleaved-1f1b"].job.scenario.stages == 8
    assert (
        found.outcomes["interleaved-1f1b"].duration_ms[7]
        > (found.outcomes["interleaved-1f1b"].duration_ms[0])
    )
    assert not any(one.plan.delegates.any() for one in found.outcomes["pipemorph:nccl"].iterations)


def test_a_link_that_is_slow_from_the_start() -> None:
    slow = DelayTrace([3], [[0, 20, 0]], by="iteration", end=36)
    with pytest.raises(NoBaselineError, match="link 1 is slow before the detector") as caught:
        adapt(SCENARIO, slow)
    assert caught.value.change == 0
    assert adapt(SCENARIO, slow, lead=5).outcomes["pipemorph"].replans == 1
    assert adapt(SCENARIO, slow, detector="ratio:baseline_ms=0").outcomes["pipemorph"].replans == 1
    assert adapt(SCENARIO, slow, ["1f1b"]).outcomes["1f1b"].replans == 0
    early = DelayTrace([1000], [[0, 20, 0]], end=9000)
    with pytest.raises(NoBaselineError):
        adapt(SCENARIO, early, ["pipemorph"])


def test_where_a_trace_ends() -> None:
    trace = DelayTrace([10, 30, 40], [[1], [2], [0]])
    assert ended(trace).end == 60
    assert ended(trace, 35).delay_ms[:, 0, 0].tolist() == [1, 2]
    assert ended(DelayTrace([10], [[1]], end=12)).end == 12
    assert ended(DelayTrace([0], [[1]])).end == 60_000
    assert ended(DelayTrace([0], [[1]], by="iteration")).end == 100
    for end in (0.0, float("nan")):
        with pytest.raises(ScenarioError, match="longer than nothing"):
            ended(trace, end)


# -- the record -------------------------------------------------------------------------------


def recorded(file: Path, **options: object) -> Adaptation:
    return adapt(SCENARIO, TRACE, SYSTEMS, csv=file, jitter=0.05, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [1, 16])
def test_an_interrupted_run_goes_on(tmp_path: Path, every: int) -> None:
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    result = recorded(whole, every=every)
    text = whole.read_text()
    assert len(text.splitlines()) == 1 + 5 * 36
    for length in (0, 10, 1500, len(text) // 2, len(text) - 3, len(text)):
        cut.write_text(text[:length])
        assert recorded(cut, every=every).as_dict() == result.as_dict()
        assert cut.read_text() == text


def test_what_is_there_is_not_simulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.csv"
    result = recorded(file)
    monkeypatch.setattr("pipesim.adapt.loop._Run._simulated", None)
    assert recorded(file).as_dict() == result.as_dict()


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1},
        {"detector": "ratio:threshold=1.5"},
        {"costs": FREE},
        {"after_ms": 3.0},
        {"replan_every": 2},
    ],
)
def test_the_record_of_another_run_is_kept(tmp_path: Path, options: dict[str, object]) -> None:
    file = tmp_path / "run.csv"
    recorded(file)
    before = file.read_text()
    with pytest.raises(FormatError, match=r"run\.csv:2: is the record of another run"):
        recorded(file, **options)
    assert file.read_text() == before


@pytest.mark.parametrize(
    "change",
    [
        {"forward_ms": 11.0},
        {"fused_backward_ms": 19.0},
        {"latency_ms": 1.0},
        {"message_bytes": 5.0},
        {"activation_limit": 7.0},
        {"host_limit": 9.0},
        {"released_by_b": 0.3},
    ],
)
def test_a_record_is_of_one_scenario(tmp_path: Path, change: dict[str, float]) -> None:
    file = tmp_path / "run.csv"
    recorded(file)
    with pytest.raises(FormatError, match="is the record of another run"):
        adapt(SCENARIO.replaced(**change), TRACE, SYSTEMS, csv=file, jitter=0.05)
    renamed = replace(SCENARIO, name="other")
    adapt(renamed, TRACE, SYSTEMS, csv=file, jitter=0.05)


@pytest.mark.parametrize(
    ("find", "put", "message"),
    [
        ("run,", "ran,", ":1: is no record of this run"),
        (",zerobubble,0,", ",zerobubble,7,", "iteration 7 of zerobubble is out of order"),
        (",1f1b,0,", ",gpipe,0,", "iteration 0 of gpipe is out of order"),
        ("0.0\n", "x\n", None),
        ("0.0\n", "0.0,1\n", r":2: has 23 cells, expected 22"),
    ],
)
def test_what_is_no_record(tmp_path: Path, find: str, put: str, message: str | None) -> None:
    file = tmp_path / "run.csv"
    result = recorded(file)
    file.write_text(file.read_text().replace(find, put, 1))
    if message is None:  # estimates are not read again
        assert recorded(file).as_dict() == result.as_dict()
        return
    with pytest.raises(FormatError, match=message):
        recorded(file)


# -- how often to re-plan -----------------------------------------------------------------------


def test_changes_come_at_the_rate_asked() -> None:
    trace = changing(3, 300.0, 60_000.0, seed=5)
    gaps = np.diff(trace.starts)
    assert 200 <= gaps.min() < gaps.max() <= 400
    assert gaps.mean() == pytest.approx(300, rel=0.05)
    assert (np.diff(trace.delay_ms, axis=0) != 0).any(axis=(1, 2)).all()
    assert trace.delay_ms.mean() == pytest.approx(30, rel=0.1)
    for links, change in ((0, 300.0), (3, 0.0), (3, float("nan"))):
        with pytest.raises(ScenarioError):
            changing(links, change, 1000.0)


def test_slow_changes_lose_less_than_fast_ones() -> None:
    small = Scenario(stages=3, microbatches=6)
    found = replanning(small, [100.0, 8_000.0], [1, 4], duration_ms=24_000.0)
    assert found.kept.shape == (2, 2)
    assert (found.kept[0] < found.kept[1]).all()
    assert (found.unplanned < found.kept.min(axis=1)).all()
    assert (found.kept <= 1.02).all()
    dear = replanning(small, [100.0], duration_ms=24_000.0, costs=Costs(plan_ms=8_000))
    assert dear.kept[0, 0] < found.kept[0, 0]


# -- published figures --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_superpod_trace() -> None:
    trace = load_trace(ROOT / "traces/superpod.csv", links=7)
    found = adapt(Scenario(stages=8, microbatches=24), trace).outcomes
    adaptive = found["pipemorph"].per_minute
    assert adaptive > 1.25 * found["zerobubble"].per_minute
    assert adaptive > 1.15 * found["1f1b"].per_minute
    assert adaptive > 0.93 * found["oracle"].per_minute
    told = found["pipemorph"].detections
    assert told is not None
    assert (told.missed, told.false_alarms) == (0, 0)
    assert told.recovery.max() <= 3


@pytest.mark.slow
def test_the_production_hour() -> None:
    trace = load_trace(ROOT / "traces/production_hour.csv", links=7)
    found = adapt(Scenario(stages=8, microbatches=24), trace, ["pipemorph"], jitter=0.05).outcomes
    assert found["pipemorph"].per_minute > 0.93 * found["oracle"].per_minute


def test_a_failed_link_of_a_pipeline_in_chunks() -> None:
    failed = DelayTrace([9000, 9500], [[np.inf, 0, 0], [0, 0, 0]], end=20_000)
    with pytest.raises(ScenarioError, match=r"cuts stages into chunks: no trace with failed links"):
        adapt(SCENARIO, failed, ["interleaved-1f1b"])
    with pytest.raises(ScenarioError, match="for 2 links, the pipeline has 3"):
        adapt(SCENARIO, DelayTrace([9], [[1, 2]]), ["interleaved-1f1b"])
