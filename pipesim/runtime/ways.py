"""Lanes for the ways of a stock torch schedule: opened once torch knows what is sent."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from torch.distributed import Store  # type: ignore[attr-defined]

from pipesim.runtime.ends import Receiver, Sender
from pipesim.runtime.lanes import MOST_DEPTH, Lane, open_lanes
from pipesim.runtime.rerouting import Rerouted, Way

__all__ = ["DelegatedWays"]


class DelegatedWays:
    """The delegates of ways; a context manager that ends them.

    Parameters
    ----------
    delegates : int
        Processes at each end of each way.

    Attributes
    ----------
    sending, receiving : dict
        The ends at this rank, by their ways.
    """

    def __init__(self, delegates: int) -> None:
        self.sending: dict[Way, Sender] = {}
        self.receiving: dict[Way, Receiver] = {}
        self._delegates = delegates

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for end in (*self.sending.values(), *self.receiving.values()):
            end.__exit__(kind, error, trace)

    def open(self, rerouted: Rerouted, ways: Iterable[Way], store: Store) -> None:
        """Open a lane for each way that has none, or too small a one; for ``on_buffers``.

        Parameters
        ----------
        rerouted : Rerouted
            Whose buffers torch has made.
        ways : iterable of (link, direction)
            Each between two ranks; the same on all.
        store : Store
            That all ranks share; for these lanes alone.
        """
        outgrown = [way for way in ways if self._is_outgrown(rerouted, way, store)]
        for way in outgrown:
            for end in self.sending.pop(way, None), self.receiving.pop(way, None):
                if end is not None:
                    end.close()
        lanes = {_name(way): _lane(rerouted, way, self._delegates) for way in outgrown}
        ends = open_lanes(store, rerouted.stages[0].group_rank, list(lanes.values()))
        for way in outgrown:
            end = ends.get(_name(way))
            if isinstance(end, Sender):
                self.sending[way] = end
            elif isinstance(end, Receiver):
                self.receiving[way] = end

    def _is_outgrown(self, rerouted: Rerouted, way: Way, store: Store) -> bool:
        """Whether a way needs a larger lane; what the receiver says holds for both."""
        sender, receiver = rerouted.ends(way)
        rank, name = rerouted.stages[0].group_rank, f"{_name(way)} is outgrown"
        if way[1] == "up" and not rerouted.schedule._has_backward:
            return False
        if rank == receiver:
            end = self.receiving.get(way)
            outgrown = end is None or end.slot_bytes < _largest(rerouted, way)
            store.set(name, str(outgrown))
        elif rank == sender:
            outgrown = store.get(name) == b"True"
            store.delete_key(name)
        else:
            outgrown = False
        return outgrown


def _lane(rerouted: Rerouted, way: Way, delegates: int) -> Lane:
    """Return a lane with room for all messages of a step, so that nobody waits for a slot.

    Beyond what delegates can have, who sends waits for who receives.
    """
    link, _ = way
    sender, receiver = rerouted.ends(way)
    tensors = 1
    for stage in rerouted.stages:
        if stage.stage_index == link:
            tensors = len(stage.act_send_info)
        elif stage.stage_index == link + 1:
            tensors = len(stage.args_recv_info[0])
    is_here = rerouted.stages[0].group_rank == receiver
    slot_bytes = _largest(rerouted, way) if is_here else None
    slots = min(rerouted.schedule._n_microbatches * tensors, delegates * MOST_DEPTH)
    return Lane(_name(way), sender, receiver, delegates, slots, slot_bytes)


def _largest(rerouted: Rerouted, way: Way) -> int:
    """Return the bytes of the largest message that this rank receives."""
    return max((buffer.nbytes for buffer in rerouted.buffers(way)), default=1)


def _name(way: Way) -> str:
    link, direction = way
    return f"link {link} {direction}"
