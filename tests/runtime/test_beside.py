"""Planning beside a job, on a board in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from torch.distributed import HashStore  # noqa: E402

from pipesim.runtime.beside import Beside  # noqa: E402
from pipesim.runtime.board import Board, Word  # noqa: E402
from pipesim.runtime.delegates import PeerError  # noqa: E402
from pipesim.runtime.transfers import Log  # noqa: E402

MS = 1_000_000


class Planned:
    """Plans where the first link takes longer than 5 ms, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[NDArray[np.float64]] = []

    def first(self) -> Word:
        return Word(("0F0", "1F0"), frozenset())

    def after(self, measured_ms: NDArray[np.float64]) -> Word | None:
        self.told.append(measured_ms)
        if measured_ms[0, 0] > 50:
            raise ValueError("no plan helps")
        return Word(("1",), {(0, "down")}) if measured_ms[0, 0] > 5 else None


def boards(ranks: int = 2) -> list[Board]:
    store = HashStore()
    return [Board(store, rank, ranks) for rank in range(ranks)]


def logs(transfer_ms: int) -> list[Log]:
    return [Log([(0, "down", 0, MS)], []), Log([], [(0, "down", 0, 0, (1 + transfer_ms) * MS)])]


def report(both: list[Board], iteration: int, transfer_ms: int) -> None:
    for board, log in zip(both, logs(transfer_ms), strict=True):
        board.report(iteration, log)


def until(done: Any) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def both() -> list[Board]:
    return boards()


@pytest.fixture
def planner() -> Planned:
    return Planned()


@pytest.fixture
def beside(both: list[Board], planner: Planned) -> Iterator[Beside]:
    thread = Beside(planner, both[0].on_a_line_of_its_own(), links=1)
    yield thread
    thread.close()


def test_a_word_reaches_all_ranks(both: list[Board]) -> None:
    word = Word(("0F0", "1F0"), {(0, "up"), (2, "down")})
    both[0].say(0, word)
    both[0].say(1, None)
    assert both[1].hear(0) == Word(["0F0", "1F0"], {(0, "up"), (2, "down")})
    assert both[1].hear(1) is None


def test_boards_of_one_group_do_not_mix() -> None:
    store = HashStore()
    first = [Board(store, rank, 2) for rank in range(2)]
    second = [Board(store, rank, 2) for rank in range(2)]
    first[0].say(0, Word(("a",), set()))
    second[0].say(0, Word(("b",), set()))
    assert [pair[1].hear(0).rows for pair in (first, second)] == [["a"], ["b"]]  # type: ignore[union-attr]


def test_all_ranks_hear_that_rank_0_has_left(both: list[Board]) -> None:
    both[0].say(3, None)
    both[0].end(4)
    assert both[1].hear(3) is None
    for iteration in (4, 5):
        with pytest.raises(PeerError, match="rank 0 has left"):
            both[1].hear(iteration)


def test_the_first_plan_is_there_at_once(beside: Beside) -> None:
    assert beside.take() == Word(("0F0", "1F0"), frozenset())
    assert beside.take() is None


def test_iterations_are_looked_at_in_order_once_all_have_reported(
    both: list[Board], beside: Beside, planner: Planned
) -> None:
    beside.take()
    both[0].report(0, logs(3)[0])
    report(both, 1, 9)
    time.sleep(0.02)
    assert not planner.told
    both[1].report(0, logs(3)[1])
    until(lambda: len(planner.told) == 2)
    assert [measured[0, 0] for measured in planner.told] == [3.0, 9.0]
    until(lambda: beside._ready is not None)
    assert beside.take() == Word(("1",), {(0, "down")})


def test_nothing_is_left_on_the_board(both: list[Board], beside: Beside, planner: Planned) -> None:
    for iteration in range(5):
        both[0].say(iteration, None)
        report(both, iteration, 1)
    until(lambda: len(planner.told) == 5)
    assert not both[1].complete(0)
    store = both[0].store
    assert not store.check(["word/0"])
    assert store.check(["word/4"])


def test_an_error_of_the_planner_is_raised_once(both: list[Board], beside: Beside) -> None:
    beside.take()
    report(both, 0, 60)
    until(lambda: beside._error is not None)
    with pytest.raises(ValueError, match="no plan helps"):
        beside.take()
    assert beside.take() is None


@pytest.mark.parametrize("rows", [None, ("bad",)])
def test_a_plan_that_cannot_run_is_an_error_of_the_planner(both: list[Board], rows: Any) -> None:
    def check(word: Word) -> None:
        if word.rows == ("bad",):
            raise AssertionError("it cannot run")

    planner = Planned()
    thread = Beside(planner, both[0].on_a_line_of_its_own(), 1, check)
    try:
        thread.take()
        planner.after = lambda measured_ms: Word(rows, ())  # type: ignore[method-assign]
        report(both, 0, 1)
        until(lambda: thread._error is not None)
        with pytest.raises(TypeError if rows is None else AssertionError):
            thread.take()
        assert thread.take() is None
    finally:
        thread.close()


def test_reports_do_not_pile_up_once_the_planner_has_failed(
    both: list[Board], beside: Beside, planner: Planned
) -> None:
    for iteration in range(4):
        report(both, iteration, 60)
    until(lambda: not both[1].complete(3))
    assert len(planner.told) == 1
    assert not any(both[1].complete(iteration) for iteration in range(4))
