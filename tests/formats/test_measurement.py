from __future__ import annotations

import numpy as np

from pipesim.formats.measurement import OperatorTimes
from pipesim.scenario import Scenario


def test_medians_and_quartile_ranges() -> None:
    forward = np.array([[[1.0, 5.0]], [[3.0, 5.0]], [[2.0, 9.0]]])
    times = OperatorTimes.of({"F": forward, "B": forward * 2, "W": forward * 3})
    assert times.median_ms["F"].tolist() == [[2, 5]]
    assert times.median_ms["BW"].tolist() == [[10, 25]]
    assert times.spread_ms["W"].tolist() == [[3, 6]]
    assert set(times.spread_ms) == {"F", "B", "W"}
    assert times.notes == (
        "F 3.5 ms ± 0.75, B 7 ms ± 1.5, W 10.5 ms ± 2.25 (medians over the operators; ±: half "
        "their quartile range)",
        "the fused backward was not measured: guessed to take B + W",
    )
    assert Scenario(stages=1, microbatches=2, **times.fields()).weight_ms.tolist() == [[6, 15]]


def test_operators_of_both_kinds() -> None:
    """Zero-bubble schedules end with some full backwards."""
    nan = np.nan
    times = OperatorTimes.of(
        {
            "F": np.array([[[1.0, 1.0]]]),
            "B": np.array([[[2.0, nan]]]),
            "W": np.array([[[4.0, nan]]]),
            "BW": np.array([[[nan, 8.0]]]),
        }
    )
    assert times.median_ms["B"].tolist() == [[2, 4]]
    assert times.median_ms["W"].tolist() == [[4, 4]]
    assert times.median_ms["BW"].tolist() == [[6, 8]]
    assert times.notes == (
        "B and W of 1 operator were not measured: each guessed to be half of the fused backward",
        "the fused backward of 1 operator was not measured: guessed to take B + W",
    )


def test_an_operator_that_ran_once_has_no_spread() -> None:
    nan = np.nan
    times = OperatorTimes.of(
        {
            "F": np.array([[[1.0]], [[2.0]]]),
            "B": np.array([[[2.0]], [[nan]]]),
            "W": np.array([[[2.0]], [[nan]]]),
            "BW": np.array([[[nan]], [[5.0]]]),
        }
    )
    assert times.notes == (
        "F 1.5 ms ± 0.25, B 2 ms, W 2 ms, BW 5 ms (medians over the operators; ±: half their "
        "quartile range)",
    )


def test_guessed_halves_add_up() -> None:
    """Rounding must not tell the fused backward from the sum of its halves."""
    fused = np.array([[[48.6091]], [[48.6092]]])
    times = OperatorTimes.of({"F": fused, "BW": fused})
    assert times.median_ms["B"] + times.median_ms["W"] == times.median_ms["BW"]
