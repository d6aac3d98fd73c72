"""A delay trace from the changes that a file lists, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipesim.delays import By, DelayTrace
from pipesim.errors import FormatError, ScenarioError

__all__ = ["MOST_LINKS", "Change", "trace_of"]

MOST_LINKS = 1000
"""A link of a higher number is a typing error."""


class Change(NamedTuple):
    """What a line of a file says.

    Attributes
    ----------
    line : int
        Its number, counted from 1.
    point : float
        From when on: ms, or an iteration.
    delay_ms : mapping of (link, direction) to float, or None
        The delays that it names; None: the trace ends.
    """

    line: int
    point: float
    delay_ms: Mapping[tuple[int, int], float] | None


def trace_of(
    changes: Sequence[Change], *, by: By, links: int | None, replaces: bool, file: str
) -> DelayTrace:
    """Put changes together.

    Parameters
    ----------
    changes : sequence of Change
        In the order of the file.
    by : {"time", "iteration"}
        What they count.
    links : int, optional
        Number of links of the pipeline. Default: up to the highest that is named.
    replaces : bool
        What becomes of a delay that a change does not name: it ends; else it stays.
    file : str
        The file, for errors.

    Raises
    ------
    FormatError
        Changes out of order or after the end, a link that there is not, a failure that lasts whole
        iterations.
    """
    named = [link for change in changes for link, _ in change.delay_ms or ()]
    count = min(max(named, default=-1) + 1, MOST_LINKS) if links is None else links
    if not count:
        raise FormatError("names no link: say how many there are", file=file)
    end: float | None = None
    starts: list[float] = []
    delays = np.zeros((len(changes) + 1, count, 2))  # the first: before all changes
    for number, (line, point, delay_ms) in enumerate(changes, 1):
        if end is not None:
            raise FormatError(
                f"stands after the end of the trace, {_shown(end, by)}", file=file, line=line
            )
        if starts and point <= starts[-1]:
            what = "repeats" if point == starts[-1] else "goes back from"
            raise FormatError(f"{what} {_shown(starts[-1], by)}", file=file, line=line)
        if delay_ms is None:
            if not point:
                raise FormatError("is empty: it ends where it begins", file=file, line=line)
            end = point
            continue
        delays[number] = 0.0 if replaces else delays[number - 1]
        for (link, direction), delay in delay_ms.items():
            if link >= count:
                raise FormatError(
                    f"there is no link {link}: links are 0 to {count - 1}",
                    file=file,
                    line=line,
                )
            if by == "iteration" and not math.isfinite(delay):
                raise FormatError(
                    f"link {link} fails at an iteration, which would never end: count in time",
                    file=file,
                    line=line,
                )
            delays[number, link, direction] = delay
        starts.append(point)
    try:
        return DelayTrace(starts, delays[1 : len(starts) + 1], by=by, end=end)
    except ScenarioError as error:
        raise FormatError(str(error), file=file) from None


def _shown(point: float, by: By) -> str:
    return f"{point:.15g} ms" if by == "time" else f"iteration {point:.15g}"
