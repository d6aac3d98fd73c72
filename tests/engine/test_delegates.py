"""Which delegate carries a message: those of one neighbour and direction, in turn."""

from __future__ import annotations

import pytest

from pipesim import Scenario, plan, simulate
from pipesim.lowering import lower
from pipesim.schedule import Op, Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated
from tests.engine.engines import ENGINES


def run(scenario: Scenario, schedule: Schedule, delegates: int | None, engine: str) -> Timeline:
    program = lower(schedule, scenario, Delegated(delegates=delegates))
    return ENGINES[engine](program, scenario)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("delegates", [1, 2, 3, 4, None])
def test_k_delegates_carry_k_messages_at_once(delegates: int | None, engine: str) -> None:
    """Nine messages of 10 ms, ready at once: the first k arrive at 10, the next k at 20, …"""
    scenario = Scenario(
        stages=2, microbatches=9, forward_ms=0, backward_ms=0, weight_ms=0
    ).with_delay(10, [0], directions=["down"])
    timeline = run(scenario, plan(scenario, "gpipe"), delegates, engine)
    k = delegates or 9
    starts = [timeline.spans[Op("F", 1, m)].start_ms for m in range(9)]
    assert starts == [10 * (m // k + 1) for m in range(9)]


@pytest.mark.parametrize("engine", ENGINES)
def test_both_directions_have_delegates_of_their_own(engine: str) -> None:
    """The middle device sends 1F1 down and 1B0 up: neither waits for the other's delegate."""
    scenario = Scenario(
        stages=3, microbatches=2, forward_ms=[1, 1, 1], backward_ms=1, weight_ms=0
    ).with_delay(20, [0], directions=["up"])
    scenario = scenario.with_delay(30, [1], directions=["down"])
    timeline = run(scenario, plan(scenario, "gpipe"), 1, engine)
    starts = {str(op): span.start_ms for op, span in timeline.spans.items()}
    # Down: 1F0 ends at 2 and is carried until 32, 1F1 ends at 3 and is carried from 32 to 62.
    # 2F1 ends at 63, 2BW0 at 64, 2BW1 at 65; 1BW0 runs 64–65, 1BW1 65–66.
    assert (starts["2F0"], starts["2F1"], starts["2BW0"], starts["1BW0"]) == (32, 62, 63, 64)
    # Up: 1BW0 is carried from 65 to 85, 1BW1 from 85 to 105.
    assert (starts["0BW0"], starts["0BW1"]) == (85, 105)


@pytest.mark.parametrize("engine", ENGINES)
def test_opposite_ways_through_the_same_neighbour_do_not_share(engine: str) -> None:
    """Two devices, three stages: device 0 sends activations of stage 0, gradients of stage 2."""
    scenario = Scenario(
        stages=3, placement=[0, 1, 0], microbatches=2, forward_ms=1, backward_ms=1, weight_ms=0
    ).with_delay(40, [0], directions=["down"])
    order = [["0F0", "0F1", "2F0", "2BW0", "0BW0", "2F1", "2BW1", "0BW1"],
             ["1F0", "1BW0", "1F1", "1BW1"]]  # fmt: skip
    schedule = Schedule([[Op.parse(op) for op in device] for device in order], (0, 1, 0), 2)
    timeline = run(scenario, schedule, 1, engine)
    starts = {str(op): span.start_ms for op, span in timeline.spans.items()}
    # 0F0 is carried 1–41, 0F1 41–81. 1F0 ends at 42, 2F0 at 43, 2BW0 at 44: its gradient does not
    # wait for 0F1's delegate.
    assert (starts["1F0"], starts["2BW0"], starts["1BW0"], starts["1F1"]) == (41, 43, 44, 81)


@pytest.mark.parametrize("engine", ENGINES)
def test_neighbours_the_same_way_have_delegates_of_their_own(engine: str) -> None:
    """Device 0 sends activations of stage 0 to device 1 and those of stage 2 to device 2."""
    scenario = Scenario(
        stages=4, placement=[0, 1, 0, 2], microbatches=2, forward_ms=1, backward_ms=1, weight_ms=0
    ).with_delay(40, [0], directions=["down"])
    scenario = scenario.with_delay(2, [2], directions=["down"])
    timeline = run(scenario, plan(scenario, "gpipe"), 1, engine)
    starts = {str(op): span.start_ms for op, span in timeline.spans.items()}
    # 0F0 is carried 1–41, 0F1 41–81. 2F0 runs 42–43 and is carried at once.
    assert (starts["1F0"], starts["1F1"], starts["2F0"], starts["3F0"]) == (41, 81, 42, 45)


def unlike_links() -> tuple[Scenario, Schedule]:
    """Devices 0 and 1 hold stages 0, 2 and 1, 3: links 0 and 2 lead the same way.

    Link 0 takes 30 ms down, link 2 takes 2. F takes 1 ms.
    """
    scenario = Scenario(
        stages=4, placement=[0, 1, 0, 1], microbatches=3, forward_ms=1, backward_ms=1, weight_ms=0
    ).with_delay(30, [0], directions=["down"])
    scenario = scenario.with_delay(2, [2], directions=["down"])
    forwards = ["0F0 0F1 0F2 2F0 2F1 2F2", "1F0 1F1 3F0 3F1 1F2 3F2"]
    backwards = ["2BW0 2BW1 2BW2 0BW0 0BW1 0BW2", "3BW0 3BW1 3BW2 1BW0 1BW1 1BW2"]
    orders = [
        [Op.parse(op) for op in f"{first} {then}".split()]
        for first, then in zip(forwards, backwards, strict=True)
    ]
    return scenario, Schedule(orders, scenario.placement, 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_message_waits_its_turn_though_another_delegate_is_free(engine: str) -> None:
    timeline = run(*unlike_links(), 2, engine)
    starts = {str(op): span.start_ms for op, span in timeline.spans.items()}
    # One delegate has 0F0 (1–31), 0F2 (31–61) and 2F1, the other 0F1 (2–32), 2F0 and 2F2.
    assert (starts["1F0"], starts["1F1"], starts["2F0"], starts["2F1"]) == (31, 32, 32, 33)
    # 2F0 goes at 33 and takes 2 ms. 2F1 exists at 34, when the other delegate is free again at
    # 35; but its own one is free at 61.
    assert (starts["3F0"], starts["3F1"]) == (35, 63)


def test_each_delegate_holds_one_message_at_a_time() -> None:
    scenario, schedule = unlike_links()
    timeline = simulate(scenario, schedule, Delegated(delegates=2))
    held = [
        (str(span.message.producer), span.start_ms, span.end_ms)
        for span in sorted(timeline.comm, key=lambda span: span.start_ms)
        if span.path == "delegate"
    ]
    # 1F2 arrives at 61 but runs after 3F1, 64–65; 2F2 ends at 66.
    assert held == [
        ("0F0", 1, 31), ("0F1", 2, 32), ("0F2", 31, 61), ("2F0", 33, 35), ("2F1", 61, 63),
        ("2F2", 66, 68),
    ]  # fmt: skip
