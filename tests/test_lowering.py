"""Which instructions a schedule becomes under each transport."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, Schedule, plan, simulate
from pipesim.lowering import lower
from pipesim.program import Compute, Group, Instruction, Post, Program
from pipesim.transport import Delegated, Exchange, Ideal, Nccl
from tests.strategies import cases, communicating, spelled_out

THREE = Scenario(stages=3, microbatches=4)


def texts(instructions: tuple[Instruction, ...]) -> list[str]:
    return [str(instruction) for instruction in instructions]


def groups(program: Program, device: int) -> list[Group]:
    return [i for i in program.instructions[device] if isinstance(i, Group)]


def test_asynchronous_transports_post_each_result_after_its_operator() -> None:
    scenario = Scenario(stages=2, microbatches=1)
    program = lower(plan(scenario, "gpipe"), scenario, Ideal())
    assert str(program) == ("device 0: 0F0 post 0F0→1F0 0BW0\ndevice 1: 1F0 1BW0 post 1BW0→0BW0")


def test_megatron_pairs_sends_with_receives_in_the_steady_state() -> None:
    program = lower(plan(THREE, "1f1b"), THREE, Exchange())
    assert texts(program.instructions[1]) == [
        "1RECV_F0",
        "1F0",
        "1SEND_F0",
        "1RECV_F1",
        "1F1",
        "[1SEND_F1, 1RECV_B0]",
        "1BW0",
        "[1SEND_B0, 1RECV_F2]",
        "1F2",
        "[1SEND_F2, 1RECV_B1]",
        "1BW1",
        "[1SEND_B1, 1RECV_F3]",
        "1F3",
        "[1SEND_F3, 1RECV_B2]",
        "1BW2",
        "1SEND_B2",
        "1RECV_B3",
        "1BW3",
        "1SEND_B3",
    ]


def test_megatron_exchanges_with_both_neighbours_where_stages_are_interleaved() -> None:
    """After each pair of a forward and a backward; activations first, then gradients."""
    scenario = Scenario(stages=2, microbatches=4).interleaved(2)
    program = lower(plan(scenario, "interleaved-1f1b"), scenario, Exchange())
    assert texts(program.instructions[1]) == [
        "1RECV_F0",
        "1F0",
        "[1SEND_F0, 1RECV_F1]",
        "1F1",
        "[1SEND_F1, 3RECV_F0]",
        *("3F0", "3BW0", "3RECV_F1", "3SEND_B0"),
        *("3F1", "3BW1", "1RECV_F2", "[3SEND_B1, 1RECV_B0]"),
        *("1F2", "1BW0", "[1SEND_F2, 1RECV_F3]", "[1SEND_B0, 1RECV_B1]"),
        *("1F3", "1BW1", "[1SEND_F3, 3RECV_F2]", "1SEND_B1"),
        *("3F2", "3BW2", "3RECV_F3", "3SEND_B2"),
        *("3F3", "3BW3", "[3SEND_B3, 1RECV_B2]"),
        "1BW2",
        "[1SEND_B2, 1RECV_B3]",
        "1BW3",
        "1SEND_B3",
    ]


@given(st.integers(2, 5), st.integers(2, 4), st.integers(2, 3), st.floats(0, 3))
def test_interleaved_stages_exchange_in_step(
    devices: int, chunks: int, groups: int, cost_ms: float
) -> None:
    """Instant messages cost nothing; else device 0 spends time only in exchanges.

    With one group of D micro-batches Megatron runs all forwards first.
    """
    scenario = Scenario(stages=devices, microbatches=groups * devices).interleaved(chunks)
    schedule = plan(scenario, "interleaved-1f1b")
    at_once = simulate(scenario, schedule, "exchange").iteration_ms
    assert at_once == pytest.approx(simulate(scenario, schedule).iteration_ms)
    slower = simulate(scenario, schedule, Exchange(base_ms=cost_ms)).iteration_ms - at_once
    each = chunks * groups * devices
    assert 2 * (each - 1) * cost_ms <= slower + 1e-9
    assert slower <= 2 * (each + 2 * devices) * cost_ms + 1e-9


def test_unfused_kernels_carry_one_message() -> None:
    program = lower(plan(THREE, "zerobubble"), THREE, Nccl(fused=False))
    for device in range(3):
        assert all(len((*g.sends, *g.receives)) == 1 for g in groups(program, device))


def test_a_group_closes_at_the_receive_that_the_next_operator_needs() -> None:
    for planner in ("1f1b", "zerobubble", "gpipe"):
        program = lower(plan(THREE, planner), THREE, Nccl())
        for instructions in program.instructions:
            for group, compute in pairwise(instructions):
                if isinstance(group, Group) and isinstance(compute, Compute) and compute.receives:
                    needed = compute.receives[0]
                    if needed in group.receives:
                        order = (*group.sends, *group.receives)
                        assert order[-1] == needed


def test_receives_are_posted_before_the_compute_that_they_overlap() -> None:
    scenario = Scenario(stages=2, microbatches=3)
    program = lower(plan(scenario, "gpipe"), scenario, Nccl())
    # 0F1 ends at 20, while 1F0 (10 and the cost of a message – 20 and the same) still runs.
    assert texts(program.instructions[1])[:4] == [
        "1RECV_F0",
        "1RECV_F1",
        "1F0",
        "1RECV_F2",
    ]


def test_only_slow_messages_are_posted_and_directly_after_their_operator() -> None:
    scenario = THREE.with_delay(5, [1], directions=["up"])
    program = lower(plan(THREE, "zerobubble"), scenario, Delegated(only_slow=True))
    for device, instructions in enumerate(program.instructions):
        for before, post in pairwise(instructions):
            if isinstance(post, Post):
                assert (device, post.message.link, post.message.direction) == (2, 1, 1)
                assert isinstance(before, Compute)
                assert before.op == post.message.producer


# -- a schedule's own order of sends and receives ------------------------------------------


@given(cases(), st.sampled_from(["device", "peer", "direction"]))
def test_its_own_order_is_lowered_as_the_same_order_that_is_chosen(
    case: tuple[Scenario, Schedule], streams: Literal["device", "peer", "direction"]
) -> None:
    scenario, schedule = case
    own = spelled_out(schedule, scenario)
    over = Nccl(p2p_streams=streams, fused=False)
    assert lower(own, scenario, over).instructions == lower(schedule, scenario, over).instructions


@given(communicating(), st.sampled_from([Nccl(), Nccl(fused=False), Exchange()]))
def test_each_send_and_receive_is_a_kernel_where_it_stands(
    case: tuple[Scenario, Schedule], over: Nccl | Exchange
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, over)
    for device, row in enumerate(schedule.actions or schedule.orders):
        wanted = ";".join(str(action).strip("()").removesuffix(")OVERLAP_F_B") for action in row)
        cells = [text for text in wanted.split(";") if "UNSHARD" not in text]
        assert texts(program.instructions[device]) == cells
        for group in groups(program, device):
            assert group.blocking == isinstance(over, Exchange)


def test_where_nothing_queues_a_message_leaves_after_its_operator() -> None:
    scenario = THREE.with_delay(5, [1], directions=["up"])
    schedule = plan(THREE, "zerobubble")
    own = spelled_out(schedule, scenario)
    assert lower(own, scenario, Ideal()).instructions == (
        lower(schedule, scenario, Ideal()).instructions
    )
    program = lower(own, scenario, Delegated(only_slow=True))
    for instructions in program.instructions:
        for before, post in pairwise(instructions):
            if isinstance(post, Post):
                assert isinstance(before, Compute)
                assert before.op == post.message.producer
