"""Transfer times from what ranks have seen."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.runtime.transfers import Log, transfer_ms

MS = 1_000_000


@pytest.mark.filterwarnings("ignore:clocks of two ranks")
@given(
    offset=st.integers(-(10**12), 10**12),
    delay_ms=st.integers(0, 50),
    handed=st.lists(st.integers(1_000, 100_000), min_size=1, max_size=5, unique=True),
)
def test_clocks_that_differ_shift_all_times_alike(
    offset: int, delay_ms: int, handed: list[int]
) -> None:
    """The receiver waits for each message; its clock is ahead by ``offset``."""
    sender = Log([(0, "up", i, at * MS) for i, at in enumerate(handed)], [])
    landed = [(at + delay_ms) * MS + offset for at in handed]
    receiver = Log([], [(0, "up", i, 0, at) for i, at in enumerate(landed)])
    ((down, up),) = transfer_ms([receiver, sender], links=1)
    assert math.isnan(down)
    assert up == max(0, delay_ms * MS + offset) / 1e6


def test_messages_that_waited_for_their_receiver_count_only_where_none_did_not() -> None:
    sent = [(1, "down", i, 10 * i * MS) for i in range(3)]
    late = [(1, "down", i, (10 * i + 7) * MS, (10 * i + 9) * MS) for i in range(2)]
    ready = [(1, "down", 2, 0, 23 * MS)]
    only_late = transfer_ms([Log(sent, late)], links=2)
    with_one_ready = transfer_ms([Log(sent, [*late, *ready])], links=2)
    assert np.isnan(only_late[0]).all()
    assert only_late[1, 0] == 9.0  # no longer than that
    assert with_one_ready[1, 0] == 3.0


def test_the_median_counts() -> None:
    sent = [(0, "down", i, 0) for i in range(3)]
    received = [(0, "down", i, -1, at * MS) for i, at in enumerate((1, 2, 90))]
    assert transfer_ms([Log(sent, received)], links=1)[0, 0] == 2.0


def test_what_was_received_without_a_sender_says_nothing() -> None:
    assert np.isnan(transfer_ms([Log([], [(0, "down", 0, 0, MS)])], links=1)).all()


@pytest.mark.parametrize(("landed", "warns"), [(-50.0, True), (-0.5, False), (20.0, False)])
def test_clocks_that_differ_are_not_passed_over(landed: float, warns: bool) -> None:
    sender = Log([(0, "down", 0, 100 * MS)], [])
    receiver = Log([], [(0, "down", 0, 0, round((100 + landed) * MS))])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        transfer_ms([sender, receiver], links=1)
    texts = ["clocks of two ranks differ by at least 50 ms: what is late by less may not be seen"]
    assert [str(one.message) for one in said] == texts * warns
