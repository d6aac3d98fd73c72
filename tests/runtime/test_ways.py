"""Lanes for the ways of a schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from pipesim.runtime.lanes import MOST_DEPTH
from pipesim.runtime.ways import _lane


@pytest.mark.parametrize(
    ("microbatches", "slots"), [(12, 24), (MOST_DEPTH, 2 * MOST_DEPTH), (5000, 3 * MOST_DEPTH)]
)
def test_a_lane_has_as_many_slots_as_messages_or_as_it_may(microbatches: int, slots: int) -> None:
    sends = SimpleNamespace(stage_index=0, act_send_info={0: [1], 1: [1]}, group_rank=0)
    rerouted: Any = SimpleNamespace(
        ends=lambda way: (0, 1),
        stages=[sends],
        schedule=SimpleNamespace(_n_microbatches=microbatches),
    )
    assert _lane(rerouted, (0, "down"), delegates=3).slots == slots
