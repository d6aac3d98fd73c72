"""A pipeline with the signatures of Megatron-LM's, whose ranks are threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import Queue
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.processes import PATIENCE_S

RANKS, MICROBATCHES, SHAPE = 4, 6, (3, 2, 5)


@dataclass
class Config:
    pipeline_dtype: Any = torch.float64
    variable_seq_lengths: bool = False
    mtp_standalone: bool = False
    use_ring_exchange_p2p: bool = False
    batch_p2p_comm: bool = False


class Wire:
    """The messages between neighbours, in the order in which they were sent."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int], Queue[Tensor]] = {
            (a, b): Queue() for a in range(RANKS) for b in range(RANKS)
        }
        self.carried: list[tuple[int, int]] = []


@dataclass
class Group:
    """As much of a process group as is needed."""

    number: int

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return RANKS


@dataclass
class Landing:
    """A receive that somebody waits for."""

    queue: Queue[Tensor]
    room: Tensor

    def wait(self) -> None:
        self.room.data.copy_(self.queue.get(timeout=PATIENCE_S))


@dataclass
class Gone:
    """A send, which nobody need wait for."""

    def wait(self) -> None:
        pass


def communicate(
    wire: Wire, rank: int, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool,
    recv_next: bool, tensor_shape: Any, config: Config, wait_on_reqs: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    requests: dict[str, Any] = {}
    below, above = (rank + 1) % RANKS, (rank - 1) % RANKS
    for name, tensor, peer in (
        ("send_next", tensor_send_next, below), ("send_prev", tensor_send_prev, above),
    ):  # fmt: skip
        if tensor is not None:
            wire.carried.append((rank, peer))
            wire.queues[rank, peer].put(tensor.detach().clone())
            requests[name] = Gone()
    rooms: list[Any] = []
    for name, wanted, peer in (("recv_prev", recv_prev, above), ("recv_next", recv_next, below)):
        room = None
        if wanted:
            room = torch.empty(tensor_shape, dtype=config.pipeline_dtype, requires_grad=True)
            requests[name] = Landing(wire.queues[peer, rank], room)
        rooms.append(room)
    if wait_on_reqs:
        for request in requests.values():
            request.wait()
        requests = {}
    return rooms[0], rooms[1], requests


class P2PCommunicator:
    """The class of newer releases; its public methods all call ``_communicate``."""

    def __init__(self, pp_group: Group, config: Config, wire: Wire) -> None:
        self.pp_group, self.config, self.wire = pp_group, config, wire

    def _communicate(
        self, *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool,
        tensor_shape: Any, wait_on_reqs: bool = True,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        return communicate(
            self.wire, self.pp_group.rank(), tensor_send_next, tensor_send_prev, recv_prev,
            recv_next, tensor_shape, self.config, wait_on_reqs,
        )  # fmt: skip

    def call(self, **asked: Any) -> tuple[Any, Any, Any]:
        nothing = {
            "tensor_send_next": None, "tensor_send_prev": None, "recv_prev": False,
            "recv_next": False, "tensor_shape": SHAPE,
        }  # fmt: skip
        return self._communicate(**(nothing | asked))


def module(group: Group, config: Config, wire: Wire) -> SimpleNamespace:
    """The module of older releases: functions that are told the config, and list requests."""

    def _communicate(
        *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool,
        tensor_shape: Any, config: Config, wait_on_reqs: bool = True,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        above, below, requests = communicate(
            wire, group.rank(), tensor_send_next, tensor_send_prev, recv_prev, recv_next,
            tensor_shape, config, wait_on_reqs,
        )  # fmt: skip
        return above, below, list(requests.values())

    names = SimpleNamespace(_communicate=_communicate)

    def call(**asked: Any) -> tuple[Any, Any, Any]:
        nothing = {
            "tensor_send_next": None, "tensor_send_prev": None, "recv_prev": False,
            "recv_next": False, "tensor_shape": SHAPE, "config": config,
        }  # fmt: skip
        return names._communicate(**(nothing | asked))  # type: ignore[no-any-return]

    names.call = call
    return names


@dataclass
class Stage:
    """A rank's layer, and what it holds for the backward."""

    rank: int
    layer: torch.nn.Module
    call: Callable[..., tuple[Any, Any, Any]]
    held: list[tuple[Any, Any]] = field(default_factory=list)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y = self.layer(x)
        if self.rank == RANKS - 1:
            y = ((y - target) ** 2).sum()
        self.held.append((x, y))
        return y

    def backward(self, gradient: Any) -> Any:
        x, y = self.held.pop(0)
        torch.autograd.backward(y, gradient)
        return x.grad

    def train(self, inputs: list[Tensor], targets: list[Tensor]) -> None:
        """1F1B without interleaving, with exchanges as Megatron-LM makes them."""
        first, last = self.rank == 0, self.rank == RANKS - 1
        warm_up = min(RANKS - 1 - self.rank, MICROBATCHES)
        steady = MICROBATCHES - warm_up
        number = iter(range(MICROBATCHES))

        def take(received: Any) -> tuple[Tensor, Tensor]:
            m = next(number)
            return (inputs[m] if first else received), targets[m]

        for _ in range(warm_up):
            x = None if first else self.call(recv_prev=True)[0]
            self.call(tensor_send_next=self.forward(*take(x)))
        x = None if first or not steady else self.call(recv_prev=True)[0]
        for i in range(steady):
            y = self.forward(*take(x))
            dy = None if last else self.call(tensor_send_next=y, recv_next=True)[1]
            dx = self.backward(dy)
            if i == steady - 1:
                if not first:
                    self.call(tensor_send_prev=dx)
            else:
                x = None if first else self.call(tensor_send_prev=dx, recv_prev=True)[0]
        for _ in range(warm_up):
            dx = self.backward(self.call(recv_next=True)[1])
            if not first:
                self.call(tensor_send_prev=dx)


def at_once(run: Callable[[int], Any]) -> list[Any]:
    """Run all ranks side by side; returns, or raises, what they do."""
    with ThreadPoolExecutor(RANKS) as threads:
        done = [threads.submit(run, rank) for rank in range(RANKS)]
        wait(done, PATIENCE_S, FIRST_EXCEPTION)
        for one in done:
            if one.done() and one.exception():
                raise one.exception()  # type: ignore[misc]
        return [one.result() for one in done]
