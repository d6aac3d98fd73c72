"""Lanes: ways from one rank to another that delegates serve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from torch.distributed import Store  # type: ignore[attr-defined]

from pipesim.runtime.ends import Receiver, Sender
from pipesim.runtime.rendezvous import Door, connect, own_address, read

__all__ = ["MOST_DEPTH", "Lane", "open_lanes"]

MOST_DEPTH = 1024
"""Slots of a delegate: what it and its worker tell each other then always fits into their pipes."""


@dataclass(frozen=True)
class Lane:
    """A way for messages from one rank to another.

    Parameters
    ----------
    name : str
        The same at both ends, and unique in their store.
    sender, receiver : int
        Ranks, as both ends count them.
    delegates : int
        Processes at each end. Message n is served by number n mod ``delegates`` of each.
    slots : int
        Messages that may be under way at each end, at most 1,024 a delegate; who sends beyond
        that waits for a free one.
    slot_bytes : int, optional
        Largest message. The sender may leave it out, as the receiver tells it.

    Raises
    ------
    ValueError
        There is no such lane.
    """

    name: str
    sender: int
    receiver: int
    delegates: int = 1
    slots: int = 16
    slot_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.sender == self.receiver:
            raise ValueError(f"lane {self.name}: rank {self.sender} would send to itself")
        if self.delegates < 1 or self.slots < 1:
            raise ValueError(f"lane {self.name}: it needs at least one delegate and one slot")
        if self.depth > MOST_DEPTH:
            raise ValueError(f"lane {self.name}: a delegate has at most {MOST_DEPTH:,} slots")
        if self.slot_bytes is not None and self.slot_bytes < 0:
            raise ValueError(f"lane {self.name}: a message cannot have {self.slot_bytes} bytes")

    @property
    def depth(self) -> int:
        """Slots of each delegate."""
        return -(-self.slots // self.delegates)


def open_lanes(
    store: Store,
    rank: int,
    lanes: Sequence[Lane],
    *,
    address: str | None = None,
    timeout_s: float = 600.0,
) -> dict[str, Sender | Receiver]:
    """Open the ends of lanes that are at this rank; all their ranks must.

    Each rank first publishes where it listens, for all its lanes, then connects, then accepts:
    so in no order of ranks or lanes do they wait for each other for ever. No process group is
    needed and none is made. The same names may be used again for lanes opened later.

    Parameters
    ----------
    store : Store
        Where all ranks can read what one has written, such as a ``TCPStore``.
    rank : int
        This one.
    lanes : sequence of Lane
        Those between other ranks are passed over.
    address : str, optional
        Where this rank listens. By default: that of the interface that ``GLOO_SOCKET_IFNAME``
        names, else that from which it reaches the store's host.
    timeout_s : float
        Longest wait for the other end, here and later for any message.

    Returns
    -------
    dict
        The ends at this rank by their lanes' names. Each is a context manager.

    Raises
    ------
    DelegateError
        Another rank does not open its end.
    ValueError
        The ends of a lane are unlike, or nobody says how large messages are.
    MemoryError
        There is not enough shared memory.
    """
    deadline = time.monotonic() + timeout_s
    out = {lane.name: lane for lane in lanes if lane.sender == rank}
    into = {lane.name: lane for lane in lanes if lane.receiver == rank}
    if len(out) + len(into) < sum(rank in (lane.sender, lane.receiver) for lane in lanes):
        raise ValueError("two lanes have the same name")
    ends: dict[str, Sender | Receiver] = {}
    with ExitStack() as undo:
        if into:
            door = undo.enter_context(Door(address or own_address(store)))
        for name, lane in into.items():
            if lane.slot_bytes is None:
                raise ValueError(f"lane {name}: its receiver must say how large messages are")
            door.invite(store, name, lane.delegates, lane.slot_bytes)
        failed = undo.enter_context(ExitStack())
        for name, lane in out.items():
            said = read(store, name, lane.receiver, deadline)
            own = lane.delegates, said.slot_bytes if lane.slot_bytes is None else lane.slot_bytes
            if own != (said.delegates, said.slot_bytes):
                raise ValueError(
                    f"lane {name}: its sender has {own[0]} delegates and slots of {own[1]} bytes, "
                    f"its receiver {said.delegates} and {said.slot_bytes}"
                )
            make = partial(Sender, name, lane.receiver, lane.depth, said.slot_bytes, timeout_s)
            pairs = [connect(said, index, deadline) for index in range(lane.delegates)]
            ends[name] = failed.enter_context(make(pairs))
        if into:
            found = door.accept({name: lane.delegates for name, lane in into.items()}, deadline)
        for name, lane in into.items():
            assert lane.slot_bytes is not None
            pairs = [found[name, index] for index in range(lane.delegates)]
            receiver = Receiver(name, lane.sender, lane.depth, lane.slot_bytes, timeout_s, pairs)
            ends[name] = failed.enter_context(receiver)
        failed.pop_all()
    return ends
