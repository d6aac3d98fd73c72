"""Better programs, one move after the other, as machine code."""

from __future__ import annotations

import numpy as np

from pipesim.engine.compiled.loops import jit
from pipesim.engine.compiled.sequence_loops import (
    NEVER,
    Bits,
    Memory,
    Pipeline,
    Positions,
    Types,
    numbered,
    times,
)
from pipesim.scenario import Array

__all__ = ["anneal", "fits"]

TIE_BREAK = 1e-3
"""How much of the devices' mean end counts beside the makespan: it tells plateaus apart."""


@jit
def fits(types: Types, bits: Bits, pipeline: Pipeline, memory: Memory, limits: Array) -> bool:
    """Whether no device ever holds more activations than its limit, as it was timed."""
    stages = len(pipeline.fused_ms)
    held = memory.held
    held[:] = 0.0
    for p in range(len(types)):
        t = types[p]
        if t >= 3 * stages:
            continue
        d = pipeline.ends[t, 0]
        if t < stages:
            held[d] += 1.0
            if held[d] > limits[d] + 1e-9:
                return False
        elif bits[memory.at[stages + t % stages, memory.number[p]]] & 1:
            held[d] -= t < 2 * stages
        else:
            part = pipeline.gives_back[t % stages]
            held[d] -= part if t < 2 * stages else 1.0 - part
    return True


@jit
def _concerns(t: int, other: int, pipeline: Pipeline) -> bool:
    """Whether two types meet on some device."""
    for a in range(2):
        for b in range(2):
            if pipeline.ends[t, a] == pipeline.ends[other, b]:
                return True
    return False


@jit
def _shifted(
    types: Types, bits: Bits, source: int, by: int, pipeline: Pipeline, number: Positions
) -> int:
    """Move an entry past ``by`` others of its devices, backward if below zero; where to.

    It stops before one that it may not pass.
    """
    t, own, k, p = types[source], bits[source], number[source], source
    left, step = abs(by), 1 if by > 0 else -1
    while left and 0 <= p + step < len(types):
        z, other = types[p + step], number[p + step]
        if z == t:
            k += step  # they change places, and so nothing
        elif (step < 0 and pipeline.after[t] == z and other <= k) or (
            step > 0 and pipeline.after[z] == t and other >= k
        ):
            break
        types[p], bits[p] = z, bits[p + step]
        p += step
        if _concerns(t, z, pipeline):
            left -= 1
    types[p], bits[p] = t, own
    return p


@jit
def _critical(types: Types, pipeline: Pipeline, memory: Memory, path: Positions) -> int:
    """Collect the entries that each waited for the next, from the last end back; how many."""
    p = NEVER
    for q in range(len(types)):
        if types[q] < len(pipeline.durations_ms) and (
            p == NEVER or memory.end_ms[q] > memory.end_ms[p]
        ):
            p = q
    found = 0
    while p != NEVER:
        path[found] = p
        found += 1
        p = memory.cause[p]
    return found


@jit
def anneal(
    types: Types,
    bits: Bits,
    pipeline: Pipeline,
    memory: Memory,
    limits: Array,
    batches: bool,
    moves: int,
    warm: float,
    cold: float,
    bound: float,
    rng: np.random.Generator,
) -> float:
    """Improve a sequence in place for ``moves`` moves; return the best makespan.

    Simulated annealing: a move shifts an operator or a message, puts a message into the batch
    before it or takes it out, or fuses a backward or splits it, mostly on the critical path. The
    temperature falls from ``warm`` to ``cold``, in the unit of the times, and a move that makes the
    program worse is taken the more rarely the colder it is. ``limits`` [D] are the most activations
    of each device; without ``batches`` each message stays a kernel of its own. Stops at ``bound``.
    """
    length, stages = len(types), len(pipeline.fused_ms)
    limited = np.isfinite(limits).any()
    best, best_bits = types.copy(), bits.copy()
    old, old_bits = types.copy(), bits.copy()
    path = np.zeros(length, np.int64)
    found = 0
    fresh = True
    makespan, mean = times(types, bits, pipeline, memory)
    cost = makespan + TIE_BREAK * mean
    best_makespan, best_cost = makespan, cost
    for move in range(moves):
        if best_makespan <= bound:
            break
        if fresh:
            found = _critical(types, pipeline, memory, path)
            old[:], old_bits[:] = types, bits
            fresh = False
        p = path[int(rng.random() * found)] if rng.random() < 0.8 else int(rng.random() * length)
        t = types[p]
        low, high = p, p
        switched = rng.random() < 0.3
        if batches and t >= 3 * stages and switched:
            bits[p] ^= 1 + int(rng.random() * 3)
        elif stages <= t < 2 * stages and switched:
            bits[p] ^= 1
        else:
            far = 1 + int(rng.random() ** 3 * 10)
            by = -far if rng.random() < 0.5 else far
            to = _shifted(types, bits, p, by, pipeline, memory.number)
            if to == p:
                continue
            low, high = min(p, to), max(p, to)
        makespan, mean = times(types, bits, pipeline, memory)
        new = makespan + TIE_BREAK * mean
        heat = warm * (cold / warm) ** (move / moves)
        kept = new <= cost or rng.random() < np.exp((cost - new) / heat)
        if kept and (not limited or fits(types, bits, pipeline, memory, limits)):
            cost = new
            fresh = True
            if cost < best_cost - 1e-12:
                best_cost, best_makespan = cost, makespan
                best[:], best_bits[:] = types, bits
        else:
            types[low : high + 1] = old[low : high + 1]
            bits[low : high + 1] = old_bits[low : high + 1]
            numbered(types, memory)
    types[:], bits[:] = best, best_bits
    return best_makespan
