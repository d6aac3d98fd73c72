"""Links as people write them: by number, or by the two stages for one direction.

Each function raises a :class:`~pipesim.errors.ScenarioError` that shows what was written.
"""

from __future__ import annotations

import re

from pipesim.errors import ScenarioError
from pipesim.scenario import DIRECTIONS, Direction

__all__ = ["directed_link", "link_index"]

_INDEX = re.compile(r"[0-9]{1,9}")
_ONE_WAY = re.compile(r"([0-9]{1,9})\s*>\s*([0-9]{1,9})")


def link_index(text: str) -> int:
    """Read the number of a link.

    Examples
    --------
    >>> link_index("2")
    2
    """
    if not _INDEX.fullmatch(text.strip()):
        raise ScenarioError(f"{text!r} is not a link: links are numbered 0, 1, 2 …")
    return int(text)


def directed_link(text: str) -> tuple[int, tuple[Direction, ...]]:
    """Read a link, and in which directions it is meant: both, or one as ``STAGE>STAGE``.

    ``0>1`` are activations on link 0, down from stage 0 to 1; ``1>0`` gradients, up.

    Examples
    --------
    >>> directed_link("2"), directed_link("1>0")
    ((2, ('down', 'up')), (0, ('up',)))
    """
    ways = _ONE_WAY.fullmatch(text.strip())
    if ways is None:
        return link_index(text), DIRECTIONS
    start, end = int(ways[1]), int(ways[2])
    if abs(start - end) != 1:
        raise ScenarioError(f"{text.strip()!r}: no link joins stages {start} and {end}")
    return min(start, end), ("down",) if start < end else ("up",)
