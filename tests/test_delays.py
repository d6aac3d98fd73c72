"""Delay traces: piecewise constant, checked when made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.delays import DelayTrace
from pipesim.errors import ScenarioError


def test_a_delay_counts_from_its_time_on() -> None:
    trace = DelayTrace([10, 20], [[1, 2], [3, 4]])
    assert trace.links == 2
    assert trace.at(9.999) == ((0, 0), (0, 0))
    assert trace.at(10) == trace.at(19.999) == ((1, 1), (2, 2))
    assert trace.at(20) == trace.at(1e9) == ((3, 3), (4, 4))


def test_directions_of_their_own() -> None:
    assert DelayTrace([-5], [[[1, 2]]]).at(0) == ((1, 2),)


def test_arrays_are_frozen() -> None:
    times = np.array([0.0])
    trace = DelayTrace(times, [[1.0]])
    times[0] = 9
    assert trace.starts.tolist() == [0]
    with pytest.raises(ValueError, match="read-only"):
        trace.delay_ms[0] = 1


@pytest.mark.parametrize(
    ("times", "delays", "message"),
    [
        ([0, 0], [[1], [2]], "numbers that increase"),
        ([1, 0], [[1], [2]], "numbers that increase"),
        ([float("nan")], [[1]], "numbers that increase"),
        ([0], [[1], [2]], r"shape \[2, 1, 2\], expected \[1, links\]"),
        ([0], [1], r"shape \[1\], expected \[1, links\]"),
        ([0], [[-1]], "at least 0"),
        ([0], [[float("nan")]], "at least 0"),
        ([0], [[-float("inf")]], "at least 0"),
        ([0, 1], [[1], [2, 3]], "rows of one length"),
    ],
)
def test_what_is_no_trace(times: list[float], delays: list[object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        DelayTrace(times, delays)  # type: ignore[arg-type]


def test_a_trace_by_iteration() -> None:
    trace = DelayTrace([3, 5], [[1], [0]], by="iteration", end=9)
    assert [trace.at(k)[0][0] for k in range(6)] == [0, 0, 0, 1, 1, 0]
    assert [trace.next_change(k) for k in (0, 3, 5)] == [3, 5, np.inf]
    for starts, delays, end, message in (
        ([0.5], [[1]], None, "whole iterations"),
        ([0], [[np.inf]], None, "would never end"),
        ([3], [[1]], 3, "end after 0 and its last change, not at 3"),
        ([], np.zeros((0, 1)), 0, "end after 0 and its last change, not at 0"),
        ([3], [[1]], float("nan"), "end after 0 and its last change"),
        ([3], [[1]], 5.5, "end at a whole iteration"),
    ):
        with pytest.raises(ScenarioError, match=message):
            DelayTrace(starts, delays, by="iteration", end=end)
    with pytest.raises(ScenarioError, match="by time or iteration, not 'day'"):
        DelayTrace([0], [[1]], by="day")  # type: ignore[arg-type]


def test_states_begin_with_healthy_links() -> None:
    trace = DelayTrace([-10, 20], [[1, 2], [3, 4]])
    assert trace.states_ms[..., 0].tolist() == [[0, 0], [1, 2], [3, 4]]
    assert trace.states_ms.shape == (3, 2, 2)


def test_a_failed_link() -> None:
    assert DelayTrace([0, 5], [[np.inf], [0]]).at(1) == ((np.inf, np.inf),)


def test_a_window_begins_at_0_with_what_was_there() -> None:
    trace = DelayTrace([10, 20, 30], [[1], [2], [3]], end=50)
    window = trace.sliced(15, 30)
    assert (window.starts.tolist(), window.delay_ms[:, 0, 0].tolist()) == ([0, 5], [1, 2])
    assert (window.end, window.by) == (15, "time")
    assert trace.sliced(20).starts.tolist() == [0, 10]  # what changes at its start is there
    assert trace.sliced(40, 99).end == 10  # no longer than the trace
    assert DelayTrace([10], [[1]]).sliced(5).end is None
    for start, end in ((50, None), (20, 20), (30, 20)):
        with pytest.raises(ScenarioError, match=f"nothing of the trace from {start} to"):
            trace.sliced(start, end)
    with pytest.raises(ScenarioError, match="whole iterations"):
        DelayTrace([1, 4], [[1], [2]], by="iteration").sliced(0.5)


@given(
    st.lists(st.integers(0, 20), min_size=1, unique=True),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_a_window_has_the_delays_of_the_trace(times: list[int], start: int, later: int) -> None:
    trace = DelayTrace(sorted(times), [[index + 1] for index in range(len(times))])
    assert trace.sliced(start).at(later) == trace.at(start + later)
