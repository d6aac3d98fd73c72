"""Levels of times: found where there are some, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.formats.regimes import levels


@given(
    st.lists(st.sampled_from([100.0, 130.0, 190.0]), min_size=1, max_size=60),
    st.integers(0, 2**32 - 1),
)
def test_levels_are_found_in_any_order_and_in_any_unit(centres: list[float], seed: int) -> None:
    often = [centre for centre in set(centres) if centres.count(centre) >= 3]
    centres = [centre for centre in centres if centre in often]
    rng = np.random.default_rng(seed)
    times = np.array(centres) * rng.uniform(0.995, 1.005, len(centres))
    expected = np.searchsorted(sorted(set(centres)), centres)
    assert levels(times).tolist() == expected.tolist()
    assert levels(times * 1e-3).tolist() == expected.tolist()


@pytest.mark.parametrize("size", [50, 200, 1000])
def test_noise_alone_is_one_level(size: int) -> None:
    rng = np.random.default_rng(size)
    for noise in (
        rng.normal(430, 9, size),
        rng.uniform(300, 600, size),
        430 * rng.lognormal(0, 0.2, size),
        400 + 40 * rng.exponential(size=size),
    ):
        assert not levels(noise).any()


@given(st.lists(st.floats(1, 1e6), max_size=30), st.integers(1, 4))
def test_levels_are_ordered_and_large_enough(times: list[float], smallest: int) -> None:
    found = levels(times, smallest=smallest)
    ascending = found[np.argsort(times, kind="stable")]
    assert (np.diff(ascending) >= 0).all()
    if len(times) >= 2 * smallest:
        assert (np.bincount(found) >= smallest).all()


@given(st.integers(1, 9), st.integers(1, 9), st.floats(1.15, 9))
def test_no_median_lies_between_two_levels(fast: int, slow: int, factor: float) -> None:
    times = np.array([100.0] * fast + [100 * factor] * slow)
    for part in range(int((found := levels(times)).max()) + 1):
        assert np.median(times[found == part]) in (100, 100 * factor)


@given(st.sets(st.sampled_from([1.5, 2, 3, 5, 8]), min_size=1), st.integers(2, 20))
def test_what_is_longer_need_not_be_alike(slow: set[float], usual: int) -> None:
    times = np.concatenate([430 * np.linspace(0.999, 1.001, usual), 430 * np.array([*slow])])
    found = levels(times, smallest=1)
    assert not found[:usual].any()
    assert sorted(found[usual:]) == [*range(1, len(slow) + 1)]
