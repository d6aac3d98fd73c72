"""Lanes: what is sent arrives, in order, whatever it is and however many carry it."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.processes import Background
from tests.runtime.pairs import a_lane, both


@pytest.mark.parametrize("delegates", [1, 3])
def test_messages_arrive_in_order_through_a_ring_that_is_full(delegates: int) -> None:
    sent = [torch.full((3, number % 5), float(number)) for number in range(40)]
    with a_lane(delegates=delegates, slots=4, slot_bytes=64) as (sender, receiver):

        def send() -> None:
            for tensor in sent:
                sender.isend(tensor)

        def receive() -> None:
            for number, tensor in enumerate(sent):
                room = torch.empty_like(tensor)
                received = receiver.irecv(room)
                assert received.wait()
                assert received.number == number
                assert torch.equal(room, tensor)

        both(send, receive)


TENSORS = {
    "nothing": torch.empty(0, 3),
    "a number": torch.tensor(7.5, dtype=torch.float64),
    "transposed": torch.arange(12).reshape(3, 4).T,
    "every other": torch.arange(10.0)[::2],
    "bfloat16": torch.arange(6).to(torch.bfloat16),
    "bool": torch.tensor([True, False, True]),
    "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "with gradient": torch.ones(3, requires_grad=True),
}


def test_tensors_of_any_kind_arrive() -> None:
    with a_lane(slots=3, slot_bytes=96) as (sender, receiver):
        for name, tensor in TENSORS.items():
            assert sender.isend(tensor).wait()
            room = torch.empty_like(tensor, requires_grad=tensor.requires_grad)
            receiver.irecv(room).wait()
            assert torch.equal(room, tensor), name


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    command = sys.executable, "-m", "tests.runtime.lane_ranks"
    with ExitStack() as stack:
        runs = [
            stack.enter_context(Background(tmp_path / str(rank), *command, str(rank), port))
            for rank in range(2)
        ]
        for run in runs:
            run.ended()
            assert (run.output, run.said) == ("done", "")
