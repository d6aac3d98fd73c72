"""Plans that torch could run, and those that it could not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pipesim.formats.torch_csv import torch_csv  # noqa: E402
from pipesim.runtime.plans import actions_of, check  # noqa: E402
from pipesim.scenario import Scenario  # noqa: E402
from planners import plan  # noqa: E402

MICROBATCHES = 5


def rows_of(planner: str, placement: list[int]) -> list[str]:
    scenario = Scenario(stages=4, microbatches=MICROBATCHES, placement=placement)
    return torch_csv(plan(scenario, planner), "compute_comms").splitlines()


def look(rows: list[str], placement: list[int]) -> None:
    check(actions_of(rows), dict(enumerate(placement)), MICROBATCHES)


@pytest.fixture
def rows() -> list[str]:
    return rows_of("zerobubble", [0, 1, 2, 3])


def without(rows: list[str], *cells: str) -> list[str]:
    return [",".join(cell for cell in row.split(",") if cell not in cells) for row in rows]


@pytest.mark.parametrize("placement", [[0, 1, 2, 3], [0, 1, 0, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("planner", ["zerobubble", "pipemorph", "quick-search"])
def test_plans_can_run(planner: str, placement: list[int]) -> None:
    look(rows_of(planner, placement), placement)


def test_receives_may_be_posted_before_what_is_waited_for_is_sent(rows: list[str]) -> None:
    posted = [",".join(sorted(row.split(","), key=lambda cell: "RECV" not in cell)) for row in rows]
    look(posted, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1SEND_F2"], "the plan lacks 1SEND_F2"),
        (["2RECV_F2"], "the plan lacks 2RECV_F2"),
        (["1SEND_B0", "0RECV_B0"], "the plan lacks 0RECV_B0"),
        (["3W2"], "I and W must have equal counts"),
        ([f"{s}{kind}4" for s in range(4) for kind in "FIWB"], "expected 5"),
    ],
)
def test_what_is_missing_is_named(cells: list[str], message: str, rows: list[str]) -> None:
    with pytest.raises((ValueError, AssertionError), match=message):
        look(without(rows, *cells), [0, 1, 2, 3])


def test_nothing_is_done_twice_or_for_nobody(rows: list[str]) -> None:
    with pytest.raises(ValueError, match="twice"):
        look([rows[0] + ",0SEND_F0", *rows[1:]], [0, 1, 2, 3])
    with pytest.raises(ValueError, match="needs 3SEND_F0"):
        look([*rows[:3], rows[3] + ",3SEND_F0"], [0, 1, 2, 3])


def test_a_plan_that_waits_for_ever_is_refused(rows: list[str]) -> None:
    late = without(rows, "0SEND_F4")
    late[0] += ",0SEND_F4"
    with pytest.raises(ValueError, match=r"the plan waits for ever: .*0SEND_F4"):
        look(late, [0, 1, 2, 3])


def test_stages_stay_where_they_are(rows: list[str]) -> None:
    with pytest.raises(ValueError, match="stage 0 is on rank 0, not on 1"):
        look([rows[1], rows[0], *rows[2:]], [0, 1, 2, 3])
    with pytest.raises(AssertionError, match="number of ranks"):
        look(rows[:3], [0, 1, 2, 3])
