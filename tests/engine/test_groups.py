"""Groups with several sends, in programs made by hand: every occupied send has its busy kernel.

A busy kernel runs on the sender's stream before the group, one after the other.
"""

from __future__ import annotations

import pytest

from pipesim import Scenario
from pipesim.engine import run
from pipesim.program import Compute, Group, Message, Program
from pipesim.schedule import Op, Schedule
from pipesim.transport import Nccl
from tests.engine.engines import ENGINES


def message(producer: str, consumer: str) -> Message:
    return Message(Op.parse(producer), Op.parse(consumer))


def two_at_once() -> tuple[Program, Scenario]:
    """GPipe on two devices, where both activations, then both gradients, leave in one group.

    Each activation is preceded by 5 ms, each gradient by 3.
    """
    f0, f1 = (message(f"0F{m}", f"1F{m}") for m in range(2))
    b0, b1 = (message(f"1BW{m}", f"0BW{m}") for m in range(2))
    schedule = Schedule(
        [[Op(kind, s, m) for kind in ("F", "BW") for m in range(2)] for s in range(2)], (0, 1), 2
    )
    first = (
        Compute(Op("F", 0, 0)),
        Compute(Op("F", 0, 1)),
        Group(0, (f0, f1), ()),
        Group(0, (), (b0, b1)),
        Compute(Op("BW", 0, 0), (b0,)),
        Compute(Op("BW", 0, 1), (b1,)),
    )
    second = (
        Group(0, (), (f0, f1)),
        Compute(Op("F", 1, 0), (f0,)),
        Compute(Op("F", 1, 1), (f1,)),
        Compute(Op("BW", 1, 0)),
        Compute(Op("BW", 1, 1)),
        Group(0, (b0, b1), ()),
    )
    scenario = Scenario(stages=2, microbatches=2)
    scenario = scenario.with_delay(5, [0], directions=["down"])
    return Program(schedule, Nccl(), (first, second)), scenario.with_delay(
        3, [0], directions=["up"]
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_each_send_of_a_group_is_preceded_by_its_link_s_delay(engine: str) -> None:
    program, scenario = two_at_once()
    timeline = ENGINES[engine](program, scenario)
    # Device 0 computes until 20, is busy for twice 5 ms, and the group runs at 30. Device 1
    # computes F, F, BW and BW from 30 to 90 and is busy for twice 3 ms: the gradients are there
    # at 96, and two BW of 20 ms end at 136.
    starts = {str(op): span.start_ms for op, span in timeline.spans.items()}
    assert starts == {
        "0F0": 0, "0F1": 10, "1F0": 30, "1F1": 40, "1BW0": 50, "1BW1": 70, "0BW0": 96, "0BW1": 116,
    }  # fmt: skip
    assert timeline.iteration_ms == 136


def both_ways() -> tuple[Program, Scenario]:
    """A middle device whose last activation and first gradient leave in one group.

    Link 1 takes 5 ms down, link 0 takes 3 ms up. Receives have a stream of their own.
    """
    down = {(s, m): message(f"{s}F{m}", f"{s + 1}F{m}") for s in range(2) for m in range(2)}
    up = {
        (s, m): message(f"{s}BW{m}", f"{s - 1}BW{m}") for s in (1, 2) for m in range(2)
    }  # fmt: skip
    devices = (
        (
            Compute(Op("F", 0, 0)),
            Group("out", (down[0, 0],), ()),
            Compute(Op("F", 0, 1)),
            Group("out", (down[0, 1],), ()),
            Group("in", (), (up[1, 0],)),
            Compute(Op("BW", 0, 0), (up[1, 0],)),
            Group("in", (), (up[1, 1],)),
            Compute(Op("BW", 0, 1), (up[1, 1],)),
        ),
        (
            Group("in", (), (down[0, 0],)),
            Compute(Op("F", 1, 0), (down[0, 0],)),
            Group("out", (down[1, 0],), ()),
            Group("in", (), (down[0, 1],)),
            Compute(Op("F", 1, 1), (down[0, 1],)),
            Group("in", (), (up[2, 0],)),
            Compute(Op("BW", 1, 0), (up[2, 0],)),
            Group("out", (down[1, 1], up[1, 0]), ()),
            Group("in", (), (up[2, 1],)),
            Compute(Op("BW", 1, 1), (up[2, 1],)),
            Group("out", (up[1, 1],), ()),
        ),
        (
            Group("in", (), (down[1, 0],)),
            Compute(Op("F", 2, 0), (down[1, 0],)),
            Compute(Op("BW", 2, 0)),
            Group("out", (up[2, 0],), ()),
            Group("in", (), (down[1, 1],)),
            Compute(Op("F", 2, 1), (down[1, 1],)),
            Compute(Op("BW", 2, 1)),
            Group("out", (up[2, 1],), ()),
        ),
    )
    orders = [[i.op for i in device if isinstance(i, Compute)] for device in devices]
    scenario = Scenario(stages=3, microbatches=2)
    scenario = scenario.with_delay(5, [1], directions=["down"])
    scenario = scenario.with_delay(3, [0], directions=["up"])
    return Program(Schedule(orders, (0, 1, 2), 2), Nccl(), devices), scenario


@pytest.mark.parametrize("engine", ENGINES)
def test_delays_of_two_links_in_one_group_add_up(engine: str) -> None:
    program, scenario = both_ways()
    timeline = ENGINES[engine](program, scenario)
    # 1F0 ends at 20 and reaches device 2 at 25; its gradient is back at 55. 1BW0 ends at 75. The
    # group with 1F1's activation and this gradient then waits for 5 and for 3 ms: both are there
    # at 83. 2BW1 ends at 113, 1BW1 at 133, its gradient leaves at 136, 0BW1 ends at 156.
    starts = {str(op): span.start_ms for op, span in timeline.spans.items()}
    assert starts == {
        "0F0": 0, "0F1": 10, "0BW0": 83, "0BW1": 136,
        "1F0": 10, "1F1": 25, "1BW0": 55, "1BW1": 113,
        "2F0": 25, "2BW0": 35, "2F1": 83, "2BW1": 93,
    }  # fmt: skip
    assert timeline.iteration_ms == 156


def test_busy_kernels_run_one_after_the_other_in_the_group_s_order() -> None:
    program, scenario = both_ways()
    busy = [
        (str(span.message.producer), span.device, span.start_ms, span.end_ms)
        for span in run(program, scenario).comm
        if span.path == "busy"
    ]
    assert sorted(busy, key=lambda span: span[2]) == [
        ("1F0", 1, 20, 25),
        ("1F1", 1, 75, 80),
        ("1BW0", 1, 80, 83),
        ("1BW1", 1, 133, 136),
    ]
