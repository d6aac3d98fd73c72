"""Published and independently simulated values for the worked example and its kin.

S = 4, N = 12, F = B = W = 10 ms unless said; the ideal transport. The tables were checked
against a time-stepped simulator that shares nothing with this one.
"""

from __future__ import annotations

import pytest

from pipesim import Scenario, plan, simulate
from pipesim.analysis import delay_budget_ms, growth_rate, lower_bound_ms, slackness, warmup
from pipesim.scenario import Direction
from pipesim.schedule import Op, Schedule

EXAMPLE = Scenario()


def iterations(scenario: Scenario, schedule: Schedule, link: int, delays: range) -> list[float]:
    return [simulate(scenario.with_delay(c, [link]), schedule).iteration_ms for c in delays]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (0, [390, 395, 400, 410, 440, 470, 500, 530, 560, 590, 620, 650, 680]),
        (1, [390, 395, 400, 430, 470, 510, 550, 590, 630, 670, 710, 750, 790]),
        (2, [390, 395, 400, 440, 480, 520, 560, 600, 640, 680, 720, 760, 800]),
    ],
)
def test_fixed_zero_bubble_plan_under_growing_delay(link: int, expected: list[float]) -> None:
    schedule = plan(EXAMPLE, "zerobubble")
    assert warmup(schedule) == (7, 5, 3, 1)
    assert iterations(EXAMPLE, schedule, link, range(0, 61, 5)) == expected


@pytest.mark.parametrize(
    ("delay", "expected_warmup", "expected"),
    [
        (10, (7, 5, 3, 1), 400),
        (20, (8, 5, 3, 1), 410),
        (30, (9, 5, 3, 1), 420),
        (40, (10, 5, 3, 1), 430),
    ],
)
@pytest.mark.parametrize("planner", ["pipemorph-published", "pipemorph"])
def test_replanned_schedules_meet_the_lower_bound(
    planner: str, delay: float, expected_warmup: tuple[int, ...], expected: float
) -> None:
    scenario = EXAMPLE.with_delay(delay, links=[0])
    schedule = plan(scenario, planner)
    assert warmup(schedule) == expected_warmup
    assert simulate(scenario, schedule).iteration_ms == expected
    assert lower_bound_ms(scenario) == expected


def test_zero_bubble_order_on_the_first_stage() -> None:
    text = (
        "F0 F1 F2 F3 F4 F5 F6 B0 F7 B1 F8 B2 F9 B3 F10 B4 F11 B5 W0 B6 W1 B7 W2 B8 W3 B9 W4 "
        "B10 W5 B11 W6 W7 W8 W9 W10 W11"
    )
    order = plan(EXAMPLE, "zerobubble").orders[0]
    assert list(order) == [Op.parse(f"0{word}") for word in text.split()]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (6, [790, 800, 960, 1120, 1280, 1440, 1600]),
        (0, [790, 800, 820, 900, 980, 1060, 1140]),
    ],
)
def test_eight_stages(link: int, expected: list[float]) -> None:
    scenario = Scenario(stages=8, microbatches=24)
    schedule = plan(scenario, "zerobubble")
    assert iterations(scenario, schedule, link, range(0, 61, 10)) == expected


def test_unequal_stages() -> None:
    scenario = Scenario(
        forward_ms=[9, 10, 10, 12], backward_ms=[11, 12, 12, 13], weight_ms=[7, 8, 8, 9]
    )
    expected = [437, 447, 457, 493, 553, 613, 673]
    assert iterations(scenario, plan(scenario, "zerobubble"), 1, range(0, 61, 10)) == expected


@pytest.mark.parametrize(
    ("planner", "expected"), [("1f1b", 450), ("gpipe", 450), ("zerobubble", 390)]
)
@pytest.mark.parametrize("transport", ["ideal", "nccl", "exchange", "delegated", "isolated"])
def test_no_delay(planner: str, expected: float, transport: str) -> None:
    if planner == "zerobubble" and transport == "exchange":
        expected = 900  # Megatron's blocking exchange cannot run zero-bubble orders well
    assert simulate(EXAMPLE, plan(EXAMPLE, planner), transport).iteration_ms == expected


def test_interleaving_halves_the_bubble() -> None:
    scenario = EXAMPLE.interleaved(2)
    assert simulate(scenario, plan(scenario, "interleaved-1f1b")).iteration_ms == 405


@pytest.mark.parametrize("delta", [1, 2, 3, 5])
def test_budget_of_equal_times(delta: int) -> None:
    assert delay_budget_ms(EXAMPLE, 0, delta) == (delta - 1) * 10


@pytest.mark.parametrize("delta", [2, 3, 4, 6])
@pytest.mark.parametrize("link", [0, 1, 2])
def test_growth_is_the_delay_up_to_the_budget_and_theorem_1_above(delta: int, link: int) -> None:
    n, budget = 400, (delta - 1) * 10.0
    scenario = Scenario(microbatches=n)
    schedule = plan(scenario.with_delay(budget, [link]), "pipemorph-published")
    assert slackness(warmup(schedule))[link] == delta

    def at(delay: float) -> float:
        return simulate(scenario.with_delay(delay, [link]), schedule).iteration_ms

    assert at(budget) - at(0) <= budget
    assert (at(1010) - at(1000)) / 10 == pytest.approx(growth_rate(n, delta), rel=0.02)


def test_one_way_delays_share_one_budget() -> None:
    """Δ = 3 holds 20 ms each way, or 40 ms one way: the round trip is what counts."""
    schedule = plan(EXAMPLE.with_delay(20, [0]), "pipemorph-published")
    ways: tuple[Direction, ...] = ("down", "up")
    for way in ways:
        one_way = EXAMPLE.with_delay(40, [0], directions=[way])
        assert warmup(plan(one_way, "pipemorph-published")) == (8, 5, 3, 1)
        assert simulate(one_way, schedule).iteration_ms == lower_bound_ms(one_way)
