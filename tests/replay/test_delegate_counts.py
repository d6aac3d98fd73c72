"""How many delegates a run gets, and how many processes that makes."""

from __future__ import annotations

import pytest

from pipesim.engine import simulate
from pipesim.replay.prepare import prepare
from pipesim.replay.report import Replayed
from pipesim.replay.run.measured import ClockFacts, Measured
from pipesim.replay.run.run import LinkFault, Route, Run
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from pipesim.transport import Delegated
from planners import plan
from tests.replay.delegations import opened

DOWN, UP = Route(0, 1, 0), Route(1, 0, 1)


def delegates(
    delay_ms: float, *, microbatches: int = 12, limit: int | None = None
) -> dict[Route, int]:
    """GPipe on two devices: a message goes down every 10 ms (F), then one up every 20 (BW)."""
    scenario = Scenario(stages=2, microbatches=microbatches).with_delay(delay_ms, [0])
    run = prepare(scenario, plan(scenario, "gpipe"), Delegated(delegates=limit))
    return dict(run.delegates)


@pytest.mark.parametrize(
    ("delay", "down", "up"),
    [
        (10, 1, 1),  # the next message comes as this one has arrived
        (11, 2, 1),
        (20, 2, 1),
        (21, 3, 2),
        (25, 3, 2),
        (60, 6, 3),
        (61, 7, 4),
    ],
)
def test_a_route_gets_one_more_than_messages_are_on_their_way_at_once(
    delay: float, down: int, up: int
) -> None:
    """A delay of c has ⌈c / 10⌉ messages on their way down at once, and ⌈c / 20⌉ up."""
    assert delegates(delay) == {DOWN: down + 1, UP: up + 1}


@pytest.mark.parametrize(("delay", "down"), [(70, 8), (71, 8), (80, 8), (119, 8), (10_000, 8)])
def test_eight_are_the_most(delay: float, down: int) -> None:
    assert delegates(delay)[DOWN] == down


def test_seven_at_once_make_eight_and_six_seven() -> None:
    assert [delegates(delay)[DOWN] for delay in (50, 60, 70)] == [6, 7, 8]


@pytest.mark.parametrize(("limit", "down", "up"), [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 3)])
def test_no_more_than_the_transport_has(limit: int, down: int, up: int) -> None:
    assert delegates(25, limit=limit) == {DOWN: down, UP: up}


def test_more_than_eight_on_request() -> None:
    """Up go twelve gradients, one every 20 ms: six at once."""
    assert delegates(119, limit=20) == {DOWN: 12, UP: 7}
    assert delegates(80, limit=20) == {DOWN: 9, UP: 5}


@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_no_more_than_messages(microbatches: int) -> None:
    assert delegates(500, microbatches=microbatches) == {DOWN: microbatches, UP: microbatches}


def test_a_healthy_link_has_one() -> None:
    scenario = Scenario(stages=3).with_delay(25, [1], directions=["down"])
    run = prepare(scenario, plan(scenario, "gpipe"), "delegated")
    assert run.delegates == {
        Route(0, 1, 0): 1, Route(1, 0, 1): 1, Route(1, 2, 0): 4, Route(2, 1, 1): 1,
    }  # fmt: skip


def test_a_direct_path_that_may_fail_has_two() -> None:
    for microbatches, expected in ((1, 1), (2, 2), (12, 2)):
        scenario = Scenario(stages=2, microbatches=microbatches)
        fault = LinkFault(0, Op("F", 0, 0))
        run = prepare(scenario, plan(scenario, "gpipe"), "nccl", fault=fault)
        assert run.delegates == {DOWN: expected, UP: expected}


# -- processes ---------------------------------------------------------------------------


def reported(run: Run) -> object:
    timeline = simulate(run.scenario, run.schedule, run.transport)
    clocks = [ClockFacts(0, 0, 0)] * run.devices
    timelines = [timeline] * run.total_iterations
    measured = Measured(run, timelines, clocks, (), [{}] * run.devices)
    return Replayed(measured).as_dict()["delegates"]


def started(run: Run) -> int:
    """How many delegate processes the workers of all devices start."""
    with opened(run) as delegations:
        return sum(len(delegation.processes) for delegation in delegations)


SLOW = Scenario(stages=3).with_delay(25, [1], directions=["down"])


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        (Delegated(delegates=1), 8),  # four routes, one pair each
        (Delegated(delegates=2), 10),  # the slow route has two
        (Delegated(), 14),  # and if it may, four
        (Delegated(only_slow=True), 8),  # no other route has any
    ],
)
def test_the_report_counts_processes_on_both_hosts(over: Delegated, expected: int) -> None:
    run = prepare(SLOW, plan(SLOW, "gpipe"), over)
    assert reported(run) == expected
    assert started(run) == expected


def test_without_delegation_there_are_none() -> None:
    run = prepare(SLOW, plan(SLOW, "gpipe"), "nccl")
    assert reported(run) == 0
    assert started(run) == 0
