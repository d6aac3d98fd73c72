from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.cli.parsing import (
    UNITS_MS,
    SlowLink,
    duration_ms,
    durations_ms,
    limits,
    link_indices,
    names,
    slow_link,
)
from pipesim.errors import ScenarioError

numbers = st.floats(0, 1e10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20ms", 20), ("1.5s", 1500), ("300us", 0.3), ("300µs", 0.3), ("1min", 60_000), ("0ms", 0),
     (" 2 ms ", 2), ("1e-3s", 1), (".5ms", 0.5), ("5.ms", 5), ("+3ms", 3), ("-0ms", 0)],
)  # fmt: skip
def test_durations(text: str, expected: float) -> None:
    if text.startswith("-"):
        with pytest.raises(ScenarioError, match="negative"):
            duration_ms(text)
    else:
        assert duration_ms(text) == expected


@given(numbers, st.sampled_from(["ms", "s", "min"]))
def test_a_duration_is_its_number_in_its_unit(number: float, unit: str) -> None:
    assert duration_ms(f"{number!r}{unit}") == number * UNITS_MS[unit]


@given(st.floats(0, 1e15))
def test_milliseconds_are_never_rounded(number: float) -> None:
    assert duration_ms(f"{number!r}ms") == number


@pytest.mark.parametrize("text", ["20", "1.5", "1e3"])
def test_a_bare_number_has_no_unit(text: str) -> None:
    with pytest.raises(ScenarioError, match="has no unit"):
        duration_ms(text)


@pytest.mark.parametrize(
    "text",
    ["", "ms", "nan", "nanms", "inf", "infms", "1e999s", "-1ms", "1,5ms", "1_0ms", "20msec",
     "0x5ms",
     "20ms\n5ms", "١ms", "1ms2s", "--5ms"],
)  # fmt: skip
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ScenarioError):
        duration_ms(text)


@given(st.text(max_size=8))
def test_any_text_is_a_finite_time_or_an_error(text: str) -> None:
    try:
        value = duration_ms(text)
    except ScenarioError:
        return
    assert math.isfinite(value)
    assert value >= 0


def test_one_duration_for_each_stage() -> None:
    assert durations_ms("9ms") == 9
    assert durations_ms("9ms, 0.01s") == [9, 10]
    with pytest.raises(ScenarioError):
        durations_ms("9ms,")


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_links(indices: list[int]) -> None:
    assert link_indices(",".join(map(str, indices))) == indices


@pytest.mark.parametrize("text", ["", "a", "-1", "0,", "1.0", "0;1", "²", "9" * 5000])
def test_what_is_no_link(text: str) -> None:
    with pytest.raises(ScenarioError, match="is not a link"):
        link_indices(text)


@given(st.integers(0, 1000), st.booleans(), numbers)
def test_a_slow_link_in_one_direction(link: int, down: bool, delay: float) -> None:
    where = f"{link}>{link + 1}" if down else f"{link + 1}>{link}"
    expected = SlowLink(link, ("down" if down else "up",), delay)
    assert slow_link(f"{where}={delay!r}ms") == expected
    assert slow_link(f"{link}={delay!r}ms") == SlowLink(link, ("down", "up"), delay)


@pytest.mark.parametrize(
    "text", ["0", "0>2=5ms", "1>1=5ms", "0>=5ms", "=5ms", "0=5", "0=", "a=1ms"]
)
def test_what_is_no_slow_link(text: str) -> None:
    with pytest.raises(ScenarioError):
        slow_link(text)


@given(st.text(max_size=8))
def test_any_text_is_a_slow_link_or_an_error(text: str) -> None:
    try:
        slow = slow_link(text)
    except ScenarioError:
        return
    assert slow.link >= 0


def test_limits() -> None:
    assert limits("8") == 8
    assert limits("8,unlimited, 7.5") == [8, math.inf, 7.5]
    for text in ("", "-1", "nan", "inf", "1e999", "8ms", "8,"):
        with pytest.raises(ScenarioError):
            limits(text)


def test_names() -> None:
    assert names("1f1b, zb-h1:nccl") == ["1f1b", "zb-h1:nccl"]
    for text in ("", "a,", ",a", "a,b,a"):
        with pytest.raises(ScenarioError):
            names(text)
