"""Long computations that end early when asked to, such as at a deadline or on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["OutOfTime", "Over", "go_on", "never"]

Over = Callable[[], bool]
"""Says whether to end now."""


class OutOfTime(Exception):  # noqa: N818
    """A computation was to end before it was done."""


def never() -> bool:
    """Whether to end now: no, there is time."""
    return False


def go_on(over: Over) -> None:
    """Return if there is still time.

    Raises
    ------
    OutOfTime
        It is over.
    """
    if over():
        raise OutOfTime
