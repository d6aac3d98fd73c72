"""The compiled loops of the evaluator, and how pipesim compiles: with numba, once.

Machine code is cached on disk and numba is imported with this module alone, which nothing
imports before it has something to evaluate. numba looks only at a function's own file to see
whether its machine code is stale, so functions that call each other stay in one file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from pipesim.scenario import Array

__all__ = ["TILE", "injected_times", "jit", "makespans", "times"]

TILE = 16
"""Scenarios of a batch that are evaluated side by side, in vector registers."""

F = TypeVar("F", bound=Callable[..., Any])
Indices = NDArray[np.int32]


def jit(function: F) -> F:
    """Compile a function when it is first called, without the interpreter lock."""
    try:
        return cast(F, numba.njit(function, cache=True, nogil=True))
    except RuntimeError:  # no directory that the cache could be written to
        return cast(F, numba.njit(function, nogil=True))


@jit
def times(left: Indices, right: Indices, own: Indices, weights: Array) -> Array:
    """When each event happens, shape [E]."""
    result = np.empty(len(own))
    result[0] = 0.0
    for i in range(1, len(own)):
        a, b = result[left[i]], result[right[i]]
        result[i] = (a if a > b else b) + weights[own[i]]
    return result


@jit
def injected_times(
    left: Indices,
    right: Indices,
    own: Indices,
    weights: Array,
    message: Indices,
    sender: Indices,
    every: NDArray[np.int64],
    starts: Array,
    table: Array,
    start: float,
    by_time: bool,
    memory: NDArray[np.int64],
    sent_ms: Array,
) -> Array:
    """When each event happens under an injection, shape [E].

    Parameters
    ----------
    left, right, own, weights
        As for :func:`times`; without what is injected.
    message, sender : int arrays, shape [E]
        Which message an event sends, way after way and micro-batch after micro-batch, and who
        sends it; −1: none.
    every : int array, shape [senders]
        Sends from one look of a sender to the next.
    starts, table, start, by_time
        As of :class:`pipesim.engine.injection.Injection`; the table is of shape [K + 1, ways].
    memory : int array, shape [senders, 2]
        What each sender has sent and knows, which is brought up to date.
    sent_ms : array, shape [messages]
        The delays of messages, which are filled in.
    """
    happened = np.empty(len(own))
    happened[0] = 0.0
    microbatches = len(sent_ms) // max(1, table.shape[1])
    for i in range(1, len(own)):
        a, b = happened[left[i]], happened[right[i]]
        now = a if a > b else b
        weight = weights[own[i]]
        if message[i] >= 0 and now < np.inf:
            way, who = message[i] // microbatches, sender[i]
            point = start + now if by_time else start
            row = np.searchsorted(starts, point, side="right")
            if memory[who, 0] % every[who] == 0:
                memory[who, 1] = row
            memory[who, 0] += 1
            waits = 0.0
            if table[row, way] == np.inf:
                while row < len(table) and table[row, way] == np.inf:
                    row += 1
                waits = starts[row - 1] - point if row < len(table) else np.inf
                memory[who, 1] = min(row, len(starts))
            elif table[memory[who, 1], way] == np.inf:
                memory[who, 1] = row
            delay = waits + table[memory[who, 1], way]
            sent_ms[message[i]] = delay
            weight += delay
        happened[i] = now + weight
    return happened


@jit
def makespans(
    left: Indices,
    right: Indices,
    fixed: Array,
    varying: Indices,
    weights: Array,
    begins: Indices,
    lasts: Indices,
    result: Array,
) -> None:
    """Fill ``result``, shape [B], from weights of shape [B, V].

    Event i takes ``fixed[i]``, or its scenario's weight ``varying[i]`` if that is not
    below zero.
    """
    count = len(fixed)
    happened = np.empty((count, TILE))
    tile = np.zeros((weights.shape[1], TILE))
    for at in range(0, len(result), TILE):
        width = min(TILE, len(result) - at)
        for v in range(weights.shape[1]):
            for b in range(width):
                tile[v, b] = weights[at + b, v]
        happened[0] = 0.0
        for i in range(1, count):
            p, q, v, c = left[i], right[i], varying[i], fixed[i]
            if v < 0:
                for b in range(TILE):
                    x, y = happened[p, b], happened[q, b]
                    happened[i, b] = (x if x > y else y) + c
            else:
                for b in range(TILE):
                    x, y = happened[p, b], happened[q, b]
                    happened[i, b] = (x if x > y else y) + tile[v, b]
        for b in range(width):
            begin, end = np.inf, 0.0
            for d in range(len(begins)):
                begin = min(begin, happened[begins[d], b])
                end = max(end, happened[lasts[d], b])
            result[at + b] = end - begin
