from __future__ import annotations

import pytest

from pipesim.actions import Action, End, Op, Overlap, Upkeep, operators_of, parse_action
from pipesim.errors import ScheduleError

ALL: list[Action] = [
    Op("F", 0, 1),
    Op("BW", 12, 0),
    End("SEND", "F", 0, 1),
    End("RECV", "B", 3, 999_999_999),
    Upkeep("UNSHARD", 2),
    Upkeep("RESHARD", 2),
    Upkeep("REDUCE_GRAD", 0),
    Overlap((Op("F", 0, 4), Op("BW", 7, 0))),
    Overlap((Op("W", 1, 0),)),
]


@pytest.mark.parametrize("action", ALL, ids=str)
def test_text_and_back(action: Action) -> None:
    assert parse_action(str(action)) == action


def test_no_two_are_equal() -> None:
    assert len({str(action) for action in ALL}) == len(set(ALL)) == len(ALL)


@pytest.mark.parametrize(
    "text",
    ["", "0I0", "0SEND_F", "0SEND_W0", "0UNSHARD0", "()OVERLAP_F_B", "(0F0;0SEND_F0)OVERLAP_F_B",
     "(0F0 ;0B0)OVERLAP_F_B", "(0F0;0B0)OVERLAP", "00F0", "0F1000000000", "0F0\n", "9" * 5000],
)  # fmt: skip
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ScheduleError, match="is not an operator") as error:
        parse_action(text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("stage", range(3))
def test_the_other_end(stage: int) -> None:
    down, up = End("SEND", "F", stage, 5), End("SEND", "B", stage + 1, 5)
    assert down.other == End("RECV", "F", stage + 1, 5)
    assert up.other == End("RECV", "B", stage, 5)
    for end in (down, up):
        assert end.sends
        assert not end.other.sends
        assert end.other.other == end


def test_operators_of_overlaps_count_too() -> None:
    assert list(operators_of(ALL)) == [*ALL[:2], Op("F", 0, 4), Op("BW", 7, 0), Op("W", 1, 0)]
