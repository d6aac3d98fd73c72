"""Events put in order and pared down, against what a longest path says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipesim.engine.compiled.loops import times
from pipesim.engine.compiled.ordering import binary, grouped, pared, topological

Indices = NDArray[np.int32]


def happened(waits: list[list[int]], own: list[float], *, pare: bool) -> dict[int, float]:
    """When each event happens that is left: event k waits for ``waits[k]``, then takes own[k]."""
    waiting = np.array([k for k, some in enumerate(waits) for _ in some], dtype=np.int32)
    awaited = np.array([other for some in waits for other in some], dtype=np.int32)
    order = topological(waiting, awaited, len(waits))
    assert len(order) == len(waits)
    idle = np.array(own) == 0
    idle[[0, -1]] = False
    first, given_waits = grouped(waiting, awaited, len(waits))
    needed = (
        pared(order, waiting, awaited, idle)
        if pare
        else (first[:-1], first[1:], given_waits, np.zeros_like(idle))
    )
    left, right, event, place = binary(order, *needed)
    weights = np.array([0.0, *own])
    result = times(left, right, np.where(event < 0, 0, event + 1).astype(np.int32), weights)
    return {k: float(result[at]) for k, at in enumerate(place) if at >= 0}


def expected(waits: list[list[int]], own: list[float]) -> list[float]:
    ends: list[float] = []
    for some, duration in zip(waits, own, strict=True):
        ends.append(max((ends[other] for other in some), default=0.0) + duration)
    return ends


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    """Events that wait for earlier ones; a good part of them takes no time."""
    count = draw(st.integers(2, 30))
    waits = [[]] + [
        draw(st.lists(st.integers(0, k - 1), min_size=1, max_size=5)) for k in range(1, count)
    ]
    own = [0.0] + [draw(st.sampled_from([0.0, 0.0, 1.0, 3.0])) for _ in range(1, count)]
    return waits, own


@given(graphs(), st.booleans())
def test_every_event_that_is_left_happens_when_it_should(
    graph: tuple[list[list[int]], list[float]], pare: bool
) -> None:
    waits, own = graph
    ends = expected(waits, own)
    left = happened(waits, own, pare=pare)
    assert left == {k: ends[k] for k in left}
    assert {k for k, duration in enumerate(own) if duration} <= left.keys()


def test_lists_that_grow_on_the_way() -> None:
    """Idle events in a row, each with the only follower: their lists are copied every time."""
    fan, chain = 40, 60
    waits: list[list[int]] = [[], *([0] for _ in range(fan))]
    own = [0.0, *(float(k) for k in range(1, fan + 1))]
    previous = list(range(1, fan + 1))
    for _ in range(chain):
        waits.append(previous)
        own.append(0.0)
        waits.append([0])
        own.append(1.0)
        previous = [len(waits) - 2, len(waits) - 1]
    waits.append(previous)
    own.append(5.0)
    left = happened(waits, own, pare=True)
    assert left[len(waits) - 1] == fan + 5
    assert len(left) < len(waits) - chain / 2
