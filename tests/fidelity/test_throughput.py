"""Measured throughput is read strictly, and predicted from a profile and one row of each model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.intervals import spread
from pipesim.fidelity.throughput import (
    SYSTEMS,
    Throughput,
    ThroughputScores,
    load_throughput,
    predict_throughput,
    profiled_ms,
)
from tests import ROOT
from tests.strategies import examples

SHIPPED = ROOT / "traces" / "zero_bubble_throughput.csv"
HEADER, *LINES = SHIPPED.read_text().splitlines()
ROWS = load_throughput(SHIPPED)
MODELS = ("1.5B", "14.6B")
TINY = Throughput(
    model="tiny",
    system="1F1B",
    layers=6,
    stages=2,
    microbatch_size=1,
    microbatches=4,
    forward_ms=30,
    backward_ms=30,
    weight_ms=30,
    comm_ms=1,
    iteration_ms=None,
)


FEW = [row for row in ROWS if row.microbatches <= 48]
"""Those that are predicted in no time."""


@pytest.fixture(scope="module")
def shipped() -> ThroughputScores:
    return predict_throughput(FEW)


@pytest.fixture(scope="module")
def every() -> ThroughputScores:
    return predict_throughput(ROWS)


# -- what the shipped rows say -------------------------------------------------------------


def test_the_shipped_rows() -> None:
    assert len(ROWS) == 36
    assert {row.system for row in ROWS if row.iteration_ms is None} == {"ZB-H1", "ZB-H2"}
    first = ROWS[0]
    assert (first.layers, first.stages, first.microbatch_size, first.microbatches) == (22, 8, 6, 24)
    assert (first.forward_ms, first.comm_ms, first.iteration_ms) == (18.522, 0.601, 1525.4)
    assert first.place == f"{SHIPPED}:2"


@pytest.mark.slow
def test_all_but_the_scaling_rows_are_predicted_within_the_promised_errors(
    every: ThroughputScores,
) -> None:
    assert len(every.predictions) == 22
    assert every.mape <= 0.02
    assert every.worst == max(map(abs, every.errors)) <= 0.05
    assert all(one.mape <= 0.04 for one in every.by_system().values())
    assert len(every.rankings()) == 6
    assert every.ranking_agreement == 1


def test_those_of_few_micro_batches_are_predicted_within_the_promised_errors(
    shipped: ThroughputScores,
) -> None:
    assert len(shipped.predictions) == 10
    assert shipped.mape <= 0.03
    assert shipped.worst <= 0.05
    assert shipped.rankings().keys() == {
        ("1.5B", 8, 6, 24),
        ("1.5B", 8, 6, 32),
        ("14.6B", 16, 1, 48),
    }
    assert shipped.ranking_agreement == 1


@pytest.mark.slow
def test_a_model_is_predicted_without_the_others(every: ThroughputScores) -> None:
    both = every.grouped(lambda one: one.measured.model)
    assert all(one.mape <= 0.025 for one in both.values())
    alone = predict_throughput([row for row in ROWS if row.model == "1.5B"])
    for one, other in zip(alone.predictions, both["1.5B"].predictions, strict=True):
        assert one.spread == pytest.approx(other.spread, abs=1e-4)  # from what is known of 14.6B
        assert replace(other, spread=one.spread) == one


@pytest.mark.slow
def test_intervals_are_of_the_errors_of_other_models(every: ThroughputScores) -> None:
    large = [one for one in every.predictions if one.measured.model == "14.6B"]
    largest = max(abs(one.measured_ms / one.predicted_ms - 1) for one in large)
    small = [one for one in every.predictions if one.measured.model == "1.5B"]
    assert {one.spread for one in small} == {largest}  # of eleven, for 11 / 12 of further ones


@pytest.mark.slow
def test_the_errors_that_are_known_before_are_those_of_the_shipped_rows(
    every: ThroughputScores,
) -> None:
    """A model that is alone in its file, and not among those, has an interval from all of them."""
    errors = [one.measured_ms / one.predicted_ms - 1 for one in every.predictions]
    alone = [replace(row, model="6.2B") for row in ROWS if row.model == "1.5B"]
    for one in predict_throughput(alone).predictions:
        assert one.spread == pytest.approx(spread(errors), abs=1e-4)
        assert one.interval_ms is not None


def test_runs_take_longer_than_the_profile_by_the_same_part_for_any_number_of_micro_batches(
    shipped: ThroughputScores,
) -> None:
    """Which is why one factor is taken, and not a time that follows the pipeline."""
    groups = shipped.grouped(lambda one: f"{one.measured.model} {one.system}")
    assert all(max(one.errors) - min(one.errors) <= 0.025 for one in groups.values())
    assert all(1.02 < factor < 1.1 for _, factor in shipped.scaled_on.values())


def test_three_digits_of_throughput_are_up_to_half_a_percent(shipped: ThroughputScores) -> None:
    """The largest: 1.40 ± 0.005 is the scaling row; 11.8 ± 0.05 as well; so 12.5 ± 0.05."""
    assert shipped.rounding == pytest.approx(0.05 / 12.5, rel=1e-3)


# -- the rule ------------------------------------------------------------------------------


def test_the_first_system_with_the_fewest_micro_batches_scales_its_model(
    shipped: ThroughputScores,
) -> None:
    for model, fewest in zip(MODELS, (24, 48), strict=True):
        first, factor = shipped.scaled_on[model]
        assert (first.model, first.system, first.microbatches) == (model, "1F1B", fewest)
        assert first.iteration_ms == pytest.approx(factor * profiled_ms(first))
        assert all(one.measured is not first for one in shipped.predictions)
    split = [row for row in reversed(ROWS) if row.system == "ZB-2p" and row.model == "1.5B"]
    (first, _) = predict_throughput(split).scaled_on["1.5B"]
    assert (first.system, first.microbatches) == ("ZB-2p", 24)


def test_a_prediction_does_not_look_at_what_it_predicts(shipped: ThroughputScores) -> None:
    small = [row for row in ROWS if row.microbatches == 24]
    blind = [row if row is ROWS[0] else replace(row, iteration_ms=1.0) for row in small]
    found = {one.system: one.predicted_ms for one in predict_throughput(blind).predictions}
    for one in shipped.predictions:
        if one.measured in small:
            assert found[one.system] == one.predicted_ms


@examples(0.2)
@given(
    system=st.sampled_from(list(SYSTEMS)),
    groups=st.integers(1, 4),
    slower=st.floats(0.5, 2),
    longer=st.floats(0.5, 2),
)
def test_neither_unit_of_time_matters(
    system: str, groups: int, slower: float, longer: float
) -> None:
    """Not that of the profile, and measured times are predicted in their own."""
    run = replace(TINY, system=system, microbatches=2 * groups, iteration_ms=900.0)
    rows = [run, replace(run, system="ZB-2p", iteration_ms=700.0)]
    scaled = [
        replace(
            row,
            forward_ms=row.forward_ms * longer,
            backward_ms=row.backward_ms * longer,
            weight_ms=row.weight_ms * longer,
            comm_ms=row.comm_ms * longer,
            iteration_ms=(row.iteration_ms or 0) * slower,
        )
        for row in rows
    ]
    (one,), (other,) = predict_throughput(rows).predictions, predict_throughput(scaled).predictions
    assert other.predicted_ms == pytest.approx(slower * one.predicted_ms, rel=1e-6)


def test_profiled_iterations_by_hand() -> None:
    """Two stages, four micro-batches, messages of 1 ms that block where Megatron's do.

    The last device starts when F and a message have ended and never waits for longer than messages
    take; then a message and a backward follow. 1F1B: an exchange after each backward. Interleaved,
    three chunks of 10 + 20 ms: one after each of 4 warm-up forwards, two after each of 7 pairs and
    one after the eighth, and one after each of 3 backwards.
    """
    assert profiled_ms(TINY) == (30 + 1) + (4 * 90 + 3) + (1 + 60)
    interleaved = profiled_ms(replace(TINY, system="1F1B-I"))
    assert interleaved == (10 + 1) + (12 * 30 + 4 + 15 + 3) + (1 + 20)


@pytest.mark.parametrize(("layers", "chunks"), [(3, 2), (4, 2), (5, 3), (6, 3)])
def test_a_chunk_is_one_layer_and_the_end_stages_may_lack_one(layers: int, chunks: int) -> None:
    """A bubble of (D − 1) · (F + B + W) / v, where messages are instant."""
    row = replace(TINY, system="1F1B-I", layers=layers, comm_ms=0)
    assert profiled_ms(row) == pytest.approx(4 * 90 + 90 / chunks)


def test_the_iteration_of_a_split_backward_is_its_longest_stage_span() -> None:
    """ZB-2p has no bubble, though the last device starts late and ends late."""
    row = replace(TINY, system="ZB-2p", microbatches=12, comm_ms=0)
    assert profiled_ms(row) == 12 * 90


# -- what cannot be ------------------------------------------------------------------------


def test_one_row_has_nothing_to_scale_it() -> None:
    with pytest.raises(ScenarioError, match="no model has two measured rows"):
        predict_throughput([ROWS[0], ROWS[5], replace(ROWS[1], iteration_ms=None)])


def test_a_shape_without_a_schedule_is_named_with_its_place() -> None:
    for odd in (replace(ROWS[6], microbatches=n) for n in (4, 20, 25)):
        with pytest.raises(ScenarioError, match=r"csv:8: 1F1B-I needs a multiple of 8 micro"):
            predict_throughput([ROWS[0], odd])


def test_a_chunk_on_each_device_is_not_interleaved() -> None:
    with pytest.raises(ScenarioError, match=r"throughput\.csv:8: 1F1B-I needs more layers than"):
        profiled_ms(replace(ROWS[6], layers=8))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.5B,", ",", "t.csv:2: model must be a name, not ''"),
        (",22,8,", ",22,0,", "t.csv:2: stages must be a whole number above 0, not '0'"),
        (",1F1B,", ",1f1b,", "t.csv:2: system must be one of 1F1B, 1F1B-I, ZB-H1"),
        (",18.522,", ",0,", "t.csv:2: forward_ms must be a time above 0, not '0'"),
        (",0.601,", ",,", "t.csv:2: comm_ms must be a time of at least 0, not ''"),
        (",1525.4,", ",inf,", "t.csv:2: iteration_ms must be a time above 0, or empty"),
        (",1525.4,", ",0,", "t.csv:2: iteration_ms must be a time above 0, or empty"),
        (",0.2431", "", "t.csv:2: does not have as many values as the header"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "t.csv"
    assert old in LINES[0]
    path.write_text(f"{HEADER}\n{LINES[0].replace(old, new)}\n")
    with pytest.raises(FormatError) as caught:
        load_throughput(path)
    assert message in str(caught.value)


@given(st.integers(0, 400), st.binary(max_size=4))
def test_damage_is_an_error_or_no_damage(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("throughput") / "t.csv"
    content = "\n".join([HEADER, *LINES[:3], ""]).encode()
    path.write_bytes(content[:at] + noise + content[at + len(noise) :])
    with suppress(FormatError):
        assert all(row.forward_ms > 0 for row in load_throughput(path))
