"""A program is checked when it is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipesim import Scenario
from pipesim.errors import ScheduleError
from pipesim.lowering import lower
from pipesim.program import Compute, Group, Instruction, Message, Post, Program
from pipesim.schedule import Op
from pipesim.transport import Ideal, Nccl
from planners import plan

TWO = Scenario(stages=2, microbatches=2)
SCHEDULE = plan(TWO, "gpipe")
NCCL = lower(SCHEDULE, TWO, Nccl())
IDEAL = lower(SCHEDULE, TWO, Ideal())

Change = Callable[[list[Instruction]], object]


def changed(program: Program, device: int, change: Change) -> Program:
    instructions = [list(one) for one in program.instructions]
    change(instructions[device])
    return Program(SCHEDULE, program.transport, tuple(map(tuple, instructions)))


def first_group(instructions: list[Instruction]) -> int:
    return next(i for i, one in enumerate(instructions) if isinstance(one, Group))


def reverse_groups(instructions: list[Instruction]) -> None:
    """Send the second result before the first one, and before it is there."""
    at = first_group(instructions)
    later = next(
        i for i, one in enumerate(instructions) if i > at and isinstance(one, Group) and one.sends
    )
    instructions[at], instructions[later] = instructions[later], instructions[at]


def test_what_lowering_makes_is_accepted() -> None:
    assert changed(NCCL, 0, lambda instructions: None) == NCCL


@pytest.mark.parametrize(
    ("program", "device", "change", "message"),
    [
        (NCCL, 0, reverse_groups, "device 0 sends 0F1→1F1 before it is computed"),
        (IDEAL, 0, lambda i: i.reverse(), "device 0 computes 0BW1, where the schedule has 0F0"),
        (IDEAL, 0, lambda i: i.pop(), "device 0 computes None, where the schedule has 0BW1"),
        (
            IDEAL,
            1,
            lambda i: i.append(Compute(Op("F", 1, 0))),
            "device 1 computes 1F0, where the schedule has None",
        ),
        (
            IDEAL,
            1,
            lambda i: i.__setitem__(0, Compute(Op("F", 1, 0), IDEAL.instructions[1][1].receives)),
            "device 1: 1F0 waits for another operator's message",
        ),
        (
            IDEAL,
            0,
            lambda i: i.append(Post(Message(Op("F", 0, 0), Op("F", 1, 0)))),
            "0F0→1F0 is sent twice",
        ),
        (
            NCCL,
            1,
            lambda i: i.append(i[first_group(i)]),
            "0F0→1F0 is received twice",
        ),
        (
            NCCL,
            0,
            lambda i: i.append(Group(0, (), (Message(Op("F", 0, 0), Op("F", 1, 0)),))),
            "device 0 receives 0F0→1F0, meant for another",
        ),
    ],
)
def test_what_cannot_be_a_program_is_refused(
    program: Program, device: int, change: Change, message: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        changed(program, device, change)
    assert message in str(caught.value)


def test_a_device_too_many_is_refused() -> None:
    with pytest.raises(ScheduleError, match="the program is for 3 devices, the schedule for 2"):
        Program(SCHEDULE, Ideal(), (*IDEAL.instructions, ()))
