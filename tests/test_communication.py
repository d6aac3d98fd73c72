"""A schedule's own order of sends and receives: what is refused, and where it stands."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from pipesim.actions import End, Overlap, parse_action
from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from tests.strategies import communicating

TWO = (
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1",
    "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1BW1 1SEND_B1 1W0",
)


def made(*rows: str, placement: tuple[int, ...] = (0, 1), microbatches: int = 2) -> Schedule:
    actions = [[parse_action(text) for text in row.split()] for row in rows]
    return Schedule.of_actions(actions, placement, microbatches)


def test_it_is_part_of_the_schedule() -> None:
    schedule = made(*TWO)
    assert [" ".join(map(str, row)) for row in schedule.actions or ()] == list(TWO)
    assert schedule.communicates
    other = made(TWO[0].replace("0F1 0SEND_F1 0RECV_B0", "0F1 0RECV_B0 0SEND_F1"), TWO[1])
    silent = Schedule(schedule.orders, (0, 1), 2)
    assert other.orders == schedule.orders == silent.orders
    assert len({schedule, other, silent, made(*TWO)}) == 3


def test_operators_alone_are_no_communication() -> None:
    schedule = made(*TWO)
    assert Schedule.of_actions(schedule.orders, (0, 1), 2) == Schedule(schedule.orders, (0, 1), 2)
    assert Schedule.of_actions(schedule.orders, (0, 1), 2).actions is None


def test_overlaps_and_upkeep_without_messages_are_kept() -> None:
    rows = "0UNSHARD 0F0 0BW0 0REDUCE_GRAD 0RESHARD", "(1F0;1BW0)OVERLAP_F_B"
    schedule = made(*rows, microbatches=1)
    assert not schedule.communicates
    assert [" ".join(map(str, row)) for row in schedule.actions or ()] == list(rows)


@pytest.mark.parametrize(
    ("device", "old", "new", "blamed", "says"),
    [
        (0, "0SEND_F1 ", "", None, "device 0 lacks 0SEND_F1"),
        (1, "1RECV_F1 ", "", None, "device 1 lacks 1RECV_F1"),
        (0, "0F1", "0F1 0SEND_F0", "0SEND_F0", "0SEND_F0 comes twice"),
        (0, "0SEND_F0", "1SEND_F0", "1SEND_F0", "stage 1 is not on device 0"),
        (0, "0F0", "7RESHARD 0F0", "7RESHARD", "stage 7 is not on device 0"),
        (0, "0F0", "1RESHARD 0F0", "1RESHARD", "stage 1 is not on device 0"),
        (0, "0F0", "0F0 0SEND_F2", "0SEND_F2", "is not a message between devices here"),
        (0, "0F0", "0F0 0RECV_F0", "0RECV_F0", "is not a message between devices here"),
        (1, "1F0", "1F0 1SEND_F0", "1SEND_F0", "is not a message between devices here"),
        (0, "0F0 0SEND_F0", "0SEND_F0 0F0", "0SEND_F0", "before the forward whose result it"),
        (0, "0RECV_B1 0BW1", "0BW1 0RECV_B1", "0RECV_B1", "behind the backward that needs it"),
        (
            1,
            "1RECV_F0 1F0 1RECV_F1",
            "1RECV_F1 1RECV_F0 1F0",
            "1RECV_F1",
            "1RECV_F1 would get what 1RECV_F0 waits for: device 0 sends 0SEND_F0 first",
        ),
        (
            0,
            "0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1",
            "0RECV_B0 0BW0 0RECV_B1 0BW1 0SEND_F1",
            "0BW0",
            "cannot make progress: device 0 waits in 0BW0 for 1SEND_B0; "
            "device 1 waits in 1F1 for 0SEND_F1",
        ),
    ],
)
def test_errors_name_device_and_action(
    device: int, old: str, new: str, blamed: str | None, says: str
) -> None:
    rows = list(TWO)
    assert old in rows[device]
    rows[device] = rows[device].replace(old, new, 1)
    with pytest.raises(ScheduleError, match=re.escape(says)) as error:
        made(*rows)
    assert error.value.device == device
    assert (str(error.value.action) if error.value.action else None) == blamed


def test_a_message_that_stays_on_its_device_is_none() -> None:
    v = (
        "0F0 0SEND_F0 3RECV_F0 3F0 3BW0 3SEND_B0 0RECV_B0 0BW0",
        ("1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2BW0 1BW0 1SEND_B0"),
    )
    assert made(*v, placement=(0, 1, 1, 0), microbatches=1).communicates
    with pytest.raises(ScheduleError, match="1SEND_F0 is not a message between devices here"):
        made(v[0], v[1].replace("1F0", "1F0 1SEND_F0"), placement=(0, 1, 1, 0), microbatches=1)


def test_an_overlap_waits_for_all_that_it_reads() -> None:
    """Its forward goes around the other device, and its backward needs what comes back."""
    with pytest.raises(
        ScheduleError, match=r"device 0 waits in .*OVERLAP_F_B for 1SEND_B0; .*an overlap"
    ):
        made("(0F0;0BW0)OVERLAP_F_B", "1F0 1BW0", microbatches=1)
    with pytest.raises(ScheduleError, match="0RECV_B0 stands behind the backward"):
        made(
            "(0F0;0BW0)OVERLAP_F_B 0SEND_F0 0RECV_B0",
            "1RECV_F0 1F0 1BW0 1SEND_B0",
            microbatches=1,
        )


def test_actions_are_the_orders() -> None:
    schedule = made(*TWO)
    rows = [list(row) for row in schedule.actions or ()]
    with pytest.raises(ScheduleError, match="hold other operators"):
        Schedule(schedule.orders, (0, 1), 2, actions=[rows[0], rows[1][:-1]])
    with pytest.raises(ScheduleError, match="actions of 1 device, operators of 2"):
        Schedule(schedule.orders, (0, 1), 2, actions=rows[:1])


@given(communicating())
def test_what_is_accepted_has_each_message_at_both_ends(case: tuple[Scenario, Schedule]) -> None:
    _, schedule = case
    for device, row in enumerate(schedule.actions or ()):
        for action in row:
            if not isinstance(action, Overlap):
                assert schedule.placement[action.stage] == device
    ends = [a for row in schedule.actions or () for a in row if isinstance(a, End)]
    assert len(ends) == len(set(ends))
    assert {end.other for end in ends} == set(ends)
    crossing = sum(a != b for a, b in zip(schedule.placement, schedule.placement[1:], strict=False))
    assert len(ends) == 4 * crossing * schedule.microbatches
