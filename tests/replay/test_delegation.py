"""A worker's side of delegation, between the threads of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.prepare import prepare
from pipesim.replay.run.guard import Guard
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Run
from pipesim.scenario import Scenario
from planners import plan
from tests.processes import waited_for
from tests.replay.delegations import opened

QUICK = Scenario(stages=2, microbatches=3)


class Both:
    """Device 0, which sends activations, and device 1, which fetches them."""

    def __init__(self, run: Run, sender: Delegation, receiver: Delegation) -> None:
        self.run, self.sender, self.receiver = run, sender, receiver
        self.fetched: list[tuple[Message, int]] = []
        self.errors: list[BaseException] = []
        receiver.watch(cast(Guard, self))

    def guarded(self, task: Any) -> Any:
        def run() -> None:
            try:
                task()
            except ReplayError as error:
                self.errors.append(error)

        return run

    def begin(self, device: Delegation, iteration: int) -> None:
        order = self.run.fetched(1) if device is self.receiver else ()
        device.begin(iteration, order, self.fetch)

    def fetch(self, message: Message) -> None:
        self.fetched.append((message, int(self.receiver.fetch(message)[0])))

    def message(self, microbatch: int) -> Message:
        return next(m for m in self.run.messages if str(m) == f"0F{microbatch}→1F{microbatch}")

    def send(self, microbatch: int, content: int) -> None:
        message = self.message(microbatch)
        slot = self.sender.slot(message)
        slot[:] = torch.full_like(slot, content)
        self.sender.dispatch(message, 0)


@contextmanager
def devices(transport: str, **how: Any) -> Iterator[Both]:
    run = prepare(QUICK, plan(QUICK, "gpipe"), transport, **how)
    with opened(run) as (sender, receiver):
        yield Both(run, sender, receiver)


def test_messages_are_fetched_in_the_order_that_is_given() -> None:
    with devices("delegated") as both:
        for iteration in range(3):
            both.begin(both.receiver, iteration)
            both.begin(both.sender, iteration)
            for microbatch in range(3):
                both.send(microbatch, 10 * iteration + microbatch)
            expected = [(both.message(i), 10 * iteration + i) for i in range(3)]
            waited_for(lambda: len(both.fetched) == 3, "three messages")
            assert both.fetched == expected
            waited_for(lambda: recorded(both) == 3, "all to be passed on")
            both.fetched.clear()
        assert both.errors == []


def recorded(both: Both) -> int:
    record = Record()
    both.sender.record(record)
    assert all(step.path == "delegate" for step in record.steps)
    return len(record.steps)


def test_a_copy_of_an_earlier_iteration_is_dropped() -> None:
    """Its direct path was quicker."""
    with devices("nccl", failover=True) as both:
        both.begin(both.sender, 0)
        both.begin(both.receiver, 1)
        for microbatch in range(3):
            both.send(microbatch, 5)
        both.begin(both.sender, 1)
        for microbatch in range(3):
            both.send(microbatch, 6)
        waited_for(lambda: len(both.fetched) == 3, "the messages of this iteration")
        assert both.fetched == [(both.message(i), 6) for i in range(3)]


def test_a_message_of_an_earlier_iteration_is_an_error() -> None:
    with devices("delegated") as both:
        both.begin(both.sender, 0)
        both.begin(both.receiver, 1)
        both.send(2, 5)
        waited_for(lambda: both.errors, "an error")
        assert str(both.errors[0]) == "0F2→1F2 of warm-up iteration 0 came after the end of it"
        assert both.fetched == []
