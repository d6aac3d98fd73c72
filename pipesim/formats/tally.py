"""What became of the lines, iterations and ranks of a file: used, or not and why.

A tally adds up, so that nothing is lost without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Dropped", "Tally"]


@dataclass(frozen=True)
class Dropped:
    """Things of one kind that were not used, for one reason.

    Parameters
    ----------
    why : str
        The reason, such as ``"start-up"``.
    places : sequence of str
        Where each of them stands, or what it is called: ``"train.log, line 12"``.
    together : int, optional
        How many there are, where a place stands for several: ``"gc: 256 rows"``.
    """

    why: str
    places: Sequence[str]
    together: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(self.places))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.places) if self.together is None else self.together


@dataclass(frozen=True)
class Tally:
    """How many things of one kind the files hold, and how many were used.

    Parameters
    ----------
    noun : str
        One of them, such as ``"iteration"``.
    used : int
        How many were used.
    dropped : sequence of Dropped
        The others; reasons that dropped none are left out.
    of : str
        For what they were used, where that is not plain.

    Examples
    --------
    >>> tally = Tally("iteration", 11, [Dropped("start-up", ["iteration 1"]), Dropped("slow", [])])
    >>> tally.found, tally.used, [part.why for part in tally.dropped]
    (12, 11, ['start-up'])
    """

    noun: str
    used: int
    dropped: Sequence[Dropped] = ()
    of: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dropped", tuple(part for part in self.dropped if part.count))

    @property
    def found(self) -> int:
        """How many the files hold."""
        return self.used + sum(part.count for part in self.dropped)
