"""Events put in order and pared down, as machine code: a large program has a million.

`graphlib` of the standard library orders them too, in two hundred times as long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.loops import jit

__all__ = ["binary", "grouped", "pared", "topological"]

Indices = NDArray[np.int32]


@jit
def grouped(key: Indices, value: Indices, count: int) -> tuple[Indices, Indices]:
    """Values by their key: those of key k are ``values[first[k]:first[k + 1]]``, in order."""
    first = np.zeros(count + 1, np.int32)
    for k in key:
        first[k + 1] += 1
    for k in range(count):
        first[k + 1] += first[k]
    at = first[:-1].copy()
    values = np.empty(len(value), np.int32)
    for i in range(len(key)):
        values[at[key[i]]] = value[i]
        at[key[i]] += 1
    return first, values


@jit
def topological(waiting: Indices, awaited: Indices, count: int) -> Indices:
    """Events, each after those that it waits for; those that never happen are left out.

    Event ``waiting[k]`` waits for event ``awaited[k]``. After Kahn (1962).
    """
    first, followers = grouped(awaited, waiting, count)
    open_waits = np.zeros(count, np.int32)
    for event in waiting:
        open_waits[event] += 1
    order = np.empty(count, np.int32)
    size = 0
    for event in range(count):
        if not open_waits[event]:
            order[size] = event
            size += 1
    at = 0
    while at < size:
        event = order[at]
        at += 1
        for k in range(first[event], first[event + 1]):
            follower = followers[k]
            open_waits[follower] -= 1
            if not open_waits[follower]:
                order[size] = follower
                size += 1
    return order[:size]


@jit
def _last(
    waits: Indices,
    size: int,
    first: Indices,
    last: Indices,
    known: Indices,
    stamp: Indices,
    now: int,
) -> int:
    """Keep those of ``waits[:size]`` that no other of them waits for, once each; how many.

    What event e waits for is ``known[first[e]:last[e]]``. ``stamp`` is scratch, and ``now`` a
    number that it does not hold yet.
    """
    if size < 2:
        return size
    for k in range(size):
        for i in range(first[waits[k]], last[waits[k]]):
            stamp[known[i]] = now
    kept = 0
    for k in range(size):
        event = waits[k]
        if stamp[event] != now:
            stamp[event] = now
            waits[kept] = event
            kept += 1
    return kept


@jit
def pared(
    order: Indices, waiting: Indices, awaited: Indices, idle: NDArray[np.bool_]
) -> tuple[Indices, Indices, Indices, NDArray[np.bool_]]:
    """What each event waits for, at least, and which events no other needs to name.

    An event need not be waited for if another one that is waited for comes after it, as all
    weights are at least zero. An event that is ``idle`` takes no time: it is replaced by what
    it waits for, if that is one event, or if it has one follower.

    Returns
    -------
    first, last, waits : int arrays
        Event e waits for ``waits[first[e]:last[e]]``.
    replaced : bool array
        Which events are.
    """
    count = len(order)
    first, given = grouped(waiting, awaited, count)
    stamp = np.full(count, -1, np.int32)
    direct = given.copy()
    until = first[1:].copy()
    followers = np.zeros(count, np.int32)
    for event in range(count):
        begin = first[event]
        size = _last(
            direct[begin:], until[event] - begin, first[:-1], first[1:], given, stamp, event
        )
        until[event] = begin + size
        for k in range(begin, until[event]):
            followers[direct[k]] += 1
    stamp[:] = -1
    waits = np.empty(2 * len(given) + 16, np.int32)
    begins, ends = np.zeros(count, np.int32), np.zeros(count, np.int32)
    replaced = np.zeros(count, np.bool_)
    # Lists of replaced events are kept apart: they do not count as known.
    known_begins, known_ends = np.zeros(count, np.int32), np.zeros(count, np.int32)
    at = 0
    for event in order:
        size = 0
        deep = False
        for k in range(first[event], until[event]):
            other = direct[k]
            deep = deep or replaced[other]
            many = ends[other] - begins[other] if replaced[other] else 1
            if at + size + many > len(waits):
                longer = np.empty(2 * len(waits) + many, np.int32)
                for i in range(at + size):
                    longer[i] = waits[i]
                waits = longer
            for i in range(many):
                waits[at + size + i] = waits[begins[other] + i] if replaced[other] else other
            size += many
        if deep:
            size = _last(waits[at:], size, known_begins, known_ends, waits, stamp, event)
        begins[event], ends[event] = at, at + size
        replaced[event] = idle[event] and (size == 1 or followers[event] == 1)
        if not replaced[event]:
            known_begins[event], known_ends[event] = at, at + size
        at += size
    return begins, ends, waits[:at], replaced


@jit
def binary(
    order: Indices, first: Indices, last: Indices, waits: Indices, replaced: NDArray[np.bool_]
) -> tuple[Indices, Indices, Indices, Indices]:
    """Give each event that is left two others to wait for, the same one twice where one is.

    Where there are more, events that take no time stand between.

    Returns
    -------
    left, right : int arrays
        The two, in a new numbering in which they come first.
    event : int array
        Which event each new one is; −1 for those in between.
    place : int array
        The new number of each event, −1 for those left out.
    """
    total = 0
    for event in order:
        if not replaced[event]:
            total += 1 + max(0, last[event] - first[event] - 2)
    left, right = np.zeros(total, np.int32), np.zeros(total, np.int32)
    events = np.full(total, -1, np.int32)
    place = np.full(len(order), -1, np.int32)
    at = 0
    for event in order:
        if replaced[event]:
            continue
        begin, size = first[event], last[event] - first[event]
        a = place[waits[begin]] if size else 0
        for k in range(1, size - 1):
            left[at], right[at] = a, place[waits[begin + k]]
            a = at
            at += 1
        left[at], right[at] = a, place[waits[begin + size - 1]] if size else 0
        events[at] = event
        place[event] = at
        at += 1
    return left, right, events, place
