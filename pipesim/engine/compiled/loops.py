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

from pipesim.scenario import KINDS, Array, Scenario

__all__ = [
    "COMPLETE",
    "MISSING",
    "TAKES",
    "TILE",
    "UNDIVIDED",
    "given_back",
    "jit",
    "makespans",
    "peaks",
    "spans",
    "time_orders",
    "times",
]

TILE = 16
"""Scenarios of a batch that are evaluated side by side, in vector registers."""

TAKES = -1.0
"""What a forward gives back: it takes."""


def given_back(scenario: Scenario) -> Array:
    """What an operator of each kind gives back, for :func:`peaks`, shape [4]."""
    return np.array([TAKES, *map(scenario.released, KINDS[1:])])


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
def spans(happened: Array, left: Indices, right: Indices, ends: Indices) -> tuple[Array, Array]:
    """Start and end of each operator."""
    start_ms, end_ms = np.empty(len(ends)), np.empty(len(ends))
    for k in range(len(ends)):
        i = ends[k]
        a, b = happened[left[i]], happened[right[i]]
        start_ms[k] = a if a > b else b
        end_ms[k] = happened[i]
    return start_ms, end_ms


@jit
def peaks(start_ms: Array, end_ms: Array, gives: Array, first: Indices) -> Array:
    """Most activations each device holds, as :meth:`Timeline.in_flight` counts them.

    ``gives[k]`` is what operator k gives back at its end; ``TAKES``, it takes one at its
    start.
    """
    result = np.zeros(len(first) - 1)
    for d in range(len(first) - 1):
        held = taken = given = 0.0
        now = -1.0
        for k in range(first[d], first[d + 1]):
            takes = gives[k] == TAKES
            then = start_ms[k] if takes else end_ms[k]
            if then > now:
                held += taken - given
                result[d] = max(result[d], held if held >= 1e-9 else 0.0)
                now, taken, given = then, 0.0, 0.0
            if takes:
                taken += 1.0
            else:
                given += gives[k]
        held += taken - given
        result[d] = max(result[d], held if held >= 1e-9 else 0.0)
    return result


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


# -- orders ------------------------------------------------------------------------------

COMPLETE, MISSING, UNDIVIDED = -1, -2, -3
"""What :func:`time_orders` says of orders, unless it is the place of a wrong code."""

_F, _B = 1, 2
_SPLIT, _FUSED = 7, 9  # F + B + W, F + BW


@jit
def time_orders(
    codes: Indices,
    first: Indices,
    durations_ms: Array,
    stage_of: Indices,
    placement: Indices,
    hold_ms: Array,
    copy_ms: Array,
    delegates: int,
    gives_back: Array,
    starts_ms: Array,
    peak_activations: Array,
) -> tuple[float, int]:
    """Fill ``starts_ms`` and ``peak_activations``; for compiled callers.

    Parameters
    ----------
    codes, first : int arrays
        The orders.
    durations_ms : array, shape [4 · S · N]
        By code.
    stage_of : int array, shape [S · N]
        The stage of each code, less its kind.
    placement : int array, shape [S]
        The device of each stage.
    hold_ms, copy_ms : arrays, shape [S−1, 2] and [S−1]
        How long a message is under way, by link and direction, and on each copy engine.
    delegates : int
        How many messages to one neighbour are under way at once; 0: any number.
    gives_back : array, shape [4]
        Of each kind, see :func:`given_back`.

    Returns
    -------
    makespan_ms : float
        Infinite on a deadlock.
    wrong : int
        −1, or which code is wrong, −2 if one is missing, −3 if ``first`` is no division.
    """
    wrong = _check(codes, first, stage_of, placement)
    if wrong != COMPLETE:
        return np.inf, wrong
    stages, devices, cells = len(placement), len(first) - 1, len(stage_of)
    n = cells // stages
    ends_ms, gives = np.empty(len(codes)), np.empty(len(codes))
    # When the input of each F (row 0) and of each backward (row 1) is there; below zero: not
    # yet. The first stage's F, and the last stage's backward but for its F, need none.
    there = np.empty((2, cells))
    for cell in range(cells):
        there[0, cell] = 0.0 if cell < n else -1.0
        there[1, cell] = 0.0 if cell >= cells - n else -1.0
    done = np.zeros(cells, dtype=np.uint8)
    head = first.copy()
    free, out_free, in_free = np.zeros(devices), np.zeros(devices), np.zeros(devices)
    lanes = np.zeros((devices, devices, 2), dtype=np.int64)  # messages so far
    lane_free = np.zeros((devices, devices, 2, delegates))
    awake = np.ones(devices, dtype=np.bool_)
    stack = np.arange(devices)
    top = devices
    left = len(codes)
    while top:
        top -= 1
        d = stack[top]
        awake[d] = False
        k = head[d]
        while k < first[d + 1]:
            code = codes[k]
            kind = code // cells
            cell = code - kind * cells
            s = stage_of[cell]
            start = free[d]
            if kind == 2:
                if not done[cell] & _B:
                    break
            else:
                up = 1 if kind else 0
                input_ms = there[up, cell]
                if input_ms < 0.0 or (up and not done[cell] & _F):
                    break
                source = s + 1 if up else s - 1
                if 0 <= source < stages and placement[source] != d:
                    input_ms = max(input_ms, in_free[d]) + copy_ms[min(s, source)]
                    in_free[d] = input_ms
                start = max(start, input_ms)
            end = start + durations_ms[code]
            starts_ms[k], ends_ms[k], free[d] = start, end, end
            done[cell] |= 1 << kind
            gives[k] = gives_back[kind]
            k += 1
            left -= 1
            if kind == 2:
                continue
            up = 1 if kind else 0
            target = s - 1 if up else s + 1
            if not 0 <= target < stages:
                continue
            place = cell - n if up else cell + n
            to = placement[target]
            if to == d:
                there[up, place] = end
                continue
            link = min(s, target)
            host = max(end, out_free[d]) + copy_ms[link]
            out_free[d] = host
            if delegates:
                turn = lanes[d, to, up] % delegates
                lanes[d, to, up] += 1
                host = max(host, lane_free[d, to, up, turn])
                lane_free[d, to, up, turn] = host + hold_ms[link, up]
            there[up, place] = host + hold_ms[link, up]
            if not awake[to]:
                awake[to] = True
                stack[top] = to
                top += 1
        head[d] = k
    if left:
        for k in range(len(codes)):
            starts_ms[k] = np.inf
        for d in range(devices):
            peak_activations[d] = np.inf
        return np.inf, COMPLETE
    held = peaks(starts_ms, ends_ms, gives, first)
    begin, finish = np.inf, 0.0
    for d in range(devices):
        peak_activations[d] = held[d]
        begin = min(begin, starts_ms[first[d]])
        finish = max(finish, free[d])
    return finish - begin, COMPLETE


@jit
def _check(codes: Indices, first: Indices, stage_of: Indices, placement: Indices) -> int:
    """Whether the orders hold every operator once, on its device; see :func:`time_orders`."""
    cells = len(stage_of)
    if first[0] != 0 or first[-1] != len(codes):
        return UNDIVIDED
    for d in range(len(first) - 1):
        if first[d] > first[d + 1]:
            return UNDIVIDED
    seen = np.zeros(cells, dtype=np.uint8)
    for d in range(len(first) - 1):
        for k in range(first[d], first[d + 1]):
            code = codes[k]
            if not 0 <= code < 4 * cells:
                return k
            cell, bit = code % cells, 1 << (code // cells)
            if seen[cell] & bit or placement[stage_of[cell]] != d:
                return k
            seen[cell] |= bit
    for cell in range(cells):
        if seen[cell] != _SPLIT and seen[cell] != _FUSED:
            return MISSING
    return COMPLETE
