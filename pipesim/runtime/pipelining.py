"""Delegates for stock ``torch.distributed.pipelining``.

Where a link is late, its messages hold up what comes after them in the same queue. Processes of
their own can carry them instead, in a training script by one line, on every rank of the pipeline::

    from torch.distributed.pipelining import Schedule1F1B
    from pipesim.runtime import delegated

    schedule = Schedule1F1B(stage, n_microbatches=12, loss_fn=loss)
    with delegated(schedule, links=[0]):  # link 0 joins stages 0 and 1
        for batch, target in data:
            schedule.step(batch, target=target)

In torchtitan, ``schedule`` is the trainer's ``pp_schedule``. Once the context is left, everything
goes as torch sends it again, and nothing remains of delegates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.pipelining.schedules import _PipelineSchedule

from pipesim.runtime.ends import Receiver, Sender
from pipesim.runtime.lanes import Lane, open_lanes
from pipesim.runtime.rerouting import DIRECTIONS, Direction, Rerouted, Way

__all__ = ["close_way", "delegated", "open_ways", "store_of"]


@contextmanager
def delegated(
    schedule: _PipelineSchedule,
    links: Iterable[int],
    *,
    directions: Iterable[Direction] = DIRECTIONS,
    delegates: int = 1,
) -> Iterator[Rerouted]:
    """Let delegates carry the messages of some links while a schedule runs.

    All ranks of the pipeline enter it, with the same arguments, and leave it after the same step.
    Delegates start in the first step that they are needed in, when torch knows what is sent; and
    again if torch makes larger buffers.

    Parameters
    ----------
    schedule
        An instance of any of torch's schedule classes.
    links : iterable of int
        Link i joins stages i and i + 1.
    directions : iterable of "down" or "up"
        Activations, gradients, or both.
    delegates : int
        Processes at each end of each link and direction.

    Yields
    ------
    Rerouted
        Whose ``sent`` and ``landed`` say when messages were handed over and when they came.

    Raises
    ------
    ValueError
        There is no such link, it joins two stages of one rank, the arguments are not those of
        another rank, or the schedule is in another such context.
    DelegateError
        From ``schedule.step``: a delegate or another rank is gone.
    """
    links, directions = sorted(set(links)), sorted(set(directions))
    if unknown := set(directions) - set(DIRECTIONS):
        raise ValueError(f"no direction {min(unknown)!r}: there are {' and '.join(DIRECTIONS)}")
    if delegates < 1:
        raise ValueError(f"at least one delegate is needed, not {delegates}")
    ways: list[Way] = [(link, direction) for link in links for direction in directions]
    with ExitStack() as closed_after:

        def open_outgrown(rerouted: Rerouted) -> None:
            outgrown = [way for way in ways if _is_outgrown(rerouted, way, store)]
            for way in outgrown:
                close_way(rerouted, way)
            for end in open_ways(rerouted, outgrown, store, delegates=delegates):
                closed_after.push(end)

        with Rerouted(schedule, open_outgrown) as rerouted:
            _check(rerouted, links)
            store = _agreed(rerouted, [links, directions, delegates])
            yield rerouted


def store_of(schedule: _PipelineSchedule) -> Store:
    """Return the store in which the ranks of a schedule's process group have met."""
    group = Rerouted(schedule).stages[0].group or dist.distributed_c10d._get_default_group()
    return dist.distributed_c10d._get_process_group_store(group)


def open_ways(
    rerouted: Rerouted, ways: Iterable[Way], store: Store, *, delegates: int = 1
) -> list[Sender | Receiver]:
    """Let delegates carry ways; the ranks at both ends do this, between steps or in ``on_buffers``.

    Parameters
    ----------
    rerouted : Rerouted
        Of a schedule whose buffers torch has made. It gets the ends that are at this rank.
    ways : iterable of (link, direction)
        Each between two ranks.
    store : Store
        That all ranks share.
    delegates : int
        Processes at each end of each way.

    Returns
    -------
    list of Sender or Receiver
        The ends at this rank, to be closed; see also `close_way`.
    """
    rank = rerouted.stages[0].group_rank
    lanes = {way: _lane(rerouted, way, delegates) for way in ways}
    ends = open_lanes(store, rank, list(lanes.values()))
    for way, lane in lanes.items():
        end = ends.get(lane.name)
        if isinstance(end, Sender):
            rerouted.sending[way] = end
        elif isinstance(end, Receiver):
            rerouted.receiving[way] = end
    return list(ends.values())


def close_way(rerouted: Rerouted, way: Way) -> None:
    """End the delegates of a way, if there are any; between steps."""
    for end in rerouted.sending.pop(way, None), rerouted.receiving.pop(way, None):
        if isinstance(end, Sender | Receiver):
            end.close()


def _is_outgrown(rerouted: Rerouted, way: Way, store: Store) -> bool:
    """Whether a way needs a lane and has none as large; what the receiver says holds for both."""
    sender, receiver = rerouted.ends(way)
    rank, name = rerouted.stages[0].group_rank, f"{_name(way)} is outgrown"
    if way[1] == "up" and not rerouted.schedule._has_backward:
        return False
    if rank == receiver:
        end = rerouted.receiving.get(way)
        outgrown = not isinstance(end, Receiver) or end.slot_bytes < _largest(rerouted, way)
        store.set(name, str(outgrown))
    elif rank == sender:
        outgrown = store.get(name) == b"True"
        store.delete_key(name)
    else:
        outgrown = False
    return outgrown


def _lane(rerouted: Rerouted, way: Way, delegates: int) -> Lane:
    """Return a lane with room for all messages of a step, so that nobody waits for a slot."""
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
    slots = rerouted.schedule._n_microbatches * tensors
    return Lane(_name(way), sender, receiver, delegates, slots, slot_bytes)


def _largest(rerouted: Rerouted, way: Way) -> int:
    """Return the bytes of the largest message that this rank receives."""
    return max((buffer.nbytes for buffer in rerouted.buffers(way)), default=1)


def _name(way: Way) -> str:
    link, direction = way
    return f"link {link} {direction}"


def _check(rerouted: Rerouted, links: Iterable[int]) -> None:
    """Raise ValueError if messages do not go from rank to rank over each link."""
    stages = rerouted.stages[0].num_stages
    for link in links:
        if not 0 <= link < stages - 1:
            raise ValueError(f"no link {link}: {stages} stages have links 0 to {stages - 2}")
        sender, receiver = rerouted.ends((link, "down"))
        if sender == receiver:
            raise ValueError(
                f"link {link} joins two stages of rank {sender}: no messages go over it"
            )


def _agreed(rerouted: Rerouted, arguments: object) -> Store:
    """Return a part of the group's store for this entry of all ranks, all with these arguments."""
    store = PrefixStore("pipesim/delegated", store_of(rerouted.schedule))
    rank = rerouted.stages[0].group_rank
    entry = store.add(f"entries of rank {rank}", 1)
    ours = json.dumps(arguments)
    theirs = store.compare_set(f"arguments of entry {entry}", "", ours).decode()
    if theirs != ours:
        raise ValueError(f"ranks differ in links, directions and delegates: {ours} and {theirs}")
    return PrefixStore(str(entry), store)
