"""The Record: what one worker saw in one iteration, on its own clock."""

from __future__ import annotations

from typing import NamedTuple

from pipesim.program import Message
from pipesim.schedule import Op
from pipesim.timeline import PathKind

__all__ = ["Record", "Step"]


class Step(NamedTuple):
    """A step of a message's way."""

    message: Message
    path: PathKind
    start_ns: int
    end_ns: int


class Record:
    """Spans of one device in the order in which they ended; any thread may add."""

    def __init__(self) -> None:
        self.compute: list[tuple[Op, int, int]] = []
        self.steps: list[Step] = []

    def op(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Add an operator."""
        self.compute.append((op, start_ns, end_ns))

    def step(self, message: Message, path: PathKind, start_ns: int, end_ns: int) -> None:
        """Add a step of a message's way."""
        self.steps.append(Step(message, path, start_ns, end_ns))
