"""The sanity check of imports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement


@pytest.mark.parametrize(
    ("scenario", "expected_ms"),
    [
        (Scenario(), 450.0),
        (Scenario(stages=4, microbatches=8).interleaved(2), 285.0),
        (Scenario(stages=4, microbatches=1, placement=(0, 1, 1, 0)), 90.0),
    ],
)
def test_without_an_order_it_is_what_megatron_runs(scenario: Scenario, expected_ms: float) -> None:
    check = check_import(Measurement(scenario, (), (), (expected_ms,)))
    assert check is not None
    assert check.simulated_ms == pytest.approx(expected_ms)
    assert check.error == pytest.approx(0)
    assert not check.doubtful


@given(st.floats(0.5, 2.0))
def test_it_doubts_what_is_over_ten_percent_off(factor: float) -> None:
    scenario = Scenario(stages=2, microbatches=5)
    order = plan(scenario, "zerobubble")
    own_ms = simulate(scenario, order, "ideal").iteration_ms
    measured = (own_ms * factor, own_ms, own_ms * factor)
    check = check_import(Measurement(scenario, (), (), measured, schedule=order))
    assert check is not None
    assert check.error == pytest.approx(1 / factor - 1)
    assert check.doubtful == (abs(1 / factor - 1) > 0.1)


def test_what_follows_the_pipeline_counts_where_it_was_timed() -> None:
    check = check_import(Measurement(Scenario(), (), (), (480.0,), after_ms=30.0))
    assert check is not None
    assert (check.simulated_ms, check.error) == (480, 0)
    assert check.how == "1F1B over exchange, and 30 ms after it"


def test_where_no_time_is_told_there_is_no_check() -> None:
    assert check_import(Measurement(Scenario(), (), ())) is None
