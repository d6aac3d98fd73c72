"""Fits find the constants that made the data, and keep what they found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, simulate
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity import testbed as beds
from pipesim.fidelity.calibration import Calibration, Calibrator, predict_all
from pipesim.fidelity.calibration_file import load_calibration, save_calibration
from pipesim.fidelity.constants import CONSTANTS
from pipesim.fidelity.prediction import predict, profiled, usual_plan
from pipesim.fidelity.profiles import OperatorTimes, load_operator_times
from pipesim.fidelity.runs import SYSTEMS, MeasuredRun
from pipesim.fidelity.testbed import Ratios
from pipesim.formats.operator_timeline import import_timelines
from tests import ROOT

TRACES = ROOT / "traces"
TRUTH = beds.Testbed(
    "lab",
    {"overshoot_ms": 5.0, "copy_gib_per_s": 4.0, "delegate_ms": 3.0, "host_gib_per_s": 8.0},
    message_bytes=8.0 * 2**20,
)


def run_of(system: str, **changes: object) -> MeasuredRun:
    run = MeasuredRun(
        testbed="lab",
        model="tiny",
        system=system,
        stages=3,
        microbatches=6,
        gpus_per_node=1,
        message_bytes=8 * 2**20,
        slow_links="1",
        slow_sends=((1, 2), (2, 1)),
        delay_ms=25.0,
        delegates=None,
        healthy_ms=260.0,
        slow_ms=1.0,
        place="lab.csv:2",
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def made_by(testbed: beds.Testbed, gpus: tuple[int, int] = (1, 8)) -> list[MeasuredRun]:
    """Runs whose slow iteration is exactly what ``testbed`` says."""
    runs = [
        run_of(system, gpus_per_node=per_node, delay_ms=delay)
        for system in SYSTEMS
        for per_node, delay in zip(gpus, (25.5, 10.0), strict=True)
    ]
    return [replace(run, slow_ms=predict(run, testbed).predicted_ms) for run in runs]


def test_a_profile_gives_the_healthy_iteration_back() -> None:
    testbed = replace(TRUTH, constants={"after_ms": 20.0, "transfer_gib_per_s": 5.0})
    for system, transport in (("1f1b", "exchange"), ("zerobubble", "nccl")):
        run = run_of(system)
        scenario, over = profiled(run, testbed), testbed.transport(transport)
        healthy = simulate(scenario, usual_plan(run), over).iteration_ms
        assert healthy + 20 == pytest.approx(run.healthy_ms, rel=1e-6)


@pytest.mark.parametrize("system", ["1f1b", "zerobubble"])
@pytest.mark.parametrize("without", [{"delay_ms": 0.0}, {"slow_sends": ()}])
def test_a_run_without_a_delay_is_the_healthy_one(system: str, without: dict[str, object]) -> None:
    testbed = replace(TRUTH, constants={**TRUTH.constants, "idle_speed": 0.95})
    run = run_of(system, **without)
    assert predict(run, testbed).predicted_ms == pytest.approx(run.healthy_ms, rel=1e-6)


@pytest.mark.slow
def test_a_fit_finds_the_constants_that_made_the_runs() -> None:
    runs = made_by(TRUTH)
    calibration = Calibrator(runs).calibrate()
    assert calibration.residual < 1e-2
    for run, prediction in zip(runs, predict_all(runs, calibration), strict=True):
        assert prediction.predicted_ms == pytest.approx(run.slow_ms, rel=3e-2)


@pytest.mark.parametrize(
    ("name", "value", "system"),
    [
        ("overshoot_ms", 8.0, "zerobubble"),
        ("delegate_ms", 5.0, "pipemorph-cpu"),
    ],
)
def test_a_constant_that_is_the_only_one_is_found(name: str, value: float, system: str) -> None:
    testbed = replace(TRUTH, constants={name: value})
    runs = [run_of(system, delay_ms=delay) for delay in (10.0, 25.0, 40.0, 60.0)]
    runs = [replace(run, slow_ms=predict(run, testbed).predicted_ms) for run in runs]
    assert dict(Calibrator(runs).calibrate().testbeds["lab"].constants) == {name: value}


def test_an_injector_of_whole_milliseconds_is_told_from_an_exact_one() -> None:
    for whole in (True, False):
        testbed = replace(TRUTH, constants={}, whole_ms=whole)
        runs = [run_of("1f1b", delay_ms=delay) for delay in (30.0, 50.0, 80.0, 120.0)]
        runs = [replace(run, slow_ms=predict(run, testbed).predicted_ms) for run in runs]
        found = Calibrator(runs).calibrate().testbeds["lab"]
        assert (found.whole_ms, dict(found.constants)) == (whole, {})


def test_constants_that_runs_cannot_tell_stay_neutral() -> None:
    """Of one rank a host, nothing tells what several share; two runs tell one constant at most."""
    assert all(one.unit and one.meaning and one.fixed_by for one in CONSTANTS.values())
    runs = made_by(TRUTH)
    assert len(Calibrator(runs).calibrate().testbeds["lab"].constants) <= 4
    assert len(Calibrator(runs[:2]).calibrate().testbeds["lab"].constants) <= 1
    exact = [replace(run, slow_ms=predict(run, beds.Testbed("lab")).predicted_ms) for run in runs]
    assert dict(Calibrator(exact).calibrate().testbeds["lab"].constants) == {}


def test_leaving_a_setting_out_predicts_it_unseen() -> None:
    runs = made_by(TRUTH, gpus=(8, 8))
    calibration = Calibrator(runs).checked()
    assert calibration.left_out is not None
    assert calibration.left_out < 0.1
    errors = calibration.testbeds["lab"].errors
    assert {system: len(own) for system, own in errors.items()} == dict.fromkeys(SYSTEMS, 2)
    found = np.abs(np.concatenate(list(errors.values())))
    assert found.mean() == pytest.approx(calibration.left_out, rel=0.1)


def test_a_single_setting_leaves_nothing_to_learn_from() -> None:
    calibration = Calibrator([run for run in made_by(TRUTH) if run.delay_ms == 10]).checked()
    assert calibration.left_out is None
    assert calibration.testbeds["lab"].errors == {}


def test_what_cannot_be_predicted_says_why() -> None:
    calibration = Calibration({"lab": replace(TRUTH, constants={"after_ms": 20.0})}, (), 0.0)
    with pytest.raises(ScenarioError, match=r"lab.csv:2: healthy_ms 15 is less than"):
        predict_all([run_of("1f1b", healthy_ms=15.0)], calibration)
    with pytest.raises(ScenarioError, match="no testbed 'field' \\(it has: lab\\)"):
        predict_all([run_of("1f1b", testbed="field")], calibration)


def test_timelines_are_the_profile_of_the_testbed_that_they_match() -> None:
    timelines = import_timelines(
        [TRACES / "a10_timelines" / f"{name}_link2_60ms.csv" for name in ("zerobubble", "1f1b")]
    )
    shape = {"stages": 4, "microbatches": 12, "slow_links": "2", "slow_sends": ((2, 3), (3, 2))}
    here = run_of("1f1b", testbed="here", healthy_ms=1600.0, slow_ms=2000.0, **shape)
    there = run_of("1f1b", testbed="there", healthy_ms=400.0, slow_ms=800.0, **shape)
    testbeds = Calibrator([here, there], timelines).calibrate().testbeds
    assert testbeds["here"].profiles == {"tiny": timelines.scenario}
    assert set(testbeds["here"].read) == {"after_ms", "idle_speed", "transfer_gib_per_s"}
    assert testbeds["here"].after_ms == pytest.approx(10, abs=3)  # 1600 ms against 1590
    assert testbeds["here"]["idle_speed"] == pytest.approx(0.955, abs=0.01)
    assert testbeds["there"].profiles == {}
    assert testbeds["there"].ratios.backward == pytest.approx(1.23, abs=0.01)


def test_operator_times_of_a_table_are_the_profile_of_their_model(tmp_path: Path) -> None:
    path = tmp_path / "operators.csv"
    path.write_text(
        "model,stage,forward_ms,backward_ms,weight_ms\n"
        "tiny,0,8,9,5\ntiny,1,10,11,6\ntiny,2,12,10,7\nother,0,10,11,6\n"
    )
    times = load_operator_times(path)
    calibration = Calibrator([run_of("1f1b"), run_of("zerobubble")], operators=times).calibrate()
    testbed = calibration.testbeds["lab"]
    assert testbed.operators("tiny", 3, 9, 1.0).forward_ms[:, 4].tolist() == [8, 10, 12]
    assert testbed.operators("other", 1, 9, 1.0).weight_ms.tolist() == [[6.0] * 9]
    assert testbed.ratios == Ratios(1.0, 1.05, 0.6)
    assert testbed.operators("other", 3, 9, 1.0).weight_ms[0, 0] == 0.6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("tiny,1,8,9,5", "operators.csv:2: tiny must have stages 0, 1, 2"),
        ("tiny,0,8,9,5\nbig,0,8,9,5\ntiny,1,8,9,5", "operators.csv:4: tiny must have stages"),
        ("tiny,0,8,-9,5", "operators.csv:2: backward_ms must be a time above 0, not '-9'"),
        ("tiny,0,8,9", "operators.csv:2: does not have as many values as the header"),
    ],
)
def test_wrong_operator_times_are_named_with_their_place(
    tmp_path: Path, rows: str, message: str
) -> None:
    path = tmp_path / "operators.csv"
    path.write_text(f"model,stage,forward_ms,backward_ms,weight_ms\n{rows}\n")
    with pytest.raises(FormatError, match=r"operators\.csv") as caught:
        load_operator_times(path)
    assert message in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from(["after_ms", "delegate_ms", "host_gib_per_s"]), st.floats(0.5, 99)
    ),
    st.booleans(),
    st.dictionaries(
        st.sampled_from(SYSTEMS), st.lists(st.floats(-0.5, 1), min_size=1, max_size=3).map(tuple)
    ),
    st.booleans(),
)
def test_calibrations_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory,
    constants: dict[str, float],
    whole: bool,
    errors: dict[str, tuple[float, ...]],
    profile: bool,
) -> None:
    path = tmp_path_factory.mktemp("calibration") / "c.toml"
    times = OperatorTimes(np.array([1.0, 2.5]), np.array([3.0, 1.0]), np.array([1.0, 1.0]))
    uneven = Scenario(stages=2, microbatches=2, forward_ms=[[1, 2], [3, 4]])
    testbed = replace(
        TRUTH,
        constants=constants,
        read=tuple(constants)[:1],
        whole_ms=whole,
        errors=errors,
        profiles={"tiny": times.scenario(3), "uneven": uneven} if profile else {},
    )
    calibration = Calibration({"lab": testbed}, ("lab.csv:2",), 0.01, 0.02)
    save_calibration(calibration, path)
    assert load_calibration(path) == calibration


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pipesim-calibration", "pipesim-scenario", "format: must be 'pipesim-calibration'"),
        ("version = 2", "version = 1", "reads version 2, not 1"),
        ("whole_ms = false", "whole_ms = 0", "testbed.lab.whole_ms: must be true or false"),
        ("read = []", 'read = ["delegate_ms", 1]', "testbed.lab.read[1]: must be text"),
        (
            "[testbed.lab.ratios]",
            "[testbed.lab.errors]\nfast = [-2.0]\n\n[testbed.lab.ratios]",
            "testbed.lab.errors.fast: must hold errors",
        ),
        ("delegate_ms = 3.0", "delegate_ms = -3.0", "delegate_ms: must not be negative"),
        ("message_bytes = 8", "message_bytes = -8", "message_bytes: must not be negative"),
        ("delegate_ms = 3.0", "delegates_ms = 3.0", "did you mean delegate_ms?"),
        ("host_gib_per_s = 8.0", "host_gib_per_s = 0.0", "must be above 0"),
        ("weight = 1.0\n", "", "the key testbed.lab.ratios.weight is missing"),
        ("[testbed.lab]", "[testbed.lab", "not TOML"),
    ],
)
def test_a_wrong_calibration_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "c.toml"
    save_calibration(Calibration({"lab": TRUTH}, ("lab.csv:2",), 0.01), path)
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    with pytest.raises(FormatError) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
