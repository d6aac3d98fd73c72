"""A spread holds nine of ten errors, of those that it was made from and of further ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.fidelity.intervals import spread


@given(st.lists(st.floats(-0.5, 2), max_size=60))
def test_it_holds_nine_of_ten_errors(errors: list[float]) -> None:
    found = spread(errors)
    assert (found is None) == (len(errors) < 4)
    if found is not None:
        assert sum(abs(error) <= found for error in errors) >= 0.9 * len(errors)
        assert found in [abs(error) for error in errors]


@pytest.mark.parametrize("n", [9, 16, 32])
def test_it_holds_about_nine_of_ten_further_errors(n: int) -> None:
    """For errors of any one distribution: k / (n + 1) of them, here with 2,000 draws."""
    rng = np.random.default_rng(7)
    held = []
    for _ in range(2000):
        *known, further = rng.lognormal(sigma=1.0, size=n + 1)
        found = spread(known)
        assert found is not None
        held.append(further <= found)
    expected = min(int(np.ceil(0.9 * (n + 1))), n) / (n + 1)
    assert np.mean(held) == pytest.approx(expected, abs=0.02)
