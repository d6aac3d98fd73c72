"""What a log of Megatron-LM or a relative holds, once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["COUNTS", "UNREAD", "LoggedIteration", "MegatronLog", "Skipped", "Told", "named"]

COUNTS = (
    "stages",
    "ranks",
    "micro-batches",
    "tensor-parallel ranks",
    "context-parallel ranks",
    "data-parallel ranks",
    "chunks",
)
"""What there is at least one of."""


UNREAD = "timers in a form that is not known"
"""Why a line is not used that names the timers of F or BW."""


class Told(NamedTuple):
    """What a log tells of the run, and the line of it."""

    value: int
    line: int
    text: str = ""


@dataclass(frozen=True)
class LoggedIteration:
    """One line of the log, and the timers with it.

    Parameters
    ----------
    number : int
        The iteration; with a logging interval, the last of it.
    elapsed_ms : float
        Time of an iteration, above 0.
    line : int
        Where it stands.
    batch : int, optional
        Samples of the iteration over all ranks, where its line tells them.
    starts : bool
        Whether it is the first of a job.
    ranks_ms : mapping of str to mapping of int to float
        By timer and rank.
    extremes_ms : mapping of str to pair of float
        By timer, the shortest and the longest over the ranks.
    last_ms, first_ms : mapping of str to float
        By timer, of the last rank alone; of rank 0 alone, as DeepSpeed sums it over the
        iterations since it last did.
    """

    number: int
    elapsed_ms: float
    line: int
    batch: int | None = None
    starts: bool = False
    ranks_ms: Mapping[str, dict[int, float]] = field(default_factory=dict)
    extremes_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    last_ms: Mapping[str, float] = field(default_factory=dict)
    first_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MegatronLog:
    """The iterations of a log.

    Parameters
    ----------
    file : str
        Its name.
    dialect : str
        Whose iteration lines it has; empty without any.
    iterations : tuple of LoggedIteration
        In the order of the log.
    skipped : tuple of Skipped
        Iterations without a usable time.
    shape : mapping of str to Told
        What the log tells of the run, see :data:`~pipesim.formats.megatron.dialects.ARGUMENTS`.
    fates : tuple of str
        Of each line: why it is not used, or nothing.
    period : int, optional
        Over how many iterations DeepSpeed's timers are summed.
    """

    file: str
    dialect: str
    iterations: tuple[LoggedIteration, ...]
    skipped: tuple[Skipped, ...]
    shape: Mapping[str, Told] = field(default_factory=dict)
    fates: tuple[str, ...] = ()
    period: int | None = None


class Skipped(NamedTuple):
    """Something that was skipped although it belongs to an iteration."""

    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}{self.why}"


def named(what: str) -> str:
    """Return what an argument tells, in a sentence.

    Examples
    --------
    >>> named("stages"), named("layout")
    ('the number of stages', 'the layout')
    """
    uncounted = ("layout", "order", "pipeline before", "embedding", "loss")
    return f"the {'' if what.startswith(uncounted) else 'number of '}{what}"
