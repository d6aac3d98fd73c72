"""Whole programs as sequences: timed as both engines time them, and never hanging."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim.communication import unbatched
from pipesim.engine import deadlocked, evaluate, simulate
from pipesim.engine.compiled.sequences import Sequences
from pipesim.lowering import lower
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.transport import Exchange, Nccl
from planners import plan
from tests.strategies import cases, scenarios

_costs = st.sampled_from([0.0, 0.5, 3.0])
queueing: st.SearchStrategy[Nccl | Exchange] = st.one_of(
    st.builds(
        Nccl,
        p2p_streams=st.sampled_from(["device", "peer", "direction"]),
        fused=st.booleans(),
        base_ms=_costs,
        eager_bytes=st.sampled_from([0.0, 1e6]),
    ),
    st.builds(Exchange, base_ms=_costs),
)


def close(time_ms: float) -> object:
    return pytest.approx(time_ms, rel=1e-9, abs=1e-9)


@given(cases(), queueing)
def test_what_is_lowered_is_timed_as_the_engines_do(
    case: tuple[Scenario, Schedule], over: Nccl | Exchange
) -> None:
    scenario, schedule = case
    board = Sequences(scenario, over)
    sequence = board.encoded(lower(schedule, scenario, over))
    assume(sequence is not None)
    assert sequence is not None
    assert board.makespan_ms(sequence) == close(float(evaluate(scenario, schedule, over)))


@given(scenarios(limited=True), queueing, st.integers(0, 2**32), st.integers(0, 400))
def test_moves_lead_to_programs_that_both_engines_time_alike(
    scenario: Scenario, over: Nccl | Exchange, seed: int, moves: int
) -> None:
    """Hot, so that moves of all kinds are kept; within the limits, and never longer."""
    board = Sequences(scenario, over)
    start = board.encoded(lower(plan(scenario, "gpipe"), scenario, over))
    if start is None or not board.fits(start):
        start = board.encoded(lower(plan(scenario, "zerobubble"), scenario, over))
    assume(start is not None and board.fits(start))
    assert start is not None
    for bound_ms in (0.0, board.makespan_ms(start)):
        found = board.annealed(start, moves, warm=9.0, cold=1.0, bound_ms=bound_ms, seed=seed)
        time_ms = board.makespan_ms(found)
        assert time_ms <= board.makespan_ms(start) * (1 + 1e-9)
        schedule = Schedule.of_actions(
            board.actions(found), scenario.placement, scenario.microbatches
        )
        timelines = [
            simulate(scenario, schedule, over, engine=engine) for engine in ("simpy", "compiled")
        ]
        for timeline in timelines:
            assert timeline.iteration_ms == close(time_ms)
            assert (timeline.peak_activations <= scenario.activation_limit + 1e-9).all()
        again = board.encoded(lower(schedule, scenario, over))
        assert again is not None
        assert board.makespan_ms(again) == close(time_ms)
    assert found.key == start.key  # what is at the bound is left alone


@given(scenarios(), st.integers(0, 2**32))
def test_batches_taken_apart_hang_nobody(scenario: Scenario, seed: int) -> None:
    """As torch launches them: each end a kernel of its own, on a stream for each pair of ranks."""
    board = Sequences(scenario, Nccl())
    start = board.encoded(lower(plan(scenario, "zerobubble"), scenario, Nccl()))
    assert start is not None
    found = board.annealed(start, 300, warm=9.0, cold=1.0, bound_ms=0.0, seed=seed)
    rows = board.actions(found)
    parts = unbatched(rows, scenario.placement)
    schedule = Schedule.of_actions(parts, scenario.placement, scenario.microbatches)
    for over in (Nccl(), Nccl("peer", fused=False), Exchange(), "ideal", "delegated"):
        assert not deadlocked(schedule, over)
        assert evaluate(scenario, schedule, over) > 0 or not scenario.forward_ms.any()
    whole = Schedule.of_actions(rows, scenario.placement, scenario.microbatches)
    assert whole.orders == schedule.orders
    assert not deadlocked(whole, Nccl())


def test_a_program_whose_micro_batches_overtake_each_other_is_none() -> None:
    scenario = Scenario(stages=1, microbatches=2)
    orders = [list(map(Op.parse, ("0F1", "0F0", "0BW0", "0BW1")))]
    overtaken = Schedule(orders, scenario.placement, 2)
    board = Sequences(scenario, Nccl())
    assert board.encoded(lower(overtaken, scenario, Nccl())) is None
