"""Which iterations of a file a user has chosen: by their labels, or by ranges such as 20-40."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

__all__ = ["chosen"]

_RANGE = re.compile(r"([0-9]{1,9})[-–]([0-9]{1,9})")


def chosen(labels: Collection[int | str], found: Sequence[int | str]) -> tuple[set[str], list[str]]:
    """Return the labels of the chosen iterations, and what was chosen but is not there.

    A range takes all iterations in it whose label is a number; a log need not hold each.

    Parameters
    ----------
    labels : collection of int or str
        Labels, and ranges of them.
    found : sequence of int or str
        The labels of the iterations that there are.

    Examples
    --------
    >>> wanted, absent = chosen(["5/2", "20-40", 7], ["5", "5/2", 10, 20, 30, 40, 50])
    >>> sorted(wanted), absent
    (['20', '30', '40', '5/2'], ['7'])
    """
    there = [str(label) for label in found]
    wanted: set[str] = set()
    absent: list[str] = []
    for label in map(str, labels):
        within = {label} & set(there)
        if not within and (span := _RANGE.fullmatch(label)):
            numbers = range(int(span[1]), int(span[2]) + 1)
            within = {one for one in there if one.isdecimal() and int(one) in numbers}
        wanted |= within
        if not within:
            absent.append(label)
    return wanted, absent
