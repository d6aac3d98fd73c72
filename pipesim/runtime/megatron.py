"""Delegates for Megatron-LM's pipeline.

All that Megatron-LM sends between stages goes through one function, ``_communicate``: a method of
``P2PCommunicator`` in newer releases of ``megatron.core``, and a function of the module
``p2p_communication`` in older ones. Either is given to the context, on every rank of the pipeline::

    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
    from pipesim.runtime import delegated_p2p

    communicator = P2PCommunicator(pp_group, config)
    shape = (sequence_length, micro_batch_size, hidden_size)  # of a message
    with delegated_p2p(communicator, links=[0], tensor_shape=shape):
        for _ in range(iterations):
            forward_backward_func(..., p2p_communicator=communicator, grad_finalize_pgs=groups)

Megatron's schedules make a communicator of their own in each call unless they are given both
``p2p_communicator`` and its process groups. Of older releases, the module and what it does not
know are given::

    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import p2p_communication

    group = parallel_state.get_pipeline_model_parallel_group()
    with delegated_p2p(
        p2p_communication, links=[0], tensor_shape=shape, config=config, group=group
    ):
        ...

It is written for ``megatron.core`` 0.9 to 0.13 (module) and 0.14 (class). It is tested with
stand-ins that have their signatures, and with their own ``p2p_communication`` where that is
installed, over gloo on CPUs; not with Megatron-LM's schedules, nor on GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from pipesim.runtime.ends import Receiver, Sender
from pipesim.runtime.lanes import Lane, open_lanes
from pipesim.runtime.rerouting import DIRECTIONS, Direction

__all__ = ["delegated_p2p"]


class _Ends(NamedTuple):
    """A rank's ends of lanes to and from its neighbours; None: Megatron sends itself."""

    send_next: Sender | None
    recv_next: Receiver | None
    send_prev: Sender | None
    recv_prev: Receiver | None


@contextmanager
def delegated_p2p(
    communication: Any,
    links: Iterable[int],
    *,
    tensor_shape: Sequence[int],
    config: Any = None,
    group: Any = None,
    store: Store | None = None,
    directions: Iterable[Direction] = DIRECTIONS,
    delegates: int = 1,
    slots: int = 16,
    device: torch.device | str | None = None,
) -> Iterator[None]:
    """Let delegates carry the messages of some links of Megatron-LM's pipeline.

    All ranks of the pipeline enter it with the same arguments, and leave it between iterations. A
    send returns as soon as its tensor may be changed. While it lasts, the object has a
    ``_communicate`` of its own; after it, everything is as it was.

    Parameters
    ----------
    communication
        A ``P2PCommunicator``, or the module ``megatron.core.pipeline_parallel.p2p_communication``.
    links : iterable of int
        Link i joins ranks i and i + 1 of the pipeline's group; with interleaved stages the last
        link joins the last rank and the first. It carries the messages of all their chunks.
    tensor_shape : sequence of int
        Of the largest message.
    config, group, optional
        Megatron's config and the pipeline's process group; a ``P2PCommunicator`` has its own.
    store : Store, optional
        That all ranks share; default: that of the group.
    directions : iterable of "down" or "up"
        Activations, gradients, or both.
    delegates : int
        Processes at each end of each link and direction.
    slots : int
        Messages that may be under way at each end; who sends beyond that waits.
    device : torch.device or str, optional
        Where messages are received; by default on the current GPU, as Megatron does, if any.

    Raises
    ------
    ValueError
        There is no such link or direction, a rank is in several pipelines, or Megatron would
        exchange shapes first (sequences of variable lengths) or all messages at once (by ring).
    DelegateError
        From a training step: a delegate or another rank is gone.
    """
    config = config or communication.config
    group = group or communication.pp_group
    _check_config(config, group)
    rank, ranks = group.rank(), group.size()
    lanes = _lanes(ranks, links, directions, delegates, slots, _bytes(tensor_shape, config))
    shared = store or dist.distributed_c10d._get_process_group_store(group)
    entry = shared.add(f"pipesim/megatron/entries of rank {rank}", 1)
    shared = PrefixStore(f"pipesim/megatron/{entry}", shared)
    with ExitStack() as undo:
        opened = open_lanes(shared, rank, lanes)
        for end in opened.values():
            undo.push(end)
        ends = _Ends(
            opened.get(_name(rank, "down")),  # type: ignore[arg-type]
            opened.get(_name(rank, "up")),  # type: ignore[arg-type]
            opened.get(_name((rank - 1) % ranks, "up")),  # type: ignore[arg-type]
            opened.get(_name((rank - 1) % ranks, "down")),  # type: ignore[arg-type]
        )
        own = communication._communicate
        had = vars(communication).get("_communicate")
        room = partial(_room, dtype=config.pipeline_dtype, device=device)
        communication._communicate = partial(_communicate, own, ends, room)
        try:
            yield
        finally:
            if had is None:
                del communication._communicate
            else:
                communication._communicate = had


def _check_config(config: Any, group: Any) -> None:
    if isinstance(group, list):
        raise ValueError("this rank is in several pipelines: delegates know of one")
    for name in "variable_seq_lengths", "mtp_standalone":  # not all releases have both
        if getattr(config, name, False):
            raise ValueError(f"{name}: delegates need to know how large messages are")
    if getattr(config, "use_ring_exchange_p2p", False):
        raise ValueError("use_ring_exchange_p2p: a ring is exchanged by all ranks or by none")
    if config.pipeline_dtype is None:
        raise ValueError("the config says no pipeline_dtype")


def _bytes(shape: Sequence[int], config: Any) -> int:
    return math.prod(shape) * int(config.pipeline_dtype.itemsize)


def _lanes(
    ranks: int,
    links: Iterable[int],
    directions: Iterable[Direction],
    delegates: int,
    slots: int,
    slot_bytes: int,
) -> list[Lane]:
    if unknown := set(directions := sorted(set(directions))) - set(DIRECTIONS):
        raise ValueError(f"no direction {min(unknown)!r}: there are {' and '.join(DIRECTIONS)}")
    lanes = []
    for link in sorted(set(links)):
        if not 0 <= link < ranks or ranks < 2:
            raise ValueError(f"no link {link}: {ranks} ranks have links 0 to {ranks - 1}")
        upper, lower = link, (link + 1) % ranks
        for direction in directions:
            sender, receiver = (upper, lower) if direction == "down" else (lower, upper)
            name = _name(link, direction)
            lanes.append(Lane(name, sender, receiver, delegates, slots, slot_bytes))
    return lanes


def _name(link: int, direction: Direction) -> str:
    return f"link {link} {direction}"


def _communicate(
    own: Callable[..., Any],
    ends: _Ends,
    room: Callable[[Sequence[int] | None], Tensor],
    /,
    *,
    tensor_send_next: Tensor | None,
    tensor_send_prev: Tensor | None,
    recv_prev: bool,
    recv_next: bool,
    tensor_shape: Sequence[int] | None,
    wait_on_reqs: bool = True,
    **rest: Any,
) -> tuple[Tensor | None, Tensor | None, Any]:
    """Do what Megatron's own does, which gets what delegates do not carry."""
    handles: dict[str, Any] = {}
    if tensor_send_next is not None and ends.send_next:
        handles["send_next"] = ends.send_next.isend(tensor_send_next)
        tensor_send_next = None
    if tensor_send_prev is not None and ends.send_prev:
        handles["send_prev"] = ends.send_prev.isend(tensor_send_prev)
        tensor_send_prev = None
    from_prev = from_next = None
    if recv_prev and ends.recv_prev:
        from_prev = room(tensor_shape)
        handles["recv_prev"] = ends.recv_prev.irecv(from_prev.detach())
        recv_prev = False
    if recv_next and ends.recv_next:
        from_next = room(tensor_shape)
        handles["recv_next"] = ends.recv_next.irecv(from_next.detach())
        recv_next = False
    requests: Any = None
    sends = tensor_send_next is not None or tensor_send_prev is not None
    # With nothing left it still says how its release gives requests back: as a dict or a list.
    if sends or recv_prev or recv_next or not wait_on_reqs:
        owned_prev, owned_next, requests = own(
            tensor_send_next=tensor_send_next,
            tensor_send_prev=tensor_send_prev,
            recv_prev=recv_prev,
            recv_next=recv_next,
            tensor_shape=tensor_shape,
            wait_on_reqs=wait_on_reqs,
            **rest,
        )
        from_prev = owned_prev if from_prev is None else from_prev
        from_next = owned_next if from_next is None else from_next
    if wait_on_reqs:
        for handle in handles.values():
            handle.wait()
        return from_prev, from_next, requests
    if isinstance(requests, list):
        return from_prev, from_next, [*requests, *handles.values()]
    return from_prev, from_next, {**(requests or {}), **handles}


def _room(
    shape: Sequence[int] | None, dtype: torch.dtype, device: torch.device | str | None
) -> Tensor:
    """Return what a message is received into, as Megatron makes it."""
    if shape is None:
        raise RuntimeError("tensor_shape must be specified if something is received")
    if device is None:
        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    return torch.empty(tuple(shape), requires_grad=True, device=device, dtype=dtype)
