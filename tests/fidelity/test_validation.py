"""What the shipped calibration reaches on the measured runs, and how that is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipesim.errors import ScenarioError
from pipesim.fidelity.calibration import predict_all
from pipesim.fidelity.calibration_file import load_calibration
from pipesim.fidelity.prediction import Prediction, injected_ms
from pipesim.fidelity.runs import load_runs
from pipesim.fidelity.timelines import start_errors
from pipesim.fidelity.validation import Validation
from pipesim.formats.operator_timeline import import_timelines
from pipesim.plot.validation import scatter
from pipesim.scenario import TIME_OF
from pipesim.transport import Nccl
from tests import ROOT

TRACES = ROOT / "traces"
RUNS = load_runs(TRACES / "measured_iterations.csv")
CALIBRATION = load_calibration(TRACES / "calibration.toml")


@pytest.fixture(scope="module")
def shipped() -> Validation:
    return Validation(predict_all(RUNS, CALIBRATION))


def test_all_measured_runs_are_predicted_within_the_promised_errors(shipped: Validation) -> None:
    assert shipped.mape <= 0.022
    assert abs(shipped.bias) <= 0.01
    assert shipped.worst <= 0.12
    assert shipped.ranking_agreement is not None
    assert shipped.ranking_agreement >= 11 / 12
    for testbed in shipped.by_testbed().values():
        for system in testbed.by_system().values():
            assert system.mape <= 0.04


def test_the_calibration_says_what_it_was_fitted_to(shipped: Validation) -> None:
    assert len(CALIBRATION.fitted_to) == len(RUNS)
    assert CALIBRATION.residual == pytest.approx(shipped.mape, rel=1e-6)
    assert CALIBRATION.left_out is not None
    assert CALIBRATION.residual <= CALIBRATION.left_out <= 0.03
    for testbed in CALIBRATION.testbeds.values():
        assert len(set(testbed.constants) - set(testbed.read)) <= 4


def test_a_prediction_does_not_look_at_what_it_predicts(shipped: Validation) -> None:
    blind = [replace(run, slow_ms=1.0) for run in RUNS[:6]]
    for one, other in zip(predict_all(blind, CALIBRATION), shipped.predictions, strict=False):
        assert one.predicted_ms == other.predicted_ms


def test_models_that_no_fit_has_seen_are_predicted_from_their_healthy_iteration() -> None:
    unseen = replace(
        RUNS[0], model="60B", stages=6, microbatches=18, gpus_per_node=8, slow_sends=((4, 5),)
    )
    for system in ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph"):
        (prediction,) = predict_all([replace(unseen, system=system)], CALIBRATION)
        assert prediction.predicted_ms > unseen.healthy_ms


@pytest.mark.parametrize("delay", [60, 120])
@pytest.mark.parametrize(
    ("system", "sends"),
    [
        ("1f1b", [(2, "down"), (2, "up"), (1, "up")]),
        ("zerobubble", [(2, "down"), (2, "up")]),
        ("pipemorph-cpu", [(2, "down"), (2, "up")]),
        ("pipemorph", [(2, "down"), (2, "up")]),
    ],
)
def test_every_operator_of_a_delayed_a10_iteration_starts_where_predicted(
    system: str, sends: list[tuple[int, str]], delay: int
) -> None:
    timelines = import_timelines(
        [TRACES / "a10_timelines" / f"{system}_link2_{delay}ms.csv"], message_bytes=8 * 2**20
    )
    run = next(
        run for run in RUNS if (run.testbed, run.system, run.delay_ms) == ("a10", system, delay)
    )
    slow = timelines.scenario
    testbed = CALIBRATION.testbeds["a10"]
    if not run.delegated:
        speed = testbed["idle_speed"]
        faster = {name: speed * getattr(slow, name) for name in TIME_OF.values()}
        slow = slow.replaced(**faster)
    lasts_ms = delay if run.delegated else injected_ms(delay, testbed)
    for link, direction in sends:
        slow = slow.with_delay(lasts_ms, [link], directions=[direction])  # type: ignore[list-item]
    kind = "delegated" if run.delegated else "exchange" if system == "1f1b" else "nccl"
    found = start_errors(timelines, slow, testbed.transport(kind, delegates=run.delegates))
    assert len(found) == 3
    for one in found:
        assert one.median_start_error <= 0.03
        assert abs(one.error) <= 0.1


def test_timelines_without_a_delay_have_nothing_to_compare() -> None:
    path = TRACES / "a10_timelines" / "zerobubble_link2_60ms.csv"
    timelines = import_timelines([path], iterations=[5, 6, 7, 12, 13, 14])
    with pytest.raises(ScenarioError, match="no delayed iteration"):
        start_errors(timelines, timelines.scenario, Nccl())


def made(*pairs: tuple[float, float]) -> Validation:
    """Runs of one setting, measured and predicted."""
    run = RUNS[0]
    return Validation(
        [Prediction(replace(run, slow_ms=measured), predicted) for measured, predicted in pairs]
    )


def test_errors_are_counted_by_hand() -> None:
    validation = made((100, 110), (200, 190), (400, 400))
    assert validation.mape == pytest.approx(0.05)
    assert validation.bias == pytest.approx(0.05 / 3)
    assert validation.worst == pytest.approx(0.1)
    document = validation.as_dict()
    assert [row["error"] for row in document["rows"]] == pytest.approx([0.1, -0.05, 0])  # type: ignore[index,attr-defined]
    assert set(document) >= {"mape", "bias", "by_testbed", "by_system", "ranking_agreement"}


@pytest.mark.parametrize(
    ("pairs", "agreement"),
    [
        ([(100, 1), (200, 2)], 1.0),
        ([(100, 2), (200, 1)], 0.0),
        ([(100, 2), (102, 1)], None),  # the measurement does not tell them apart
        ([(100, 2), (102, 1), (200, 3)], 1.0),
        ([(100, 100)], None),
    ],
)
def test_rankings_count_only_what_the_measurement_tells_apart(
    pairs: list[tuple[float, float]], agreement: float | None
) -> None:
    assert made(*pairs).ranking_agreement == agreement


def test_the_scatter_shows_every_run(shipped: Validation) -> None:
    axes = scatter(shipped).axes[0]
    points = np.concatenate([np.asarray(c.get_offsets()) for c in axes.collections[1:]])
    assert len(points) == 48
    assert {tuple(p) for p in points} == {
        (one.measured_ms, one.predicted_ms) for one in shipped.predictions
    }
