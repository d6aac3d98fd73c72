"""Scenarios so small that every order can be tried."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pipesim.scenario import Scenario

__all__ = ["tiny_scenarios"]

SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((0, 1), 2),
    ((0, 1), 3),
    ((0, 1, 2), 2),
    ((0,), 3),
    ((0, 0), 2),
    (Scenario.place("v", 2, 2), 2),
    (Scenario.place("interleaved", 2, 2), 2),
)
UNITS = (1.0, 0.25, 0.1, 1 / 3, math.pi / 7)


@st.composite
def times(draw: st.DrawFn, stages: int, microbatches: int) -> Any:
    """Times, shape [S, N], that are all alike, or differ by stage, by micro-batch, or at one."""
    shape = (stages, microbatches)
    unit = draw(st.sampled_from(UNITS))
    lengths = st.integers(0 if draw(st.integers(0, 4)) == 0 else 1, 12)
    kind = draw(st.sampled_from(["alike", "stages", "one stage", "one", "all", "all"]))
    if kind == "alike":
        values = np.full(shape, draw(lengths) * unit)
    elif kind == "stages":
        values = np.array([[draw(lengths) * unit] * microbatches for _ in range(stages)])
    else:
        values = np.array(
            [[draw(lengths) * unit for _ in range(microbatches)] for _ in range(stages)]
        )
        other = np.ones(shape, dtype=bool)
        if kind == "one stage":
            other[draw(st.integers(0, stages - 1))] = False
        if kind == "one":
            other[draw(st.integers(0, stages - 1)), draw(st.integers(0, microbatches - 1))] = False
        values[other if kind != "all" else ~other] = 10.0
    return values + draw(st.sampled_from([0.0, 0.0, 0.1 + 0.2]))


@st.composite
def tiny_scenarios(draw: st.DrawFn) -> Scenario:
    """Scenarios with unequal and fractional times, delays, limits and fused backwards."""
    placement, microbatches = draw(st.sampled_from(SHAPES))
    stages = len(placement)
    backward, weight = (draw(times(stages, microbatches)) for _ in range(2))
    fused = None
    if draw(st.booleans()):
        parts = st.sampled_from([0.4, 0.75, 0.9, 1.0, 1.2])
        fused = (backward + weight) * np.array([[draw(parts)] for _ in range(stages)])
    unit = draw(st.sampled_from(UNITS))
    latency = np.zeros((stages - 1, 2))
    for link in range(stages - 1):
        if placement[link] != placement[link + 1]:
            latency[link] = [draw(st.sampled_from([0, 1, 7, 19])) * unit for _ in range(2)]
    given_back = st.sampled_from([0.5, 0.3, 0.0, 1.0])
    limits = st.sampled_from([math.inf, math.inf, 1, 1.5, 2, 2.3, 3, 4])
    return Scenario(
        stages=stages,
        microbatches=microbatches,
        placement=placement,
        forward_ms=draw(times(stages, microbatches)),
        backward_ms=backward,
        weight_ms=weight,
        fused_backward_ms=fused,
        latency_ms=latency,
        activation_limit=[draw(limits) for _ in range(max(placement) + 1)],
        released_by_b=draw(given_back | st.lists(given_back, min_size=stages, max_size=stages)),
    )
