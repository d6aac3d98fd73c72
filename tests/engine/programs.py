"""Programs small enough to work out by hand, and how closely the engines must agree."""

from __future__ import annotations

import pytest

from pipesim import Scenario, plan
from pipesim.program import Compute, Group, Message, Program
from pipesim.schedule import Op, Schedule
from pipesim.transport import Nccl

TOLERANCE = 1e-9
TWO = Scenario(stages=2, microbatches=2)


def gpipe(scenario: Scenario) -> Schedule:
    return plan(scenario, "gpipe")


def deadlocked() -> Program:
    """Both devices send in one blocking kernel before they receive in the next."""
    schedule = Schedule(
        [
            [Op("F", 0, 0), Op("F", 0, 1), Op("BW", 0, 0), Op("BW", 0, 1)],
            [Op("F", 1, 0), Op("BW", 1, 0), Op("F", 1, 1), Op("BW", 1, 1)],
        ],
        (0, 1),
        2,
    )
    f0, f1 = (Message(Op("F", 0, m), Op("F", 1, m)) for m in range(2))
    b0, b1 = (Message(Op("BW", 1, m), Op("BW", 0, m)) for m in range(2))
    first = [
        Compute(Op("F", 0, 0)),
        Compute(Op("F", 0, 1)),
        Group(0, (f1,), (), blocking=True),
        Group(0, (f0,), (), blocking=True),
        Compute(Op("BW", 0, 0), (b0,)),
        Compute(Op("BW", 0, 1), (b1,)),
    ]
    second = [
        Group(0, (), (f0,), blocking=True),
        Compute(Op("F", 1, 0), (f0,)),
        Compute(Op("BW", 1, 0)),
        Compute(Op("F", 1, 1), (f1,)),
        Compute(Op("BW", 1, 1)),
    ]
    return Program(schedule, Nccl(), (tuple(first), tuple(second)))


def unmet() -> Program:
    """Both devices compute without waiting for anything; one sends what nobody receives."""
    schedule = gpipe(Scenario(stages=2, microbatches=1))
    first, second = (tuple(map(Compute, order)) for order in schedule.orders)
    stray = Message(Op("F", 0, 0), Op("F", 1, 0))
    return Program(schedule, Nccl(), ((*first, Group(0, (stray,), ())), second))


def close(value: object) -> object:
    return pytest.approx(value, rel=TOLERANCE, abs=1e-12)
