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
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.pipelining.schedules import _PipelineSchedule

from pipesim.runtime.rerouting import DIRECTIONS, Direction, Rerouted, Way
from pipesim.runtime.ways import DelegatedWays

__all__ = ["agreed", "check_links", "delegated", "store_of"]


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
        Whose ``sent`` and ``landed`` say when the last step's messages were handed over and when
        they came.

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
    store = store_of(schedule)
    with DelegatedWays(delegates) as lanes:

        def carry(rerouted: Rerouted) -> None:
            lanes.open(rerouted, ways, store)
            rerouted.sending.update(lanes.sending)
            rerouted.receiving.update(lanes.receiving)

        with Rerouted(schedule, carry) as rerouted:
            check_links(rerouted, links)
            store = agreed(rerouted, [links, directions, delegates])
            yield rerouted


def store_of(schedule: _PipelineSchedule) -> Store:
    """Return the store in which the ranks of a schedule's process group have met."""
    group = Rerouted(schedule).stages[0].group or dist.distributed_c10d._get_default_group()
    return dist.distributed_c10d._get_process_group_store(group)


def check_links(rerouted: Rerouted, links: Iterable[int]) -> None:
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


def agreed(rerouted: Rerouted, arguments: object) -> Store:
    """Return a part of the group's store for this entry of all ranks, all with these arguments.

    Each waits for all others: where one has other arguments, none goes on.
    """
    store = PrefixStore("pipesim/entries", store_of(rerouted.schedule))
    stage, ours = rerouted.stages[0], json.dumps(arguments)
    entry = str(store.add(f"of rank {stage.group_rank}", 1))
    store = PrefixStore(entry, store)
    store.set(f"rank {stage.group_rank}", ours)
    for rank in range(stage.group_size):
        if (theirs := store.get(f"rank {rank}").decode()) != ours:
            raise ValueError(f"ranks differ in links and delegates: {ours} and {theirs}")
    return store
