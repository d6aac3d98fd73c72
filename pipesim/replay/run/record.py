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
    """Spans of one device in the order in which they ended; any thread may add.

    Attributes
    ----------
    compute : list of (Op, int, int)
        Each operator, and the nanoseconds between which it physically ran.
    logical : list of (int, int)
        Between which it counted as running, of a run that has such times; see
        :attr:`pipesim.replay.run.run.Run.has_logical_times`.
    steps : list of Step
        The steps of messages.
    """

    def __init__(self) -> None:
        self.compute: list[tuple[Op, int, int]] = []
        self.logical: list[tuple[int, int]] = []
        self.steps: list[Step] = []

    def op(
        self, op: Op, start_ns: int, end_ns: int, logical_ns: tuple[int, int] | None = None
    ) -> None:
        """Add an operator: when it ran, and when it counted as running if that differs."""
        self.compute.append((op, start_ns, end_ns))
        if logical_ns is not None:
            self.logical.append(logical_ns)

    def step(self, message: Message, path: PathKind, start_ns: int, end_ns: int) -> None:
        """Add a step of a message's way."""
        self.steps.append(Step(message, path, start_ns, end_ns))
