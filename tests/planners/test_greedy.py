"""Which stage of a device is next in list scheduling: by micro-batch, then the deepest.

Only W can be due for the same micro-batch on several stages: an F or B needs that of the stage
before it.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.schedule import Op
from planners.greedy import list_schedule
from planners.pipemorph import replanned_warmup
from tests.strategies import scenarios


def text(order: list[Op]) -> str:
    return " ".join(str(op) for op in order)


def test_all_stages_on_one_device() -> None:
    """B is first wherever there is one, then the F of the least advanced stage.

    At the end W of both micro-batches is due on both stages.
    """
    scenario = Scenario(stages=2, placement=[0, 0], microbatches=2)
    ((order,), _) = list_schedule(scenario, limits=[math.inf])
    assert text(order) == "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 1W0 0W0 1W1 0W1"


def test_two_devices_in_a_v() -> None:
    """Device 0 holds stages 0 and 3; with one micro-batch it waits for device 1 in between."""
    scenario = Scenario(stages=4, placement=[0, 1, 1, 0], microbatches=1)
    (first, second), _ = list_schedule(scenario, limits=[math.inf, math.inf])
    # 3B0 ends first; 3W0 runs while device 1 has 2B0 and 1B0, then 0B0 comes, and its W.
    assert text(first) == "0F0 3F0 3B0 3W0 0B0 0W0"
    # 2B0 and 1B0 are both over before any W: the deeper one is first.
    assert text(second) == "1F0 2F0 2B0 1B0 2W0 1W0"


@pytest.mark.parametrize("stages", [3, 4])
def test_with_one_micro_batch_weights_come_from_the_deepest_stage_up(stages: int) -> None:
    scenario = Scenario(stages=stages, placement=[0] * stages, microbatches=1)
    ((order,), _) = list_schedule(scenario, limits=[stages])
    assert [op.stage for op in order if op.kind == "W"] == list(reversed(range(stages)))


@given(scenarios(limited=True), st.booleans())
def test_of_the_weights_that_are_due_the_earliest_and_then_the_deepest_runs(
    scenario: Scenario, prescribed: bool
) -> None:
    warmup = replanned_warmup(scenario) if prescribed else None
    orders, _ = list_schedule(scenario, limits=[math.inf] * scenario.devices, warmup=warmup)
    for order in orders:
        due: set[tuple[int, int]] = set()
        for op in order:
            at = (op.microbatch, -op.stage)
            if op.kind == "B":
                due.add(at)
            elif op.kind == "W":
                assert at == min(due)
                due.remove(at)
        assert not due


@pytest.mark.parametrize("released_by_b", [0.4, 1 / 3, 0.3, 0.7])
@pytest.mark.parametrize("room", [0, 1])
def test_what_is_given_back_in_parts_makes_room_again(released_by_b: float, room: int) -> None:
    """0.4 + (1 − 0.4) is a little less than 1 after a few micro-batches, and must count as 1."""
    placement = Scenario.place("v", devices=4, chunks=2)
    scenario = Scenario(
        stages=8,
        microbatches=6,
        placement=placement,
        activation_limit=2.0 + room,
        released_by_b=released_by_b,
    )
    for name in ("zerobubble", "quick-search", "search"):
        schedule = plan(scenario, name)  # complete, or it would not be a schedule
        assert (simulate(scenario, schedule).peak_activations <= 2 + room + 1e-9).all()
