"""Events in topological order, each the later of two earlier ones plus a time.

Evaluated by one loop without a branch:

    time[i] = max(time[left[i]], time[right[i]]) + weight[own[i]]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.events import ORIGIN, Events
from pipesim.engine.compiled.ordering import binary, grouped, pared, topological
from pipesim.engine.compiled.weights import NOTHING
from pipesim.errors import DeadlockError
from pipesim.schedule import Op

__all__ = ["Recurrence", "recurrence"]


@dataclass(frozen=True, eq=False)
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
    sends : dict of Op to int
        By its producer, the event that a message's delay is a part of, see :class:`.Events`.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    own: NDArray[np.int32]
    ends: NDArray[np.int32]
    first: NDArray[np.int32]
    begins: NDArray[np.int32]
    sends: dict[Op, int]


def recurrence(events: Events, *, pare: bool) -> Recurrence:
    """Put ``events`` in order.

    Parameters
    ----------
    events : Events
        Of one program.
    pare : bool
        Whether to leave out those that change nothing: half of them. That pays for a batch of
        scenarios, and takes as long as some fifty evaluations.

    Raises
    ------
    DeadlockError
        There is no such order; the error names each device's blocked instruction.
    """
    schedule = events.program.schedule
    waiting, awaited = _array(events.waiting), _array(events.awaited)
    order = topological(waiting, awaited, len(events.own))
    if len(order) < len(events.own):
        happens = np.zeros(len(events.own), dtype=np.bool_)
        happens[order] = True
        raise DeadlockError(events.blocked(happens.tolist()))
    own = _array(events.own)
    begins = _array(events.starts[device[0]] for device in schedule.orders)
    idle = own == NOTHING
    idle[ORIGIN] = False
    idle[begins] = False  # asked for, though they take no time
    if pare:
        needed = pared(order, waiting, awaited, idle)
    else:
        first, waits = grouped(waiting, awaited, len(own))
        needed = first[:-1], first[1:], waits, np.zeros_like(idle)
    left, right, event, place = binary(order, *needed)
    return Recurrence(
        left=left,
        right=right,
        own=np.where(event < 0, NOTHING, own[event]).astype(np.int32),
        ends=place[_array(map(events.ends.__getitem__, schedule.ops))],
        first=np.array(schedule.first, dtype=np.int32),
        begins=place[begins],
        sends=dict(zip(events.sends, place[_array(events.sends.values())].tolist(), strict=True)),
    )


def _array(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, dtype=np.int32)
