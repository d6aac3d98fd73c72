"""A plan's own order of sends and receives: both engines run it, or say who waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pipesim.actions import End, operators_of
from pipesim.engine import deadlocked, evaluate, simulate
from pipesim.errors import DeadlockError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Ideal, Isolated, Nccl, Transport
from tests.engine.programs import close
from tests.strategies import communicating
from tests.test_communication import made

BOTH_SEND_FIRST = (
    "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 2RECV_B0 2BW0 2SEND_B0 "
    "2RECV_B1 2BW1 2SEND_B1 0RECV_B0 0BW0 0RECV_B1 0BW1",
    "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3F1 3BW0 3SEND_B0 3BW1 "
    "3SEND_B1 1RECV_B0 1BW0 1SEND_B0 1RECV_B1 1BW1 1SEND_B1",
)
WAITS = (
    "device 0 waits in 0SEND_F1 for 1RECV_F1",
    "device 1 waits in 1SEND_F0 for 2RECV_F0",
)
FOUR = Scenario(stages=4, microbatches=2, placement=(0, 1, 0, 1), message_bytes=1e6)

OWN: st.SearchStrategy[Transport] = st.one_of(
    st.builds(
        Nccl,
        p2p_streams=st.sampled_from(["device", "peer", "direction"]),
        eager_bytes=st.sampled_from([0.0, 1e6]),
        base_ms=st.sampled_from([0.0, 2.0]),
    ),
    st.builds(Exchange, base_ms=st.sampled_from([0.0, 2.0])),
    st.just(Delegated(only_slow=True)),
)


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("over", [Exchange(), Nccl(), Nccl(fused=False), Nccl(p2p_streams="peer")])
def test_two_that_both_send_first_wait_for_ever(over: Transport, engine: str) -> None:
    schedule = made(*BOTH_SEND_FIRST, placement=FOUR.placement)
    with pytest.raises(DeadlockError) as error:
        simulate(FOUR, schedule, over, engine=engine)  # type: ignore[arg-type]
    assert error.value.blocked == WAITS
    assert deadlocked(schedule, over) == WAITS


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize(
    "over", [Ideal(), Delegated(), Isolated(), Nccl(p2p_streams="direction"), Nccl(eager_bytes=1e6)]
)
def test_they_do_not_where_no_send_waits_or_holds_up_a_receive(
    over: Transport, engine: str
) -> None:
    schedule = made(*BOTH_SEND_FIRST, placement=FOUR.placement)
    # 0F 10, 0F 20, 2F 30, 2F 40, 3BW 60, 3BW 80, 2BW … as if nothing were between them.
    timeline = simulate(FOUR, schedule, over, engine=engine)  # type: ignore[arg-type]
    assert timeline.iteration_ms == close(150.0)


def test_one_rank_that_always_receives_first_is_enough() -> None:
    second = (
        "1RECV_F0 1F0 1RECV_F1 1SEND_F0 1F1 3RECV_F0 1SEND_F1 3F0 3RECV_F1 3F1 3BW0 3SEND_B0 3BW1 "
        "1RECV_B0 3SEND_B1 1BW0 1RECV_B1 1SEND_B0 1BW1 1SEND_B1"
    )
    schedule = made(BOTH_SEND_FIRST[0], second, placement=FOUR.placement)
    assert schedule != made(*BOTH_SEND_FIRST, placement=FOUR.placement)
    for over in ("exchange", "nccl"):
        assert not deadlocked(schedule, over)
        assert simulate(FOUR, schedule, over).iteration_ms == close(150.0)


def outcome(
    scenario: Scenario, schedule: Schedule, over: Transport, engine: str
) -> tuple[str, ...] | list[float]:
    try:
        timeline = simulate(scenario, schedule, over, engine=engine)  # type: ignore[arg-type]
    except DeadlockError as error:
        return error.blocked
    return [time for op in schedule.ops for time in timeline.spans[op][1:]]


@given(communicating(), OWN)
def test_both_engines_run_it_or_stop_in_the_same_places(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    one, other = (outcome(*case, over, engine) for engine in ("simpy", "compiled"))
    event("hangs" if isinstance(one, tuple) else "runs")
    if isinstance(one, tuple):
        assert other == one
    else:
        assert other == close(one)


def _blocking(schedule: Schedule) -> bool:
    """Whether all rows come through where each end waits until both have been reached."""
    rows = [[a for a in row if isinstance(a, End)] for row in schedule.actions or ()]
    while heads := {row[0] for row in rows if row}:
        met = [row for row in rows if row and row[0].other in heads]
        if not met:
            return False
        for row in met:
            row.pop(0)
    return True


@given(communicating())
def test_a_hang_with_blocking_sends_is_found_by_whoever_looks(
    case: tuple[Scenario, Schedule],
) -> None:
    """By pairing the ends by hand, by exchange, and by one stream for each device."""
    _, schedule = case
    hangs = not _blocking(schedule)
    event("hangs" if hangs else "runs")
    assert bool(deadlocked(schedule, Exchange())) == hangs
    waits = deadlocked(schedule, Nccl())
    assert bool(waits) == hangs
    if hangs:  # with fewer messages in a stream, fewer wait
        return
    for streams in ("peer", "direction"):
        assert not deadlocked(schedule, replace(Nccl(), p2p_streams=streams))  # type: ignore[arg-type]


@given(communicating(), st.sampled_from([Ideal(), Delegated(), Isolated(), Ideal(base_ms=3.0)]))
def test_transports_without_queues_do_not_ask_for_it(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    scenario, schedule = case
    silent = Schedule(schedule.orders, schedule.placement, schedule.microbatches)
    assert evaluate(scenario, schedule, over) == evaluate(scenario, silent, over)
    assert all(set(operators_of(row)) for row in schedule.actions or ())
