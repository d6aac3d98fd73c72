"""Events in topological order, each the later of two earlier ones plus a time.

Evaluated by one loop without a branch:

    time[i] = max(time[left[i]], time[right[i]]) + weight[own[i]]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.events import ORIGIN, Events
from pipesim.engine.compiled.weights import NOTHING
from pipesim.errors import DeadlockError

__all__ = ["Recurrence", "recurrence"]


@dataclass(frozen=True)
class Recurrence:
    """E events in topological order; event 0 is at time zero.

    Attributes
    ----------
    left, right : int arrays, shape [E]
        The two events that each one waits for; the same one twice where one is enough.
    own : int array, shape [E]
        The entry of the weights vector that it takes after them.
    ends : int array, shape [operators]
        The event that ends each operator, device after device in launch order. The operator
        starts when both events that this one waits for have happened.
    first : int array, shape [D + 1]
        Where each device's operators begin in ``ends``.
    begins : int array, shape [D]
        The event at which each device's first operator starts.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    own: NDArray[np.int32]
    ends: NDArray[np.int32]
    first: NDArray[np.int32]
    begins: NDArray[np.int32]


def recurrence(events: Events) -> Recurrence:
    """Put ``events`` in order and leave out those that change nothing.

    Raises
    ------
    DeadlockError
        There is no such order; the error names each device's blocked instruction.
    """
    orders = events.program.schedule.orders
    order = _topological(events)
    begins = [events.starts[device[0]] for device in orders]
    waits = _without_detours(events, order, keep=set(begins))

    place = [-1] * len(order)
    place[ORIGIN] = 0
    left, right, own = [0], [0], [NOTHING]

    def add(a: int, b: int, weight: int) -> int:
        left.append(a)
        right.append(b)
        own.append(weight)
        return len(own) - 1

    for event in order:
        needed = waits[event]
        if event == ORIGIN or needed is None:
            continue
        places = [place[other] for other in needed]
        while len(places) > 2:
            places = [add(places[0], places[1], NOTHING), *places[2:]]
        place[event] = add(places[0], places[-1], events.own[event])

    def array(values: Iterable[int]) -> NDArray[np.int32]:
        return np.fromiter(values, dtype=np.int32)

    return Recurrence(
        left=array(left),
        right=array(right),
        own=array(own),
        ends=array(place[events.ends[op]] for device in orders for op in device),
        first=np.cumsum([0, *map(len, orders)], dtype=np.int32),
        begins=array(place[event] for event in begins),
    )


def _topological(events: Events) -> list[int]:
    """All events, each after those that it waits for."""
    waiting = [len(waits) for waits in events.waits]
    followers: list[list[int]] = [[] for _ in waiting]
    for event, waits in enumerate(events.waits):
        for other in waits:
            followers[other].append(event)
    order = [event for event, count in enumerate(waiting) if not count]
    for event in order:  # grows
        for follower in followers[event]:
            waiting[follower] -= 1
            if not waiting[follower]:
                order.append(follower)
    if len(order) < len(waiting):
        raise DeadlockError(events.blocked([not count for count in waiting]))
    return order


def _without_detours(events: Events, order: list[int], keep: set[int]) -> list[list[int] | None]:
    """What each event waits for, at least; None for an event that no other needs to name.

    An event need not be waited for if another one that is waited for comes after it, as all
    weights are at least zero. An event that takes no time is replaced by what it waits for, if
    that is one event, or if it has one follower.
    """
    direct = [_last(waits, events.waits) for waits in events.waits]
    followers = [0] * len(direct)
    for waits in direct:
        for other in waits:
            followers[other] += 1
    result: list[list[int] | None] = [None] * len(direct)
    replaced: dict[int, list[int]] = {}
    for event in order:
        waits = direct[event]
        if any(other in replaced for other in waits):
            deeper = [deep for other in waits for deep in replaced.get(other, (other,))]
            waits = _last(deeper, result)
        idle = events.own[event] == NOTHING and event != ORIGIN and event not in keep
        if idle and (len(waits) == 1 or followers[event] == 1):
            replaced[event] = waits
        else:
            result[event] = waits
    return result


def _last(waits: list[int], known: Sequence[list[int] | None]) -> list[int]:
    """``waits`` without repetitions and without what others of them wait for directly."""
    if len(waits) < 2:
        return waits
    earlier = {deep for other in waits for deep in known[other] or ()}
    return [event for event in dict.fromkeys(waits) if event not in earlier]
