"""Which path a message takes, and what a process believes of its links."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.compute.kinds import payload
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.device.direct import Direct
from pipesim.replay.device.failover import Failover, Link, Switch, Transfer
from pipesim.replay.prepare import launched, prepare
from pipesim.replay.run.run import LinkFault, Run
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from planners import plan
from tests.processes import PATIENCE_S, waited_for

QUICK = Scenario(stages=3, microbatches=6, forward_ms=2, backward_ms=2, weight_ms=2)
ORDER = plan(QUICK, "zerobubble")


class SlowWork:
    """A transfer that ends when it is told to."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        self._error = error
        self._ended.set()

    def wait(self) -> None:
        assert self._ended.wait(PATIENCE_S)
        if self._error:
            raise self._error


class Wires:
    """Stands in for direct transfers and for delegates, and notes what they are given."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.works: dict[Message, SlowWork] = {}
        self.all_works: list[SlowWork] = []
        self.rooms: dict[Message, Tensor] = {}
        self.dispatched: list[Message] = []

    def begin(self, iteration: int) -> None:
        self.works, self.dispatched = {}, []

    def payload(self, link: int) -> Any:
        return payload(self.run, link)

    def room(self, message: Message) -> Tensor:
        return self.rooms.setdefault(message, torch.zeros(1, dtype=torch.int64))

    def receiver(self, message: Message) -> int:
        return self.run.route(message).receiver

    def sender(self, message: Message) -> int:
        return self.run.route(message).sender

    def send(self, message: Message, tensor: Tensor) -> dist.Work:
        work = self.works[message] = SlowWork()
        self.all_works.append(work)
        return cast(dist.Work, work)

    receive = send

    def slot(self, message: Message) -> Tensor:
        return torch.zeros(8, dtype=torch.uint8)

    def dispatch(self, message: Message, at_ns: int) -> None:
        self.dispatched.append(message)

    def fetch(self, message: Message) -> Tensor:
        return torch.full((1,), 7, dtype=torch.int64).view(torch.uint8)


CONTENT = torch.ones(1, dtype=torch.int64)


SOON_MS = 50.0
"""After this a send counts as lost, in tests in which one is."""


class Middle:
    """Device 1 of three: receives from and sends to device 0 over link 0."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, failover_ms: float = 1e3 * PATIENCE_S, fault: LinkFault | None = None) -> None:
        """Begin, with a fault, or with less patience than for ever."""
        run = prepare(QUICK, ORDER, "nccl", failover=True, fault=fault, warmup=0)
        run = replace(run, failover_ms=failover_ms, timeout_s=PATIENCE_S)
        self.run = run
        self.wires = Wires(run)
        self.path = Failover(run, cast(Direct, self.wires), cast(Delegation, self.wires))
        self.path.begin(0)

    def end(self) -> None:
        """Let all threads that wait for a transfer end."""
        for work in self.wires.all_works:
            work.end()
        self.path._waits.shutdown()

    def message(self, producer: str) -> Message:
        op = Op(producer[1:-1], int(producer[0]), int(producer[-1]))
        return next(message for message in self.run.messages if message.producer == op)

    def sends(self, producer: str) -> Callable[[], object]:
        return self.path.start({self.message(producer): CONTENT}, ())

    def receives(self, producer: str) -> Callable[[], dict[Message, Tensor]]:
        return self.path.start({}, (self.message(producer),))


@pytest.fixture
def middle() -> Iterator[Middle]:
    middle = Middle()
    yield middle
    middle.end()


def test_a_send_that_ends_in_time_goes_directly(middle: Middle) -> None:
    finish = middle.sends("1B0")
    middle.wires.works[middle.message("1B0")].end()
    finish()
    assert middle.wires.dispatched == []
    assert middle.path.switches == []
    assert middle.path.is_direct(0)


@pytest.mark.parametrize("gone", [False, True])
def test_a_send_that_raises_or_does_not_end_goes_through_delegates(
    middle: Middle, gone: bool
) -> None:
    middle.begin(failover_ms=SOON_MS)
    first, second = middle.message("1B0"), middle.message("1B1")
    finish = middle.sends("1B0")
    if gone:
        middle.wires.works[first].end(ReplayError("gone"))
    finish()
    middle.sends("1B1")()
    assert middle.wires.dispatched == [first, second]
    assert second not in middle.wires.works
    (switch,) = middle.path.switches
    assert (switch.iteration, switch.message) == (0, first)
    assert switch.waited_ns >= (0 if gone else 50e6)
    assert not middle.path.is_direct(0)
    assert middle.path.is_direct(1)


def test_a_late_send_is_no_failure(middle: Middle) -> None:
    middle.begin(failover_ms=SOON_MS)
    middle.sends("1B0")()
    assert middle.path.switches
    middle.wires.works[middle.message("1B0")].end()
    waited_for(lambda: middle.path.is_direct(0), "the link to be used again")
    assert middle.path.switches == []


@pytest.mark.parametrize("how", ["raise", "stop"])
def test_an_injected_fault_breaks_a_link_for_good(middle: Middle, how: Any) -> None:
    middle.begin(failover_ms=SOON_MS, fault=LinkFault(0, Op("B", 1, 0), how))
    middle.sends("1B0")()
    middle.path.begin(1)
    middle.sends("1B0")()
    assert middle.wires.works == {}
    assert [switch.iteration for switch in middle.path.switches] == [0]


def test_what_a_delegate_brings_first_counts_and_gives_the_link_up(middle: Middle) -> None:
    message = middle.message("0F0")
    finish = middle.receives("0F0")
    middle.path.land(message)
    assert finish()[message].item() == 7
    waited_for(lambda: not middle.path.is_direct(0), "the link to be given up")
    assert middle.path.switches == []  # nothing was sent by now
    middle.sends("1B0")()
    middle.receives("0F1")
    assert list(middle.wires.works) == [message]
    (switch,) = middle.path.switches
    assert switch.message == middle.message("1B0")


def test_what_comes_directly_after_all_brings_the_link_back(middle: Middle) -> None:
    message = middle.message("0F0")
    finish = middle.receives("0F0")
    middle.path.land(message)
    waited_for(lambda: not middle.path.is_direct(0), "the link to be given up")
    middle.wires.works[message].end()
    waited_for(lambda: middle.path.is_direct(0), "the link to be used again")
    assert finish()[message].item() == 7
    middle.receives("0F1")
    assert middle.message("0F1") in middle.wires.works


def test_a_link_is_back_once_all_that_was_lost_is_found() -> None:
    link = Link()
    lost = [Transfer(0, Message(Op("F", 0, i), Op("F", 1, i))) for i in range(2)]
    for transfer in lost:
        link.lose(transfer)
    switch = Switch(0, lost[0].message, 5, 1)
    link.go_over(switch)
    link.go_over(Switch(0, lost[1].message, 6, 1))
    link.find(lost[0])
    assert link.switch == switch
    link.find(lost[1])
    assert link.is_direct
    assert link.switch is None
    link.go_over(switch)
    assert link.switch is None  # what was found before it was noted


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "stop"])
@pytest.mark.parametrize("over", ["nccl", "exchange"])
def test_a_run_outlives_the_time_to_wait_for_what_was_given_up(over: str, how: Any) -> None:
    """Both times are long for a busy machine, and the run takes longer by what its operators do."""
    fault = LinkFault(0, Op("F", 0, 2), how)
    iterations = 240
    run = prepare(QUICK, ORDER, over, fault=fault, iterations=iterations, timeout_s=4)
    run = replace(run, failover_ms=1500.0)
    least_ms = sum(op_ms for op, op_ms in run.durations_ms.items() if op.stage == 0)
    assert iterations * least_ms > 2e3 * run.timeout_s
    seen = launched(run)
    (event,) = seen.events
    assert (event["link"], event["iteration"], event["warmup"]) == (0, 0, False)


def test_one_message_needs_one_delegate() -> None:
    scenario = Scenario(stages=2, microbatches=1)
    run = prepare(scenario, plan(scenario, "1f1b"), "nccl", failover=True)
    assert set(run.delegates.values()) == {1}
