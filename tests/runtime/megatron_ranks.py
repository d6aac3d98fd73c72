"""Megatron-LM's public calls on four ranks over gloo, with messages that delegates carry.

``python -m tests.runtime.megatron_ranks FOLDER [own]`` trains on a stand-in for the class
``P2PCommunicator``, or with ``own`` on the ``p2p_communication`` of the ``megatron.core`` that is
installed. Each rank writes ``FOLDER/rank<i>.json``: what it found.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.formats.torch_runtime import forked, meet
from tests.runtime.megatron_stand_in import MICROBATCHES, RANKS, SHAPE, Stage
from tests.runtime.training import children, delegates_in_both_ends


class Communicator:
    """The class of megatron.core 0.14, as far as 1F1B and interleaved schedules need it."""

    def __init__(self, pp_group: Any, config: Any) -> None:
        self.pp_group, self.config = pp_group, config

    def _communicate(
        self, *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool,
        tensor_shape: Any, wait_on_reqs: bool = True,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        import torch
        import torch.distributed as dist

        rank, ranks = self.pp_group.rank(), self.pp_group.size()
        neighbours = {"next": (rank + 1) % ranks, "prev": (rank - 1) % ranks}
        requests: dict[str, Any] = {}
        for side, tensor in ("next", tensor_send_next), ("prev", tensor_send_prev):
            if tensor is not None:
                requests[f"send_{side}"] = dist.isend(tensor.detach(), neighbours[side])
        rooms: dict[str, Any] = {"next": None, "prev": None}
        for side, wanted in ("prev", recv_prev), ("next", recv_next):
            if wanted:
                dtype = self.config.pipeline_dtype
                rooms[side] = torch.empty(tensor_shape, dtype=dtype, requires_grad=True)
                room = rooms[side].detach()
                requests[f"recv_{side}"] = dist.irecv(room, neighbours[side])
        if not wait_on_reqs:
            return rooms["prev"], rooms["next"], requests
        for request in requests.values():
            request.wait()
        return rooms["prev"], rooms["next"], None

    def _ask(self, **asked: Any) -> tuple[Any, Any, Any]:
        nothing = {
            "tensor_send_next": None, "tensor_send_prev": None, "recv_prev": False,
            "recv_next": False, "tensor_shape": None,
        }  # fmt: skip
        return self._communicate(**(nothing | asked))

    def recv_forward(self, tensor_shapes: Any, is_first_stage: bool) -> Any:
        if is_first_stage:
            return None
        return self._ask(recv_prev=True, tensor_shape=tensor_shapes)[0]

    def recv_backward(self, tensor_shapes: Any, is_last_stage: bool) -> Any:
        if is_last_stage:
            return None
        return self._ask(recv_next=True, tensor_shape=tensor_shapes)[1]

    def send_forward(self, output_tensors: Any, is_last_stage: bool) -> None:
        if not is_last_stage:
            self._ask(tensor_send_next=output_tensors)

    def send_backward(self, input_tensor_grads: Any, is_first_stage: bool) -> None:
        if not is_first_stage:
            self._ask(tensor_send_prev=input_tensor_grads)

    def send_forward_recv_backward(
        self, output_tensors: Any, tensor_shapes: Any, is_last_stage: bool
    ) -> Any:
        if is_last_stage:
            return None
        send = {"tensor_send_next": output_tensors}
        return self._ask(**send, recv_next=True, tensor_shape=tensor_shapes)[1]

    def send_backward_recv_forward(
        self, input_tensor_grads: Any, tensor_shapes: Any, is_first_stage: bool
    ) -> Any:
        if is_first_stage:
            return None
        send = {"tensor_send_prev": input_tensor_grads}
        return self._ask(**send, recv_prev=True, tensor_shape=tensor_shapes)[0]

    def send_forward_recv_forward(
        self, output_tensor: Any, recv_prev: bool, tensor_shape: Any, overlap_p2p_comm: bool
    ) -> Any:
        received, _, requests = self._ask(
            tensor_send_next=output_tensor, recv_prev=recv_prev, tensor_shape=tensor_shape,
            wait_on_reqs=not overlap_p2p_comm,
        )  # fmt: skip
        return (received, requests) if overlap_p2p_comm else received


def public(functions: Any, at_first: list[Any], at_last: list[Any]) -> Callable[..., Any]:
    """Exchanges as ``Stage`` asks for them, by public calls, told what comes last in each."""

    def call(
        tensor_send_next: Any = None, tensor_send_prev: Any = None, recv_prev: bool = False,
        recv_next: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        above = below = None
        if tensor_send_next is not None and recv_next:
            below = functions.send_forward_recv_backward(tensor_send_next, SHAPE, *at_last)
        elif tensor_send_prev is not None and recv_prev:
            above = functions.send_backward_recv_forward(tensor_send_prev, SHAPE, *at_first)
        elif recv_prev:
            above = functions.recv_forward(SHAPE, *at_first)
        elif recv_next:
            below = functions.recv_backward(SHAPE, *at_last)
        elif tensor_send_next is not None:
            functions.send_forward(tensor_send_next, *at_last)
        else:
            functions.send_backward(tensor_send_prev, *at_first)
        return above, below

    return call


def made(config: Any, group: Any, own: bool) -> tuple[Any, bool]:
    """What is given to the context, and whether it is a module."""
    if not own:
        return Communicator(group, config), False
    import torch
    from megatron.core import parallel_state  # type: ignore[import-not-found, unused-ignore]
    from megatron.core.pipeline_parallel import (  # type: ignore[import-not-found, unused-ignore]
        p2p_communication,
    )

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    if hasattr(p2p_communication, "P2PCommunicator"):
        return p2p_communication.P2PCommunicator(group, config), False
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=RANKS)
    return p2p_communication, True


def main(folder: Path, own: bool) -> int:
    return forked(RANKS, lambda rank: _run_rank(rank, folder, own))


def _run_rank(rank: int, folder: Path, own: bool) -> None:
    import torch
    import torch.distributed as dist

    from pipesim.runtime import delegated_p2p

    meet(rank, RANKS, folder)
    config = SimpleNamespace(
        pipeline_dtype=torch.float64, timers=None, variable_seq_lengths=False,
        use_ring_exchange_p2p=False, batch_p2p_comm=False, batch_p2p_sync=False,
        virtual_pipeline_model_parallel_size=None, mtp_standalone=False,
    )  # fmt: skip
    group: Any = dist.distributed_c10d._get_default_group()
    functions, is_module = made(config, group, own)
    first, last = rank == 0, rank == RANKS - 1
    after = [config] if is_module else []
    at_first, at_last = [*after], [*after]
    if "is_first_stage" in signature(functions.recv_forward).parameters:  # modules: from 0.13 on
        at_first.append(first)
        at_last.append(last)
    told = {"config": config, "group": group} if is_module else {}

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(SHAPE[-1], SHAPE[-1]), torch.nn.Tanh())
            for _ in range(RANKS)
        )
    )
    stage = Stage(rank, model[rank], public(functions, at_first, at_last))
    errors, delegates = [], []
    before = dict(vars(functions))

    def train(seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        inputs, targets = torch.randn(2, MICROBATCHES, *SHAPE, generator=random)
        model.zero_grad()
        ((model(inputs) - targets) ** 2).sum().backward()
        right = [weight.grad for weight in stage.layer.parameters()]
        model.zero_grad()
        stage.train(list(inputs), list(targets))
        for weight, expected in zip(stage.layer.parameters(), right, strict=True):
            assert weight.grad is not None
            assert expected is not None
            errors.append(float((weight.grad - expected).abs().max() / expected.abs().max()))

    for links, directions, k in ([0], ["down"], 1), ([0, 1, 2], ["down", "up"], 2):
        train(0)
        with delegated_p2p(
            functions, links, tensor_shape=SHAPE, directions=directions, delegates=k,  # type: ignore[arg-type]
            device="cpu", **told,
        ):  # fmt: skip
            train(1)
            train(2)
            delegates.append(delegates_in_both_ends())
    with delegated_p2p(functions, [0, 1, RANKS - 1], tensor_shape=SHAPE, device="cpu", **told):
        sent = torch.full(SHAPE, float(rank))
        received, requests = functions.send_forward_recv_forward(
            sent, True, SHAPE, *after, overlap_p2p_comm=True
        )
        kind = sorted(requests) if isinstance(requests, dict) else len(requests)
        for request in requests.values() if isinstance(requests, dict) else requests:
            request.wait()
        overlapped = bool((received == (rank - 1) % RANKS).all())
        dist.barrier()
    for thread in threading.enumerate()[1:]:
        thread.join(60.0)
    found = {
        "error": max(errors),
        "delegates": delegates,
        "overlapped": overlapped,
        "requests": kind,
        "as_before": dict(vars(functions)) == before,
        "left": [*children(), *(thread.name for thread in threading.enumerate()[1:])],
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] == ["own"]))
