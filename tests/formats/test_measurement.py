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
            "BW": np.array([[[nan, 9.0]]]),
        }
    )
    assert times.median_ms["B"].tolist() == [[2, 3]]
    assert times.median_ms["W"].tolist() == [[4, 6]]
    assert times.median_ms["BW"].tolist() == [[6, 9]]
    assert times.notes == (
        "B and W of 1 operator were not measured: the fused backward was shared between them as "
        "on the rest of their stage",
        "the fused backward of 1 operator was not measured: guessed to take B + W",
    )


def test_a_stage_without_b_and_w_is_halved() -> None:
    nan = np.nan
    times = OperatorTimes.of(
        {
            "F": np.ones((1, 3, 2)),
            "B": np.array([[[2.0, nan], [nan, nan], [0.0, 0.0]]]),
            "W": np.array([[[4.0, nan], [nan, nan], [0.0, 6.0]]]),
            "BW": np.array([[[nan, 9.0], [9.0, 8.0], [nan, nan]]]),
        }
    )
    assert times.median_ms["B"].tolist() == [[2, 3], [4.5, 4], [0, 0]]
    assert times.median_ms["W"].tolist() == [[4, 6], [4.5, 4], [0, 6]]
    assert "B and W of 2 operators were not measured: each guessed to be half" in times.notes[1]


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
