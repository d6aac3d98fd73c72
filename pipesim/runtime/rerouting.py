"""Stock torch pipelining with some of its messages carried by something else.

Stages ask themselves what to send and to receive. ``Rerouted`` answers in their place for the
links that have a carrier, on the stage objects alone: no class is touched, whatever the schedule::

    with Rerouted(schedule) as rerouted:
        if rank == 0:
            rerouted.sending[0, "down"] = Direct(group, 1)
            rerouted.receiving[0, "up"] = Direct(group, 1)
        if rank == 1:
            rerouted.receiving[0, "down"] = Direct(group, 0)
            rerouted.sending[0, "up"] = Direct(group, 0)
        schedule.step(...)
        rerouted.landed  # what came, and when
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining.schedules import _PipelineSchedule

from pipesim.runtime.carriers import Arriving, Incoming, Outgoing
from pipesim.runtime.handles import Handle

__all__ = ["DIRECTIONS", "Direction", "Message", "Rerouted", "Way"]

Direction: TypeAlias = Literal["down", "up"]
"""Activations go down a link, from stage i to stage i + 1, and gradients up."""

Way: TypeAlias = tuple[int, Direction]
"""A link and a direction: all that one carrier carries."""

DIRECTIONS: tuple[Direction, ...] = ("down", "up")


class Message(NamedTuple):
    """A message that was handed over, or that landed."""

    link: int
    direction: Direction
    microbatch: int
    ns: int
    """When, by this host's ``time.monotonic_ns``: its first tensor handed over, its last landed."""
    posted_ns: int
    """When this rank asked for it to be sent or received."""


class Rerouted:
    """A schedule of ``torch.distributed.pipelining`` whose messages may go by carriers.

    Parameters
    ----------
    schedule
        An instance of any of torch's schedule classes; it may have run already.
    on_buffers : callable, optional
        Called in the first step, and in each that begins with torch making new buffers (as when
        training and evaluation take turns), on all ranks: buffers are known and no message has
        been sent. It may set carriers.

    Attributes
    ----------
    sending, receiving : dict
        The carrier's end of each way (link, direction) that this rank sends to or receives from.
        Ways without one go as torch sends them. May be changed between steps.
    sent, landed : list of Message
        What carriers carried in the last step, in the order in which it was handed over or was
        first needed.

    Raises
    ------
    ValueError
        The schedule is rerouted already.
    """

    def __init__(
        self,
        schedule: _PipelineSchedule,
        on_buffers: Callable[[Rerouted], None] = lambda rerouted: None,
    ) -> None:
        self.schedule = schedule
        self.sending: dict[Way, Outgoing] = {}
        self.receiving: dict[Way, Incoming] = {}
        self.sent: list[Message] = []
        self.landed: list[Message] = []
        self._on_buffers = on_buffers
        self._new_buffers = True
        self._outgoing: list[Handle] = []
        self._incoming: dict[tuple[Way, int], tuple[int, list[Arriving]]] = {}

    @property
    def stages(self) -> Sequence[Any]:
        """Torch's stages on this rank."""
        stages = getattr(self.schedule, "_stages", None)
        return stages if stages is not None else [self.schedule._stage]  # type: ignore[attr-defined]

    def ends(self, way: Way) -> tuple[int, int]:
        """Return who sends and who receives on a way, as ranks in the pipeline's group."""
        link, direction = way
        ranks = self.stages[0].stage_index_to_group_rank
        upper, lower = ranks[link], ranks[link + 1]
        return (upper, lower) if direction == "down" else (lower, upper)

    def buffers(self, way: Way) -> list[Tensor]:
        """Return what this rank receives a micro-batch's message on a way into.

        None while torch has not made them, and on other ranks than the receiver.
        """
        link, direction = way
        index, kind = (link + 1, "args") if direction == "down" else (link, "grad")
        for stage in self.stages:
            if stage.stage_index == index:
                infos = getattr(stage, f"{kind}_recv_info").get(0, ())
                return [info.buffer for info in infos if info.buffer is not None]
        return []

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            for stage in self.stages:
                index = stage.stage_index
                before, after = index - 1, index
                shadows: tuple[tuple[str, Callable[..., Any], Way], ...] = (
                    ("get_fwd_recv_ops", self._receive, (before, "down")),
                    ("_retrieve_recv_activations", self._wait, (before, "down")),
                    ("get_fwd_send_ops", self._send, (after, "down")),
                    ("get_bwd_recv_ops", self._receive, (after, "up")),
                    ("_retrieve_recv_grads", self._wait, (after, "up")),
                    ("get_bwd_send_ops", self._send, (before, "up")),
                )
                for name, instead, way in shadows:
                    _shadow(undo, stage, name, instead, way)
                for name in ("_prepare_forward_infra", "_prepare_backward_infra"):
                    _shadow(undo, stage, name, self._prepare)
            several = hasattr(self.schedule, "_stages")
            starts = "_initialize_stages" if several else "_initialize_stage"
            _shadow(undo, self.schedule, starts, self._initialize)
            _shadow(undo, self.schedule, "_step_microbatches", self._step)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()
        self._outgoing.clear()
        self._incoming.clear()

    # -- in place of a stage's own methods ------------------------------------------------------

    def _send(
        self, own: Callable[[int], list[dist.P2POp]], way: Way, microbatch: int
    ) -> list[dist.P2POp]:
        rest, tensors = self._split(own(microbatch), way, self.sending)
        if tensors:
            posted_ns = time.monotonic_ns()
            self.sent.append(Message(*way, microbatch, posted_ns, posted_ns))
            self._outgoing += [self.sending[way].isend(tensor) for tensor in tensors]
        return rest

    def _receive(
        self, own: Callable[[int], list[dist.P2POp]], way: Way, microbatch: int
    ) -> list[dist.P2POp]:
        rest, tensors = self._split(own(microbatch), way, self.receiving)
        if tensors:
            posted_ns = time.monotonic_ns()
            handles = [self.receiving[way].irecv(tensor) for tensor in tensors]
            self._incoming[way, microbatch] = posted_ns, handles
        return rest

    def _split(
        self, operations: list[dist.P2POp], way: Way, carriers: Container[Way]
    ) -> tuple[list[dist.P2POp], list[Tensor]]:
        """Return what torch sends itself (as what skips a stage), and what a carrier takes."""
        if way not in carriers or not operations:
            return operations, []
        ends = self.ends(way)
        rest = [operation for operation in operations if operation.group_peer not in ends]
        taken = [operation for operation in operations if operation.group_peer in ends]
        return rest, [operation.tensor.detach() for operation in taken]

    def _wait(self, own: Callable[[int], Any], way: Way, microbatch: int) -> Any:
        if (way, microbatch) in self._incoming:
            posted_ns, handles = self._incoming.pop((way, microbatch))
            for handle in handles:
                handle.wait()
            last_ns = max(handle.landed_ns or 0 for handle in handles)
            self.landed.append(Message(*way, microbatch, last_ns, posted_ns))
        return own(microbatch)

    def _prepare(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._new_buffers = True
        return own(*args, **kwargs)

    # -- in place of the schedule's own methods -------------------------------------------------

    def _initialize(self, own: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        own(*args, **kwargs)
        if self._new_buffers:
            self._new_buffers = False
            self._on_buffers(self)

    def _step(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for last in self.sent, self.landed, self._outgoing, self._incoming:
            last.clear()
        result = own(*args, **kwargs)
        for handle in self._outgoing:  # torch too ends a step with this
            handle.wait()
        self._outgoing.clear()
        return result


def _shadow(
    undo: ExitStack, owner: object, name: str, instead: Callable[..., Any], *args: Any
) -> None:
    """Answer for an object, on itself and not in its class, until ``undo`` is closed."""
    if name in vars(owner):
        raise ValueError(f"rerouted already: {type(owner).__name__} has its own {name}")
    setattr(owner, name, partial(instead, getattr(owner, name), *args))
    undo.callback(delattr, owner, name)
