"""Whether a replay trained its model: it fails over a gradient that rounding does not explain."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple, cast

from pipesim.errors import ReplayError
from pipesim.replay.run.measured import Measured
from pipesim.text import counted

__all__ = ["check_gradients"]


class _Wrong(NamedTuple):
    """A wrong gradient; the one to name is the greatest."""

    earliest: int
    """Minus the iteration: the optimizer spreads what is wrong to all later ones."""
    stage: int
    """A backward passes on what is wrong to the stages before it, so the last one is the nearest
    to where it went wrong."""
    error: float
    """Relative; infinite of a gradient that is not finite."""
    parameter: str
    rank: int


def check_gradients(measured: Measured) -> None:
    """Raise ReplayError for the wrong gradient that is nearest to where a run went wrong.

    Each rank has compared its own with those of the unpipelined model, see
    :func:`pipesim.replay.compute.training.rounding_limit`.
    """
    found = list(_wrong(measured))
    if not found:
        return
    first = max(found)
    off = (
        f"it differs from the unpipelined model's by {first.error:.2g} of its length"
        if first.error < inf
        else "it is not finite"
    )
    others = len(found) - 1
    raise ReplayError(
        f"rank {first.rank}: the gradient of {first.parameter} in stage {first.stage} is wrong in "
        f"{measured.run.named(-first.earliest)}: {off}"
        + (f" ({counted(others, 'other gradient')} wrong too)" if others else "")
    )


def _wrong(measured: Measured) -> Iterator[_Wrong]:
    for rank, report in enumerate(measured.reports):
        rows = cast("list[tuple[int, int, str, float | None]]", report.get("wrong_gradients", []))
        for iteration, stage, parameter, error in rows:
            yield _Wrong(-iteration, stage, inf if error is None else error, parameter, rank)
