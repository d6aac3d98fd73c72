"""What holds for every test of replays."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.processes import waited_for


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """A thread that goes on takes time from all tests that follow."""
    before = set(threading.enumerate())
    yield
    waited_for(lambda: before.issuperset(threading.enumerate()), "threads to end")
