"""Transfer times from what ranks have seen."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipesim.runtime.transfers import Log, transfer_ms

MS = 1_000_000


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
