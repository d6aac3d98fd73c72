"""Scores of a detector whose words are known."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim.adapt.detectors import Detector, detector
from pipesim.adapt.scores import Score, evaluate, scored
from pipesim.adapt.series import Series, synthetic
from pipesim.errors import ScenarioError


class _Scripted:
    """Says what it was told to, whatever is measured."""

    baseline_ms: float | None = 10.0

    def __init__(self, words: str) -> None:
        self._words = iter(words)
        self.slow, self.delay_ms = False, 0.0

    def update(self, measured_ms: float) -> None:
        word = next(self._words)
        self.slow, self.delay_ms = word != ".", 0.0 if word == "." else float(word)


def score(truth: str, words: str) -> Score:
    """Score words, where a digit is a delay in ms, on a truth that is written alike."""
    delay = np.array([0.0 if one == "." else float(one) for one in truth])

    def make() -> Detector:
        return _Scripted(words)

    return scored("scripted", "case", make, [Series(10 + delay, delay)])


def test_a_slowdown_that_is_found_late_and_left_late() -> None:
    found = score("..8888....", "....88777.")
    assert (found.slowdowns, found.missed, found.false_alarms, found.healthy) == (1, 0, 0, 6)
    assert (found.detected, found.detected_p90) == (3, 3)
    assert (found.recovered, found.recovered_p90) == (4, 4)
    assert found.error == 0
    assert found.estimates == pytest.approx(3 / 2)


def test_what_is_found_by_the_first_measurement_took_one() -> None:
    found = score(".88.", ".48.")
    assert (found.detected, found.recovered) == (1, 1)
    assert found.error == pytest.approx(0.25)
    assert found.estimates == pytest.approx(3 / 2)


def test_what_is_found_after_its_end_is_missed_and_a_false_alarm() -> None:
    found = score(".88...8.", "...8..8.")
    assert (found.slowdowns, found.missed, found.false_alarms) == (2, 1, 1)
    assert found.detected == 1
    assert found.recovered == 1
    assert found.false_per_1000 == 200


def test_a_slowdown_that_ends_with_the_series_has_no_recovery() -> None:
    found = score("..88", "..88")
    assert (found.slowdowns, found.missed, found.recovered) == (1, 0, None)


def test_a_recovery_is_looked_for_up_to_the_next_slowdown() -> None:
    found = score(".88..88.", ".888888.")
    assert (found.slowdowns, found.missed, found.recovered) == (2, 0, 1)


def test_the_mean_and_where_nine_in_ten_are() -> None:
    truth, words = "." + "8888." * 10, "." + "8888." * 8 + ".888." + "...8."
    found = score(truth, words)
    assert found.detected == pytest.approx((8 + 2 + 4) / 10)
    assert found.detected_p90 == 2


def test_without_a_slowdown_there_is_nothing_to_find() -> None:
    found = score("....", "....")
    assert (found.slowdowns, found.detected, found.error, found.estimates) == (0, None, None, None)
    assert found.false_per_1000 == 0
    assert score("88", "88").false_per_1000 is None


def test_the_default_sees_a_jump_of_half_at_once() -> None:
    steps = {
        ratio: list(synthetic(f"step to {ratio}×", trials=100))
        for ratio in ("1.2", "1.5", "2", "5", "20")
    }
    scores = {one.case: one for one in evaluate(["ratio"], series=steps)}
    for ratio in ("1.5", "2", "5", "20"):
        one = scores[ratio]
        assert one.missed == one.false_alarms == 0
        assert one.detected is not None
        assert one.detected < 1.05
        assert (one.detected_p90, one.recovered_p90) == (1, 1)
    assert scores["1.2"].missed >= 97


def test_an_unknown_detector_is_told_before_any_work() -> None:
    with pytest.raises(ScenarioError, match="unknown detector"):
        evaluate(["ratio", "oracle"], report=pytest.fail)


def test_series_of_ones_own() -> None:
    delay = np.repeat([0.0, 30.0, 0.0], 20)
    (one,) = evaluate(["cusum"], series={"mine": [Series(10 + delay, delay)]})
    assert (one.case, one.slowdowns, one.detected, one.recovered) == ("mine", 1, 1, 1)
    assert one == scored("cusum", "mine", detector("cusum"), [Series(10 + delay, delay)])
