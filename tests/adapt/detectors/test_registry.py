"""Detectors by name, and what is wrong with a name or an option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipesim.adapt.detectors import DETECTORS, detector, detector_from
from pipesim.errors import ScenarioError


def test_the_first_is_the_default() -> None:
    assert list(DETECTORS) == ["ratio", "page-hinkley", "cusum", "adwin", "bayesian"]
    one, other = detector()(), detector("ratio")()
    for value in (10, 10, 10, 10, 10, 30):
        one.update(value)
        other.update(value)
    assert one.delay_ms == other.delay_ms == 20


def test_each_link_has_a_detector_of_its_own() -> None:
    make = detector("cusum", warm_up=1)
    one, other = make(), make()
    for value in (10, 30):
        one.update(value)
    assert one.slow
    assert not other.slow
    assert other.baseline_ms is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ratios", {}, "unknown detector 'ratios': one of ratio, page-hinkley, cusum"),
        ("ratio", {"jitter": 0.1}, "the detector ratio has no option 'jitter': one of threshold"),
        ("cusum", {"confirm": 2}, "the detector cusum has no option 'confirm'"),
        ("ratio", {"decision": 1}, "has no option 'decision'"),
        ("ratio", {"threshold": 1}, "ratio: threshold must be over 1, not 1"),
        ("ratio", {"threshold": float("nan")}, "threshold must be over 1, not nan"),
        ("ratio", {"lower": 0.9}, "lower must be over 1, not 0.9"),
        ("ratio", {"threshold": 1.1}, "lower must not be over threshold, 1.1, not 1.15"),
        ("ratio", {"least_ms": 0}, "least_ms must be over 0, not 0"),
        ("ratio", {"warm_up": 0}, "warm_up must be at least 1, not 0"),
        ("ratio", {"warm_up": 2.5}, "ratio: warm_up must be a whole number, not 2.5"),
        ("ratio", {"enter": float("inf")}, "enter must be a whole number, not inf"),
        ("ratio", {"leave": 0}, "leave must be at least 1"),
        ("ratio", {"window": 1e9}, "window must be at least 1 and at most 10000, not 1e\\+09"),
        ("ratio", {"baseline_ms": -1}, "baseline_ms must be at least 0, not -1"),
        ("ratio", {"follow": 1.5}, "follow must be at least 0 and at most 1, not 1.5"),
        ("ratio", {"tolerance": -0.1}, "tolerance must be at least 0"),
        ("ratio", {"confirm": 0}, "confirm must be at least 1"),
        ("ratio", {"warm_up": True}, "ratio: warm_up must be a number, not True"),
        ("ratio", {"warm_up": "5"}, "ratio: warm_up must be a number, not '5'"),
        ("cusum", {"jitter": 0}, "cusum: jitter must be over 0, not 0"),
        ("cusum", {"allowance": -1}, "allowance must be at least 0"),
        ("cusum", {"limit": 0}, "limit must be over 0"),
        ("page-hinkley", {"allowance": -1}, "page-hinkley: allowance must be at least 0"),
        ("page-hinkley", {"limit": 0}, "page-hinkley: limit must be over 0"),
        ("adwin", {"delta": 1}, "adwin: delta must be under 1, not 1"),
        ("adwin", {"delta": 0}, "adwin: delta must be over 0, not 0"),
        ("bayesian", {"hazard": 1}, "hazard must be under 1"),
        ("bayesian", {"hazard": 0}, "hazard must be over 0"),
        ("bayesian", {"runs": 1}, "runs must be at least 2"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        detector(name, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    make = detector("ratio", warm_up=np.int64(2), threshold=np.float64(1.5))
    one = make()
    for value in (10, 10, 14.9, 15.1):
        one.update(value)
    assert one.slow


def test_a_text_names_a_detector_and_its_options() -> None:
    one = detector_from(" ratio : threshold=2, warm_up=1 ,least_ms=1e-1")()
    delays = []
    for value in (1, 1.9, 2.1):
        one.update(value)
        delays.append(one.delay_ms > 0)
    assert delays == [False, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown detector ''"),
        ("ratio:", "'' is not OPTION=NUMBER, such as threshold=1.5"),
        ("ratio:1.5", "'1.5' is not OPTION=NUMBER"),
        ("ratio:=1.5", "'=1.5' is not OPTION=NUMBER"),
        ("ratio:threshold=big", "'ratio:threshold=big': 'big' is not a number"),
        ("ratio:threshold=", "'' is not a number"),
        ("ratio:threshold=2,threshold=3", "gives threshold twice"),
        ("ratio:threshold=0.5", "ratio: threshold must be over 1, not 0.5"),
        ("ratio:speed=2", "has no option 'speed'"),
    ],
)
def test_a_text_that_is_no_detector_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        detector_from(text)
