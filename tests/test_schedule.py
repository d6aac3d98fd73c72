"""Schedules that are incomplete or cannot make progress cannot be made."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.errors import ScheduleError
from pipesim.schedule import Op, Schedule
from tests.strategies import cases

GOOD = [["0F0", "0F1", "0B0", "0W0", "0BW1"], ["1F0", "1BW0", "1F1", "1B1", "1W1"]]


def schedule(orders: list[list[str]], microbatches: int = 2) -> Schedule:
    return Schedule([[Op.parse(t) for t in order] for order in orders], (0, 1), microbatches)


def changed(device: int, old: str, *new: str) -> list[list[str]]:
    orders = [list(order) for order in GOOD]
    at = orders[device].index(old)
    orders[device][at : at + 1] = new
    return orders


def test_fused_and_split_backwards_may_be_mixed() -> None:
    assert schedule(GOOD).stages == 2


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (changed(0, "0F1"), "0F1 is missing from device 0"),
        (changed(1, "1W1"), "1W1 is missing from device 1"),
        (changed(1, "1B1"), "1B1 is missing from device 1"),
        (changed(1, "1BW0"), "1BW0 (or 1B0 and 1W0) is missing from device 1"),
        (changed(0, "0F0", "0F0", "0F0"), "0F0 is scheduled 2 times"),
        (changed(0, "0BW1", "0BW1", "0B1", "0W1"), "0B1 and 0BW1 do the same work twice"),
        (changed(0, "0F0", "0F0", "1F0"), "1F0 on device 0: stage 1 is on device 1"),
        (
            changed(0, "0F0", "0F0", "2F0"),
            "2F0 on device 0: there are 2 stages and 2 micro-batches",
        ),
        (
            changed(0, "0F0", "0F0", "0F2"),
            "0F2 on device 0: there are 2 stages and 2 micro-batches",
        ),
        (
            [["0F0", "0F1", "0W0", "0B0", "0BW1"], GOOD[1]],
            "cannot make progress: device 0 waits in 0W0 for 0B0",
        ),
        (
            [["0F0", "0B0", "0F1", "0W0", "0BW1"], ["1F1", "1F0", "1BW0", "1B1", "1W1"]],
            "device 0 waits in 0B0 for 1BW0; device 1 waits in 1F1 for 0F1",
        ),
        (GOOD[:1], "1 device order, but stages on devices [0, 1]"),
    ],
)
def test_a_wrong_schedule_says_what_is_wrong(orders: list[list[str]], message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        schedule(orders)
    assert message in str(caught.value)


@given(st.text(alphabet="0123FBW ²٣x-", max_size=6))
def test_operators_parse_strictly(text: str) -> None:
    if re.fullmatch(r"(0|[1-3][0-3]*)(F|B|W|BW)(0|[1-3][0-3]*)", text):
        op = Op.parse(text)
        assert Op.parse(str(op)) == op
    else:
        with pytest.raises(ScheduleError, match=re.escape(repr(text))):
            Op.parse(text)


@given(cases())
def test_topological_order_keeps_every_need(case: tuple[Scenario, Schedule]) -> None:
    _, plan = case
    position = {op: i for i, op in enumerate(plan.topological_order)}
    assert len(position) == sum(len(order) for order in plan.orders)
    for op, place in position.items():
        assert all(position[need] < place for need in plan.needs(op))
    for order in plan.orders:
        assert [position[op] for op in order] == sorted(position[op] for op in order)


def test_a_schedule_has_devices_and_micro_batches() -> None:
    with pytest.raises(ScheduleError, match="at least one micro-batch, not 0"):
        Schedule([[], []], (0, 1), 0)
    with pytest.raises(ScheduleError, match=r"3 device orders, but stages on devices \[0, 2\]"):
        Schedule([[], [], []], (0, 2), 1)


def test_a_plan_fits_only_its_own_shape() -> None:
    plan_of_two = plan(Scenario(stages=2, microbatches=2), "1f1b")
    with pytest.raises(ScheduleError, match="places its stages on devices"):
        plan_of_two.check_fits(Scenario(stages=3, microbatches=2))
    with pytest.raises(ScheduleError, match="2 micro-batches, the scenario 5"):
        plan_of_two.check_fits(Scenario(stages=2, microbatches=5))
