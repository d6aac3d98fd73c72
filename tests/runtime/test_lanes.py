"""Lanes: what is sent arrives, in order, whatever it is and however many carry it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipesim.runtime import Receiver, Sender
from tests.processes import Background, waited_for
from tests.runtime.pairs import a_lane, both


def random_tensor(
    dtype: torch.dtype, shape: list[int], seed: int, *, transposed: bool
) -> torch.Tensor:
    """A tensor of any type."""
    numbers = torch.randint(100, shape, generator=torch.Generator().manual_seed(seed))
    return numbers.permute(tuple(range(len(shape)))[:: -1 if transposed else 1]).to(dtype)


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


TENSORS_OF_ALL_KINDS = st.lists(
    st.builds(
        random_tensor,
        st.sampled_from([torch.bool, torch.uint8, torch.bfloat16, torch.int64, torch.complex128]),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(0, 2**31),
        transposed=st.booleans(),
    ),
    max_size=20,
)


@pytest.fixture(scope="module", params=[(1, 1), (2, 5), (3, 7)])
def lane(request: pytest.FixtureRequest) -> Iterator[tuple[Sender, Receiver]]:
    delegates, slots = request.param
    with a_lane(delegates=delegates, slots=slots, slot_bytes=27 * 16) as ends:
        yield ends


@given(TENSORS_OF_ALL_KINDS, st.integers(0, 2**31))
def test_what_is_sent_is_what_is_received(
    lane: tuple[Sender, Receiver], tensors: list[torch.Tensor], seed: int
) -> None:
    """Over lanes used again and again, waiting for them in any order."""
    (sender, receiver), random = lane, Random(seed)
    ring = len(receiver.delegates)
    for some in (tensors[i : i + ring] for i in range(0, len(tensors), ring)):
        rooms = [torch.empty_like(tensor) for tensor in some]
        received = [receiver.irecv(room) for room in rooms]
        for tag, tensor in enumerate(some):
            sender.isend(tensor, tag=tag)
        for index in random.sample(range(len(some)), len(some)):
            received[index].wait()
            assert received[index].tag == index
            assert torch.equal(rooms[index], some[index])


def test_a_message_lands_when_its_delegate_has_been_occupied_for_its_time() -> None:
    """Two delegates are occupied side by side: message n by number n mod 2."""
    with a_lane(delegates=2, slots=8, slot_bytes=8) as (sender, receiver):
        for _ in range(2):  # the delegates have started
            sender.isend(torch.ones(1))
            receiver.irecv(torch.ones(1)).wait()
        sent = [sender.isend(torch.ones(1), occupied_ms=5.0) for _ in range(6)]
        received = [receiver.irecv(torch.ones(1)) for _ in range(6)]
        for handle in received:
            handle.wait()
        for number, (one, other) in enumerate(zip(sent, received, strict=True)):
            waited_for(lambda one=one: one.occupied_ns, "it to be passed on")
            assert one.occupied_ns
            assert one.handed_ns
            assert other.landed_ns
            assert other.due_ns
            taken, over = one.occupied_ns
            before = sent[number - 2].occupied_ns if number > 1 else None
            assert taken == max(one.handed_ns, before[0] + 5_000_000 if before else 0)
            assert over >= taken + 5_000_000
            assert other.landed_ns >= other.due_ns


def test_a_lead_lets_messages_land_before_they_are_due() -> None:
    hour_ms = 3_600_000.0
    with a_lane(slot_bytes=8) as (sender, receiver):
        receiver.lead(hour_ms)
        sender.isend(torch.ones(1))  # once it is here, so is the lead: both are told in order
        receiver.irecv(torch.ones(1)).wait()
        sent = sender.isend(torch.ones(1), occupied_ms=hour_ms)
        received = receiver.irecv(torch.ones(1))
        received.wait()
        assert sent.handed_ns
        assert received.due_ns
        assert received.landed_ns
        assert received.landed_ns < received.due_ns


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
