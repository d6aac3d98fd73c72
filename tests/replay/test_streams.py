"""Marks happen once and in whatever thread; streams keep their order."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.replay.device.streams import Mark, Stream, after
from pipesim.replay.run.guard import Guard
from tests.processes import PATIENCE_S


@given(st.permutations(range(6)), st.integers(0, 6))
def test_an_action_follows_the_last_mark(order: list[int], already: int) -> None:
    marks = [Mark() for _ in order]
    for index in order[:already]:
        marks[index].happen(index)
    done: list[str] = []
    after(marks, lambda: done.append("once"))
    for index in order[already:]:
        assert not done
        marks[index].happen(index)
    assert done == ["once"]


def test_a_mark_happens_once() -> None:
    mark = Mark()
    mark.happen(1)
    with pytest.raises(RuntimeError, match="twice"):
        mark.happen(2)
    assert mark.time_ns == 1


def test_marks_of_many_threads() -> None:
    marks = [Mark() for _ in range(200)]
    count = []
    after(marks, lambda: count.append(1))
    threads = [
        threading.Thread(target=lambda part=marks[i::4]: [mark.happen(1) for mark in part])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [1]


def test_a_stream_runs_its_kernels_in_order() -> None:
    stream = Stream("test", Guard(0))
    seen: list[int] = []
    for number in range(100):
        stream.launch(lambda number=number: seen.append(number))
    stream.close()
    assert seen == list(range(100))


def test_the_thread_of_a_stream_ends_when_it_is_closed_and_not_before() -> None:
    before = set(threading.enumerate())
    stream, ran = Stream("test", Guard(0)), threading.Event()
    (thread,) = set(threading.enumerate()) - before
    stream.launch(ran.set)
    assert ran.wait(PATIENCE_S)
    assert thread.is_alive()
    stream.close()
    assert not thread.is_alive()
    stream.close()  # once more is as good as once
