"""Orders of operators as machine code: timed without a program, and improved by moves.

What an order is: :mod:`.orders`. Within one kind and stage the moves keep micro-batches in
order. numba looks only at a function's own file to see whether its machine code is stale, so
the search that times orders stays in one file with what times them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.loops import jit
from pipesim.scenario import KINDS, Array, Scenario

__all__ = [
    "COMPLETE",
    "MISSING",
    "TAKES",
    "UNDIVIDED",
    "Constants",
    "anneal",
    "given_back",
    "peaks",
    "scratch",
    "time_orders",
    "walk",
]

Indices = NDArray[np.int32]
Counts = NDArray[np.int64]

TAKES = -1.0
"""In place of what an operator gives back: a forward takes an activation."""


def given_back(scenario: Scenario) -> Array:
    """What an operator of each kind and stage gives back, for :func:`peaks`, shape [4 · S]."""
    taken = np.full(scenario.stages, TAKES)
    return np.concatenate([taken, *map(scenario.released, KINDS[1:])])


class Constants(NamedTuple):
    """What timing an order needs to know of its scenario and transport.

    Attributes
    ----------
    durations_ms : array, shape [4 · S · N]
        By code.
    stage_of : int array, shape [S · N]
        The stage of each code, less its kind.
    placement : int array, shape [S]
        The device of each stage.
    flight_ms, copy_ms : arrays, shape [S−1, 2] and [S−1]
        How long a message is under way, by link and direction, and on each copy engine.
    delegates : int
        How many messages to one neighbour are under way at once; 0: any number.
    copy_on_demand : bool
        Whether the operator that needs a message waits for its copy to the device.
    gives_back : array, shape [4 · S]
        Of each kind and stage, see :func:`given_back`.
    """

    durations_ms: Array
    stage_of: Indices
    placement: Indices
    flight_ms: Array
    copy_ms: Array
    delegates: int
    copy_on_demand: bool
    gives_back: Array


@jit
def peaks(start_ms: Array, end_ms: Array, gives: Array, first: Indices) -> Array:
    """Most activations each device holds, as a timeline's ``in_flight`` counts them.

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


# -- times -----------------------------------------------------------------------------

COMPLETE, MISSING, UNDIVIDED = -1, -2, -3
"""What :func:`time_orders` says of orders, unless it is the place of a wrong code."""

_F, _B = 1, 2
_SPLIT, _FUSED = 7, 9  # F + B + W, F + BW


Scratch = tuple[Array, Counts, Counts, Array, Array, Counts]


def scratch(constants: Constants) -> Scratch:
    """Return the memory that :func:`walk` works in."""
    cells, devices = len(constants.stage_of), int(constants.placement.max()) + 1
    return (
        np.empty((2, cells)),
        np.empty(cells, np.int64),
        np.empty((3, devices), np.int64),
        np.empty((3, devices)),
        np.empty((devices, devices, 2, constants.delegates)),
        np.empty((devices, devices, 2), np.int64),
    )


@jit
def walk(
    codes: Indices,
    first: Indices,
    constants: Constants,
    starts_ms: Array,
    ends_ms: Array,
    memory: Scratch,
) -> tuple[float, float]:
    """Fill starts and ends; return the makespan and the devices' mean end, ∞ on a deadlock.

    The orders are complete; ``memory`` is what :func:`scratch` gives.
    """
    durations_ms, stage_of, placement, flight_ms, copy_ms, delegates, on_demand, _ = constants
    # When the input of each F (row 0) and of each backward (row 1) is there; below zero: not
    # yet. The first stage's F, and the last stage's backward but for its F, need none.
    there, done, heads, frees, lane_free, lanes = memory
    stages, devices, cells = len(placement), len(first) - 1, len(stage_of)
    n = cells // stages
    there[:] = -1.0
    there[0, :n] = 0.0
    there[1, cells - n :] = 0.0
    done[:] = 0
    head, stack, awake = heads[0], heads[1], heads[2]
    free, out_free, in_free = frees[0], frees[1], frees[2]
    frees[:] = 0.0
    copies = False  # engines that take no time never hold anything up
    for copy in copy_ms:
        copies = copies or copy > 0.0
    if delegates:
        lane_free[:] = 0.0
        lanes[:] = 0
    for d in range(devices):
        head[d], stack[d], awake[d] = first[d], d, 1
    top = devices
    left = len(codes)
    while top:
        top -= 1
        d = stack[top]
        awake[d] = 0
        k = head[d]
        while k < first[d + 1]:
            code = codes[k]
            # A division would take longer than all the rest.
            kind = (code >= cells) + (code >= 2 * cells) + (code >= 3 * cells)
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
                copied = copies and 0 <= source < stages and placement[source] != d
                if copied and not on_demand:
                    input_ms = max(input_ms, in_free[d]) + copy_ms[min(s, source)]
                    in_free[d] = input_ms
                start = max(start, input_ms)
                if copied and on_demand:
                    start += copy_ms[min(s, source)]
            end = start + durations_ms[code]
            starts_ms[k], ends_ms[k], free[d] = start, end, end
            done[cell] |= 1 << kind
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
            host = end
            if copies:
                host = max(end, out_free[d]) + copy_ms[link]
                out_free[d] = host
            if delegates:
                turn = lanes[d, to, up] % delegates
                lanes[d, to, up] += 1
                host = max(host, lane_free[d, to, up, turn])
                lane_free[d, to, up, turn] = host + flight_ms[link, up]
            there[up, place] = host + flight_ms[link, up]
            if not awake[to]:
                awake[to] = 1
                stack[top] = to
                top += 1
        head[d] = k
    if left:
        return np.inf, np.inf
    begin, finish, total = np.inf, 0.0, 0.0
    for d in range(devices):
        begin = min(begin, starts_ms[first[d]])
        finish = max(finish, free[d])
        total += free[d]
    return finish - begin, total / devices


@jit
def time_orders(
    codes: Indices,
    first: Indices,
    constants: Constants,
    memory: Scratch,
    starts_ms: Array,
    peak_activations: Array,
) -> tuple[float, int]:
    """Fill ``starts_ms`` and ``peak_activations``, infinite on a deadlock.

    Returns
    -------
    makespan_ms : float
        Infinite on a deadlock.
    wrong : int
        −1, or which code is wrong, −2 if one is missing, −3 if ``first`` is no division.
    """
    wrong = _check(codes, first, constants.stage_of, constants.placement)
    if wrong != COMPLETE:
        return np.inf, wrong
    ends_ms = np.empty(len(codes))
    makespan_ms, _ = walk(codes, first, constants, starts_ms, ends_ms, memory)
    if makespan_ms == np.inf:
        starts_ms[:] = np.inf
        peak_activations[:] = np.inf
        return np.inf, COMPLETE
    runs = codes // (len(constants.stage_of) // len(constants.placement))  # kind · S + stage
    peak_activations[:] = peaks(starts_ms, ends_ms, constants.gives_back[runs], first)
    return makespan_ms, COMPLETE


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


# -- search ------------------------------------------------------------------------------

TIE_BREAK = 1e-3
"""How much of the devices' mean end counts beside the makespan: it tells plateaus apart."""


@jit
def _fits(row: Indices, length: int, n: int, stages: int, limit: float, gives_back: Array) -> bool:
    """Whether an order runs F before B before W in every prefix, within an activation limit."""
    counts = np.zeros(3 * stages, np.int64)
    held = 0.0
    for k in range(length):
        run = row[k] // n  # kind · S + stage
        kind = run // stages
        counts[run] += 1
        if kind == 0:
            held += 1.0
            if held > limit + 1e-9:
                return False
        else:
            if counts[run] > counts[run - stages]:
                return False
            held -= gives_back[run]
    return True


@jit
def _critical(
    codes: Indices,
    first: Indices,
    constants: Constants,
    starts_ms: Array,
    ends_ms: Array,
    at: Counts,
    pairs: Counts,
) -> int:
    """Collect (device, position) of critical operators that wait for the one before them.

    ``at`` is the position of each F and B by its code; returns how many there are.
    """
    placement, cells = constants.placement, len(constants.stage_of)
    n = cells // len(placement)
    d = 0
    for other in range(len(first) - 1):
        if ends_ms[first[other + 1] - 1] > ends_ms[first[d + 1] - 1]:
            d = other
    k = first[d + 1] - 1
    found = 0
    while True:
        code = codes[k]
        kind, s = code // cells, constants.stage_of[code % cells]
        source = s - 1 if kind == 0 else s + 1 if kind == 1 else -1
        ready_ms = starts_ms[k]
        if constants.copy_on_demand and 0 <= source < len(placement) and placement[source] != d:
            ready_ms -= constants.copy_ms[min(s, source)]
        if k > first[d] and ends_ms[k - 1] >= ready_ms - 1e-9:
            if codes[k] // n != codes[k - 1] // n:
                pairs[found, 0], pairs[found, 1] = d, k
                found += 1
            k -= 1
            continue
        if starts_ms[k] <= 1e-12:
            return found
        if not 0 <= source < len(placement):
            return found
        d, k = placement[source], at[code - n if kind == 0 else code + n]


@jit
def _moved(row: Indices, source: int, target: int, n: int) -> None:
    """Move one operator of an order; those of its kind and stage stay in micro-batch order."""
    code = row[source]
    step = 1 if target > source else -1
    for k in range(source, target, step):
        passed = row[k + step]
        if passed // n == code // n:
            passed, code = code, passed
        row[k] = passed
    row[target] = code


@jit
def anneal(
    codes: Indices,
    first: Indices,
    constants: Constants,
    memory: Scratch,
    limits: Array,
    steps: int,
    warm: float,
    cold: float,
    bound: float,
    rng: np.random.Generator,
) -> float:
    """Improve split ``codes`` in place for ``steps`` moves; return the best makespan.

    Simulated annealing: a move shifts one operator, mostly one on the critical path. The
    temperature falls from ``warm`` to ``cold``, in milliseconds, and a move that makes the
    order worse is taken the more rarely the colder it is. ``limits`` [D] are the most
    activations of each device. Stops at ``bound``.
    """
    devices, cells, stages = len(first) - 1, len(constants.stage_of), len(constants.placement)
    n = cells // stages
    starts_ms, ends_ms = np.empty(len(codes)), np.empty(len(codes))
    at = np.zeros(2 * cells, np.int64)
    pairs = np.zeros((len(codes), 2), np.int64)
    row = np.empty(len(codes), codes.dtype)
    best = codes.copy()
    makespan_ms, mean_ms = walk(codes, first, constants, starts_ms, ends_ms, memory)
    cost = makespan_ms + TIE_BREAK * mean_ms
    best_makespan, best_cost = makespan_ms, cost
    found = 0
    fresh = True
    for step in range(steps):
        if best_makespan <= bound:
            break
        if fresh:
            for k in range(len(codes)):
                if codes[k] < 2 * cells:
                    at[codes[k]] = k
            found = _critical(codes, first, constants, starts_ms, ends_ms, at, pairs)
            fresh = False
        if found > 0 and rng.random() < 0.9:
            pick = int(rng.random() * found)
            d, k = pairs[pick, 0], pairs[pick, 1] - first[pairs[pick, 0]]
            far = 1 + int(rng.random() ** 3 * 12)
            if rng.random() < 0.5:
                source, target = k, max(0, k - far)
            else:
                source, target = k - 1, min(first[d + 1] - first[d] - 1, k - 1 + far)
        else:
            d = int(rng.random() * devices)
            length = first[d + 1] - first[d]
            source, target = int(rng.random() * length), int(rng.random() * length)
        if source == target:
            continue
        length = first[d + 1] - first[d]
        own = codes[first[d] : first[d + 1]]
        row[:length] = own
        _moved(own, source, target, n)
        kept = False
        if _fits(own, length, n, stages, limits[d], constants.gives_back):
            new_makespan, new_mean = walk(codes, first, constants, starts_ms, ends_ms, memory)
            new_cost = new_makespan + TIE_BREAK * new_mean
            heat = warm * (cold / warm) ** (step / steps)
            kept = new_cost <= cost or rng.random() < np.exp((cost - new_cost) / heat)
            if kept:
                cost = new_cost
                fresh = True
                if cost < best_cost - 1e-12:
                    best_cost, best_makespan = cost, new_makespan
                    best[:] = codes
        if not kept:
            own[:] = row[:length]
    codes[:] = best
    return best_makespan
