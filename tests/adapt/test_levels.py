"""How long a delay has each of its values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.levels import (
    Band,
    Levels,
    changes,
    link_levels,
    slow_levels,
    slowest_levels,
)
from pipesim.delays import DelayTrace
from pipesim.errors import PipesimError

INF = float("inf")
TRACE = DelayTrace([0, 10, 30, 70], [[0, 5], [20, [5][0]], [20, 0], [0, 0]], end=100)
"""Slowest: 5 for 10, 20 for 60, none for 30."""


def test_shares_of_time() -> None:
    slowest = slowest_levels(TRACE)
    assert slowest.delay_ms.tolist() == [0, 5, 20]
    assert slowest.share.tolist() == [0.3, 0.1, 0.6]
    assert slowest.slow_share == pytest.approx(0.7)
    first, second = link_levels(TRACE)
    assert first.share.tolist() == [0.4, 0.6]
    assert second.share.tolist() == [0.7, 0.3]
    assert slow_levels(TRACE).weights.tolist() == [30, 60]  # 5 ms on one link, 20 on the other
    assert changes(TRACE) == [2, 1]  # what is there from 0 on is no change


def test_before_the_first_change_there_is_no_delay_and_directions_count_by_the_slower() -> None:
    trace = DelayTrace([25], [[[3, 8]]], end=100, by="iteration")
    assert slowest_levels(trace).delay_ms.tolist() == [0, 8]
    assert slowest_levels(trace).share.tolist() == [0.25, 0.75]
    assert changes(trace) == [1]


def test_failed_links_and_no_delay_at_all() -> None:
    failed = slowest_levels(DelayTrace([0, 50], [[INF], [5]], end=100))
    assert failed.failed_share == 0.5
    assert (failed.quantile(0.5), failed.quantile(0.51), failed.largest_ms) == (5, INF, 5)
    none = slowest_levels(DelayTrace([], np.zeros((0, 1)), end=1)).while_slow
    assert math.isnan(none.quantile(0.5))
    assert (none.largest_ms, none.failed_share, none.slow_share) == (0, 0, 0)


def test_a_trace_needs_an_end() -> None:
    with pytest.raises(PipesimError, match="no end"):
        slowest_levels(DelayTrace([0], [[1]]))


def test_many_levels_are_shown_in_bands() -> None:
    levels = Levels.of([0, *range(1, 31), INF], [10, *[1] * 30, 5])
    assert levels.bands((0.0, 10.0, 20.0)) == (
        Band(0, 0, pytest.approx(10 / 45)),
        Band(0, 10, pytest.approx(10 / 45)),
        Band(10, 20, pytest.approx(10 / 45)),
        Band(20, 30, pytest.approx(10 / 45)),
        Band(INF, INF, pytest.approx(5 / 45)),
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 5.0, INF]) | st.floats(0, 200), st.integers(1, 9)),
        min_size=1,
        max_size=40,
    )
)
def test_shares_add_up_and_quantiles_are_what_they_say(pieces: list[tuple[float, int]]) -> None:
    delays, weights = zip(*pieces, strict=True)
    levels = Levels.of(delays, weights)
    spread = np.repeat(delays, weights)
    for part in (0.01, 0.5, 0.99):
        expected = np.quantile(spread, part, method="inverted_cdf")
        assert levels.quantile(part) == expected
    assert levels.share.sum() == pytest.approx(1)
    bands = levels.bands()
    assert sum(band.share for band in bands) == pytest.approx(1)
    assert levels.slow_share == pytest.approx(np.mean(spread > 0))
    for band in bands:
        if band.over_ms == band.to_ms:
            inside = spread == band.to_ms
        else:
            inside = (spread > band.over_ms) & (spread <= band.to_ms)
        assert band.share == pytest.approx(np.mean(inside))
