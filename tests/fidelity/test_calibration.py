"""Fits find the constants that made the data, and keep what they found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity import testbed as beds
from pipesim.fidelity.calibration import Calibration, Calibrator, predict_all
from pipesim.fidelity.calibration_file import load_calibration, save_calibration
from pipesim.fidelity.runs import SYSTEMS, MeasuredRun
from pipesim.fidelity.testbed import CONSTANTS, predict, profiled
from pipesim.formats.operator_timeline import import_timelines
from tests import ROOT

TRACES = ROOT / "traces"
TRUTH = beds.Testbed(
    "lab",
    p2p_streams="device",
    constants={
        "after_ms": 20.0,
        "transfer_gib_per_s": 5.0,
        "delegate_ms": 3.0,
        "host_gib_per_s": 8.0,
    },
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
        for per_node, delay in zip(gpus, (25.0, 10.0), strict=True)
    ]
    return [replace(run, slow_ms=predict(run, testbed).slow_ms) for run in runs]


def test_a_profile_gives_the_healthy_iteration_back() -> None:
    for system, planner in (("1f1b", "1f1b"), ("zerobubble", "zerobubble")):
        run = run_of(system)
        scenario = profiled(run, TRUTH)
        schedule = plan(Scenario(stages=3, microbatches=6), planner)
        healthy = simulate(scenario, schedule, TRUTH.nccl(run)).iteration_ms
        assert healthy + 20 == pytest.approx(run.healthy_ms, rel=1e-6)


def test_a_fit_finds_the_constants_that_made_the_runs() -> None:
    runs = made_by(TRUTH)
    calibration = Calibrator(runs).calibrate()
    assert calibration.residual < 1e-3
    found = calibration.testbeds["lab"]
    assert set(found.constants) == set(TRUTH.constants)
    for run, prediction in zip(runs, predict_all(runs, calibration), strict=True):
        assert prediction.slow_ms == pytest.approx(run.slow_ms, rel=5e-3)


def test_a_testbed_has_at_most_four_constants_with_units() -> None:
    assert all(constant.unit and constant.meaning for constant in CONSTANTS.values())
    for several in (1, 8):
        runs = [replace(run, gpus_per_node=several) for run in made_by(TRUTH)]
        found = Calibrator(runs[:2]).calibrate().testbeds["lab"]
        assert len(found.constants) <= 4


def test_leaving_a_setting_out_predicts_it_unseen() -> None:
    runs = made_by(TRUTH, gpus=(8, 8))
    predictions = Calibrator(runs).leave_one_setting_out()
    assert len(predictions) == len(runs)
    assert np.abs([one.error for one in predictions]).max() < 0.1
    with pytest.raises(ScenarioError, match="testbed lab has only one setting"):
        Calibrator(runs[:1]).leave_one_setting_out()


def test_what_cannot_be_predicted_says_why() -> None:
    calibration = Calibration({"lab": TRUTH}, (), 0.0)
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
    assert testbeds["here"].profile == timelines.scenario
    assert testbeds["there"].profile is None
    assert testbeds["there"].backward == pytest.approx(1.23, abs=0.01)


@given(
    st.dictionaries(
        st.sampled_from(["after_ms", "delegate_ms", "host_gib_per_s"]), st.floats(0.5, 99)
    ),
    st.sampled_from(["device", "peer"]),
)
def test_calibrations_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, constants: dict[str, float], streams: str
) -> None:
    path = tmp_path_factory.mktemp("calibration") / "c.toml"
    testbed = replace(TRUTH, constants=constants, p2p_streams=streams)
    calibration = Calibration({"lab": testbed}, ("lab.csv:2",), 0.01, 0.02)
    save_calibration(calibration, path)
    assert load_calibration(path) == calibration


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pipesim-calibration", "pipesim-scenario", "format: must be 'pipesim-calibration'"),
        ("version = 1", "version = 2", "reads version 1, not 2"),
        ('p2p_streams = "device"', 'p2p_streams = "one"', "testbed.lab.p2p_streams: must be one"),
        ("delegate_ms = 3.0", "delegate_ms = -3.0", "delegate_ms: must not be negative"),
        ("delegate_ms = 3.0", "delegates_ms = 3.0", "did you mean delegate_ms?"),
        ("host_gib_per_s = 8.0", "host_gib_per_s = 0.0", "must be above 0"),
        ("weight = 1.0\n", "", "the key testbed.lab.weight is missing"),
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
