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
    assert times.notes == ("the fused backward was not measured: guessed to take B + W",)
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
        "B and W of 1 operators were not measured: guessed to be half of the fused backward each",
        "the fused backward of 1 operators was not measured: guessed to take B + W",
    )
