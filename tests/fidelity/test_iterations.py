"""Runs measured iteration by iteration: read strictly, and predicted without their slow ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.delays import DelayTrace
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.delegation import load_delegation, predict_delegation
from pipesim.fidelity.dynamic import (
    load_dynamic,
    predict_dynamic,
    predict_iterations,
    trace_beside,
)
from pipesim.fidelity.iterations import IterationScores, LastIterations, PredictedIterations
from pipesim.fidelity.prediction import predict
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.shipped import shipped
from pipesim.formats.delay_trace import load_trace
from tests import ROOT

TRACES = ROOT / "traces"
DYNAMIC = TRACES / "dynamic_iterations.csv"
DELEGATION = TRACES / "delegation_iterations.csv"
TRACE = load_trace(trace_beside(DYNAMIC, "200-400"))
CALIBRATION = shipped()
H800 = CALIBRATION.testbeds["h800"]
RUNS = {one.measured.system: one for one in load_dynamic(DYNAMIC)}


# -- what the shipped runs say -------------------------------------------------------------


def test_dynamic_runs_are_predicted_within_the_promised_errors() -> None:
    scores = predict_dynamic(list(RUNS.values()), CALIBRATION.testbed, lambda _: TRACE)
    assert set(scores.by_system()) == {"1f1b", "zerobubble", "pipemorph-cpu", "pipemorph"}
    assert scores.mape <= 0.03
    assert scores.each_mape <= 0.04
    assert scores.ranking_agreement == 1


def test_delegation_runs_are_predicted_within_the_promised_errors() -> None:
    healthy_ms = CALIBRATION.testbeds["h800"].healthy_ms
    runs = [one.with_healthy(healthy_ms) for one in load_delegation(DELEGATION)]
    scores = predict_delegation(runs, CALIBRATION.testbed)
    assert len(scores.predictions) == 6
    assert scores.mape <= 0.05
    assert scores.worst <= 0.06


def test_the_shipped_runs() -> None:
    run = RUNS["pipemorph"].measured
    assert (run.stages, run.microbatches, run.delegates) == (4, 12, 6)
    assert run.healthy_ms == (368.9 + 369.6) / 2
    assert RUNS["pipemorph"].settled == LastIterations(
        10, (577.2, 494.9, 542.6, 541.4, 588.8, 570.8)
    )
    assert TRACE.at(258) == ((26.995, 26.995), (22.527, 22.527), (35.942, 35.942))
    overhead, *_, last = load_delegation(DELEGATION)
    assert overhead.settled.first == 5
    assert not overhead.has_healthy
    assert overhead.with_healthy({"7B": 390.0}).measured.healthy_ms == 390
    assert overhead.with_healthy({"14B": 750.0}) == overhead
    assert last.measured.slow_sends == ((2, 3), (3, 2))
    assert last.with_healthy({"7B": 1.0}) == last


@pytest.mark.parametrize("system", RUNS)
def test_a_prediction_does_not_look_at_what_it_predicts(system: str) -> None:
    run = RUNS[system].measured
    blind = replace(run, slow_ms=1.0)
    assert predict_iterations(blind, H800, TRACE, 2) == predict_iterations(run, H800, TRACE, 2)


# -- the mechanism -------------------------------------------------------------------------


def steady(*delays_ms: float) -> DelayTrace:
    return DelayTrace([0.0], [delays_ms])


def with_links(run: MeasuredRun, delay_ms: float) -> MeasuredRun:
    """The same under a delay of link 0 that never changes, as other files have it."""
    return replace(run, slow_sends=((0, 1), (1, 0)), delay_ms=delay_ms)


@pytest.mark.parametrize("system", ["pipemorph-cpu", "pipemorph"])
def test_delegates_look_at_every_send_so_a_steady_delay_is_that_of_other_runs(system: str) -> None:
    run = RUNS[system].measured
    first, second, third = predict_iterations(run, H800, steady(30, 0, 0), 3)
    expected = predict(with_links(run, 30.0), H800).predicted_ms
    assert second == third == pytest.approx(expected)
    if system == "pipemorph-cpu":
        assert first == second
    else:  # its first iteration still has the usual plan
        usual = replace(run, system="pipemorph-cpu")
        assert first == predict_iterations(usual, H800, steady(30, 0, 0), 1)[0]


def test_ranks_look_at_every_64th_send() -> None:
    """After eight iterations stages 1 and 2 have sent 192 times, and look; 0 and 3 sent 96 times.

    They look after 32 more, in the third iteration. From the fourth on all is as in other runs.
    """
    run = RUNS["zerobubble"].measured
    times = predict_iterations(run, H800, steady(30, 0, 0), 6)
    expected = predict(with_links(run, 30.0), H800).predicted_ms
    up_only = replace(run, slow_sends=((1, 0),), delay_ms=30.0)
    assert times[0] == times[1] == pytest.approx(predict(up_only, H800).predicted_ms)
    assert times[1] < times[2] < times[3]
    assert times[3:] == pytest.approx([expected] * 3)


def test_what_1f1b_takes_for_sends_to_stage_3() -> None:
    run = RUNS["1f1b"].measured
    sends = ((2, 3), (3, 2), (2, 1))
    expected = predict(replace(run, slow_sends=sends, delay_ms=30.0), H800).predicted_ms
    assert predict_iterations(run, H800, steady(0, 0, 30), 6)[-1] == pytest.approx(expected)


def test_changes_are_noticed_up_to_a_tenth_of_a_second_late() -> None:
    """The clock starts an iteration of 369.25 ms before the first one: 400 ms is in it."""
    run = RUNS["pipemorph-cpu"].measured
    for time_ms, seen_ms in ((301, 400), (400, 400), (401, 500)):
        early = predict_iterations(run, H800, DelayTrace([time_ms], [[40, 40, 40]]), 1)
        assert early == predict_iterations(run, H800, DelayTrace([seen_ms], [[40, 40, 40]]), 1)
    never = predict_iterations(run, H800, DelayTrace([1e6], [[40, 40, 40]]), 2)
    assert never[0] == never[1] == pytest.approx(predict(run, H800).predicted_ms)


@pytest.mark.parametrize("system", RUNS)
@pytest.mark.parametrize("ahead_ms", [-50.0, 0.0, 50.0])
def test_intervals_hold_whenever_the_injector_began(system: str, ahead_ms: float) -> None:
    run = RUNS[system]
    _, *truth = predict_iterations(run.measured, H800, TRACE, 7, ahead_ms=ahead_ms)
    made = replace(run, settled=LastIterations(10, tuple(truth)))
    (prediction,) = predict_dynamic([made], lambda _: H800, lambda _: TRACE).predictions
    low, high = prediction.interval_ms or (np.nan, np.nan)
    assert low < prediction.measured_ms < high
    assert low < prediction.predicted_ms < high


def test_a_clock_that_is_ahead_is_a_trace_that_is_early() -> None:
    """Where both are whole sleeps."""
    run, early = RUNS["zerobubble"].measured, DelayTrace(TRACE.starts - 100, TRACE.delay_ms)
    ahead = predict_iterations(run, H800, TRACE, 4, ahead_ms=100.0)
    assert ahead == pytest.approx(predict_iterations(run, H800, early, 4))


def test_a_trace_of_other_links() -> None:
    with pytest.raises(
        ScenarioError, match=r"csv:2: the delay trace is for 2 links, the run has 3"
    ):
        predict_iterations(RUNS["1f1b"].measured, H800, steady(1, 2), 1)


def test_runs_without_a_healthy_iteration_are_left_out() -> None:
    runs = load_delegation(DELEGATION)
    assert len(predict_delegation(runs, CALIBRATION.testbed).predictions) == 4
    with pytest.raises(ScenarioError, match=r"csv:2: no healthy iteration is known of any run"):
        predict_delegation(runs[:2], CALIBRATION.testbed)


def test_errors_are_counted_by_hand() -> None:
    run = RUNS["1f1b"].measured
    one = PredictedIterations(
        run, "x", "1f1b", LastIterations(10, (100, 200, 400)), (110, 220, 400)
    )
    scores = IterationScores([one])
    assert scores.mape == pytest.approx(0.1)  # of the medians
    assert scores.each_mape == pytest.approx(0.2 / 3)
    document = scores.as_dict()
    assert document["mape_of_iterations"] == scores.each_mape
    assert document["rows"][0]["first_iteration"] == 10  # type: ignore[index]


# -- reading -------------------------------------------------------------------------------

LOADERS: dict[Path, Callable[[Path], object]] = {DYNAMIC: load_dynamic, DELEGATION: load_delegation}


@pytest.mark.parametrize(
    ("source", "old", "new", "message"),
    [
        (DYNAMIC, "200-400,2,433.9\n", "200-400,3,433.9\n", ":2: the iterations of a run must"),
        (DYNAMIC, "1f1b,200-400,9,1314.7", "1f1b,200-400,9,-1", "elapsed_ms must be a time"),
        (DYNAMIC, "h800,7B,4,12,zerobubble,200-400,8,374.2\n", "", ":17: the iterations of a run"),
        (DYNAMIC, "1f1b", "2f2b", ":2: system must be one of 1f1b, zerobubble"),
        (DYNAMIC, "200-400", "a/b", ":2: change_every_ms must be a name such as 200-400"),
        (DELEGATION, "all-cpu,,0,", "all-cpu,3,0,", ":2: slow_links must be links from 0 to 2"),
        (DELEGATION, "all-cpu,,0,", "all-cpu,,5,", ":2: delay_ms is 5, but slow_links names no"),
        (DELEGATION, "all-cpu", "some-cpu", ":2: system must be one of all-cpu, pipemorph-cpu"),
        (DELEGATION, ",10,all-cpu", ",0,all-cpu", ":2: message_mib must be a size above 0"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, source: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "runs.csv"
    text = source.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 15))
    with pytest.raises(FormatError) as caught:
        LOADERS[source](path)
    assert message in str(caught.value)


@pytest.mark.parametrize("source", [DYNAMIC, DELEGATION])
def test_rows_may_be_sorted_by_iteration(tmp_path: Path, source: Path) -> None:
    head, *lines = source.read_text().splitlines()
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([head, *sorted(lines, key=lambda line: int(line.split(",")[-2]))]))
    kept = [
        replace(one, measured=replace(one.measured, place="")) for one in LOADERS[source](source)
    ]
    runs = [replace(one, measured=replace(one.measured, place="")) for one in LOADERS[source](path)]
    assert list(map(repr, runs)) == list(map(repr, kept))


def test_too_few_iterations(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(DYNAMIC.read_text().splitlines()[:10]))
    with pytest.raises(FormatError, match=r"csv:10: a run of 9 iterations, but iteration 10"):
        load_dynamic(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_ms,delay_link1_ms\n1,2\n", "has no column delay_link0_ms"),
        ("time_ms,delay_link0_ms,delay_link2_ms\n1,2,3\n", "has no column delay_link1_ms"),
        ("time_ms,delay_link0_ms\n1,x\n", "csv:2: delay_link0_ms must be a time"),
        ("time_ms,delay_link0_ms\n2,1\n1,1\n", r"csv:3: goes back from 2 ms"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        load_trace(path)


@given(st.sampled_from([DYNAMIC, DELEGATION]), st.integers(0, 900), st.binary(max_size=4))
def test_damage_is_an_error_or_no_damage(
    tmp_path_factory: pytest.TempPathFactory, source: Path, at: int, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    content = source.read_bytes()[:1000].rpartition(b"\n")[0]
    path.write_bytes(content[:at] + noise + content[at + len(noise) :])
    with suppress(FormatError):
        LOADERS[source](path)


def test_other_testbeds_cut_nothing_and_their_gpus_clock_higher() -> None:
    """Of 30 ms the H800 injector makes 29; where it does not, iterations are as much longer."""
    run = RUNS["1f1b"].measured
    plain = replace(H800, constants={}, whole_ms=False)
    cut = replace(plain, whole_ms=True)
    faster = replace(plain, constants={"idle_speed": 0.9})
    times = [
        predict_iterations(run, one, steady(30, 30, 30), 6)[-1] for one in (plain, cut, faster)
    ]
    assert times[1] < times[0]
    assert times[2] < times[0]
