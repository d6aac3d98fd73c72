"""Compiled local search over the orders of operators, for the transport ideal.

An order of a device is a string of codes ``kind · S + stage`` (kind 0 F, 1 B, 2 W); within
one kind and stage micro-batches run in order, so the string says everything. Moves shift one
operator on the critical path; the cost of a string is its makespan, with a little of the
devices' mean end, which tells plateaus apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.loops import jit
from pipesim.scenario import Array

__all__ = ["anneal", "makespan"]

TIE_BREAK = 1e-3

Codes = NDArray[np.int64]


@jit
def evaluate(
    seq: Codes,
    lens: Codes,
    dur: Array,
    down: Array,
    up: Array,
    start: Array,
    end: Array,
    micro: Codes,
    f_end: Array,
    b_end: Array,
    count: Codes,
) -> tuple[float, float]:
    """Fill ``start``, ``end``, ``micro`` [D, L]; return makespan and cost, ∞ on a deadlock.

    ``dur`` is [3, S, N]; ``down`` and ``up`` [S−1] are the delays; the rest is scratch.
    """
    devices, stages = seq.shape[0], dur.shape[1]
    f_end[:] = -1.0
    b_end[:] = -1.0
    count[:] = 0
    head = np.zeros(devices, np.int64)
    free = np.zeros(devices)
    left = 0
    for d in range(devices):
        left += lens[d]
    moved = True
    while moved:
        moved = False
        for d in range(devices):
            k = head[d]
            while k < lens[d]:
                code = seq[d, k]
                kind, s = code // stages, code % stages
                m = count[code]
                ready = 0.0
                if kind == 0:
                    if s > 0:
                        ready = f_end[s - 1, m]
                        if ready < 0.0:
                            break
                        ready += down[s - 1]
                elif kind == 1:
                    if f_end[s, m] < 0.0:
                        break
                    if s < stages - 1:
                        ready = b_end[s + 1, m]
                        if ready < 0.0:
                            break
                        ready += up[s]
                elif b_end[s, m] < 0.0:
                    break
                begin = max(free[d], ready)
                finish = begin + dur[kind, s, m]
                start[d, k], end[d, k], micro[d, k] = begin, finish, m
                if kind == 0:
                    f_end[s, m] = finish
                elif kind == 1:
                    b_end[s, m] = finish
                free[d] = finish
                count[code] = m + 1
                k += 1
                moved = True
            head[d] = k
    done = 0
    makespan, total = 0.0, 0.0
    for d in range(devices):
        done += head[d]
        makespan = max(makespan, free[d])
        total += free[d]
    if done < left:
        return np.inf, np.inf
    return makespan, makespan + TIE_BREAK * total / devices


@jit
def makespan(seq: Codes, lens: Codes, dur: Array, down: Array, up: Array) -> float:
    """Return the makespan of ``seq`` [D, L]; infinite on a deadlock."""
    devices, length = seq.shape
    stages, n = dur.shape[1], dur.shape[2]
    start, end = np.zeros((devices, length)), np.zeros((devices, length))
    micro, count = np.zeros((devices, length), np.int64), np.zeros(3 * stages, np.int64)
    f_end, b_end = np.zeros((stages, n)), np.zeros((stages, n))
    return evaluate(seq, lens, dur, down, up, start, end, micro, f_end, b_end, count)[0]


@jit
def fits(row: Codes, length: int, stages: int, limit: float, part: float) -> bool:
    """Whether a string runs F before B before W in every prefix, within an activation limit."""
    counts = np.zeros(3 * stages, np.int64)
    held = 0.0
    for k in range(length):
        code = row[k]
        kind = code // stages
        counts[code] += 1
        if kind == 0:
            held += 1.0
            if held > limit + 1e-9:
                return False
        else:
            if counts[code] > counts[code - stages]:
                return False
            held -= part if kind == 1 else 1.0 - part
    return True


@jit
def _critical(
    seq: Codes,
    lens: Codes,
    start: Array,
    end: Array,
    micro: Codes,
    stages: int,
    at_f: Codes,
    at_b: Codes,
    device: Codes,
    pairs: Codes,
) -> int:
    """Collect (device, position) of critical operators that wait for the one before them."""
    devices = seq.shape[0]
    d = 0
    for other in range(devices):
        if end[other, lens[other] - 1] > end[d, lens[d] - 1]:
            d = other
    k = lens[d] - 1
    found = 0
    while True:
        if k > 0 and end[d, k - 1] >= start[d, k] - 1e-9:
            if seq[d, k] != seq[d, k - 1]:
                pairs[found, 0], pairs[found, 1] = d, k
                found += 1
            k -= 1
            continue
        if start[d, k] <= 1e-12:
            return found
        code, m = seq[d, k], micro[d, k]
        kind, s = code // stages, code % stages
        if kind == 0:
            d, k = device[s - 1], at_f[s - 1, m]
        elif kind == 1 and s < stages - 1:
            d, k = device[s + 1], at_b[s + 1, m]
        else:
            return found


@jit
def anneal(
    seq: Codes,
    lens: Codes,
    dur: Array,
    down: Array,
    up: Array,
    device: Codes,
    limits: Array,
    part: float,
    steps: int,
    warm: float,
    cold: float,
    bound: float,
    rng: np.random.Generator,
) -> float:
    """Improve ``seq`` [D, L] in place for ``steps`` moves; return the best makespan.

    Simulated annealing: the temperature falls from ``warm`` to ``cold``, in milliseconds, and
    a move that makes the order worse is taken the more rarely the colder it is. ``device``
    [S] is the placement, ``limits`` [D] and ``part`` the memory. Stops at ``bound``.
    """
    devices, length = seq.shape
    stages, n = dur.shape[1], dur.shape[2]
    start, end = np.zeros((devices, length)), np.zeros((devices, length))
    micro = np.zeros((devices, length), np.int64)
    f_end, b_end = np.zeros((stages, n)), np.zeros((stages, n))
    at_f, at_b = np.zeros((stages, n), np.int64), np.zeros((stages, n), np.int64)
    count = np.zeros(3 * stages, np.int64)
    pairs = np.zeros((devices * length, 2), np.int64)
    row = np.zeros(length, seq.dtype)
    best = seq.copy()
    makespan, cost = evaluate(seq, lens, dur, down, up, start, end, micro, f_end, b_end, count)
    best_makespan, best_cost = makespan, cost
    found = 0
    fresh = True
    for step in range(steps):
        if best_makespan <= bound:
            break
        if fresh:
            for d in range(devices):
                for k in range(lens[d]):
                    code = seq[d, k]
                    if code < stages:
                        at_f[code, micro[d, k]] = k
                    elif code < 2 * stages:
                        at_b[code - stages, micro[d, k]] = k
            found = _critical(seq, lens, start, end, micro, stages, at_f, at_b, device, pairs)
            fresh = False
        if found > 0 and rng.random() < 0.9:
            pick = int(rng.random() * found)
            d, k = pairs[pick, 0], pairs[pick, 1]
            far = 1 + int(rng.random() ** 3 * 12)
            if rng.random() < 0.5:
                source, target = k, max(0, k - far)
            else:
                source, target = k - 1, min(lens[d] - 1, k - 1 + far)
        else:
            d = int(rng.random() * devices)
            source, target = int(rng.random() * lens[d]), int(rng.random() * lens[d])
        if source == target:
            continue
        row[:] = seq[d]
        code = row[source]
        if source > target:
            for k in range(source, target, -1):
                row[k] = row[k - 1]
        else:
            for k in range(source, target):
                row[k] = row[k + 1]
        row[target] = code
        if not fits(row, lens[d], stages, limits[d], part):
            continue
        for k in range(lens[d]):
            row[k], seq[d, k] = seq[d, k], row[k]
        new_makespan, new_cost = evaluate(
            seq, lens, dur, down, up, start, end, micro, f_end, b_end, count
        )
        heat = warm * (cold / warm) ** (step / steps)
        if new_cost <= cost or rng.random() < np.exp((cost - new_cost) / heat):
            makespan, cost = new_makespan, new_cost
            fresh = True
            if cost < best_cost - 1e-12:
                best_cost, best_makespan = cost, makespan
                best[:] = seq
        else:
            for k in range(lens[d]):
                seq[d, k] = row[k]
    seq[:] = best
    return best_makespan
