"""Figures that all kinds of predicted measurements share: errors by group, and rankings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipesim.cli.output import Column, show, show_rows
from pipesim.fidelity.scores import TELLING_APART, Scored, Scores
from pipesim.text import fixed

__all__ = ["interval_column", "show_scores"]


def interval_column(predictions: Sequence[Scored]) -> list[Column]:
    """Return the column of the intervals, if there are any."""
    intervals = [one.interval_ms for one in predictions]
    if not any(intervals):
        return []
    cells = ["–" if one is None else f"{one[0]:.0f}–{one[1]:.0f}" for one in intervals]
    return [Column("90 % within\nms", cells)]


def show_scores(scores: Scores[Any], groups: Mapping[str, Scores[Any]]) -> None:
    """Print how far off each group is and all together, and how many settings are ranked right."""
    every = {**groups, "all": scores}

    def cells(figure: Callable[[Scores[Any]], float], *, signed: bool = False) -> list[str]:
        return [fixed(100 * figure(one), 1, signed=signed) for one in every.values()]

    show_rows(
        Column("runs of", list(every), numeric=False),
        [
            Column("runs", [str(len(one.predictions)) for one in every.values()]),
            Column("mean abs.\nerror %", cells(lambda one: one.mape)),
            Column("bias\n%", cells(lambda one: one.bias, signed=True)),
            Column("worst\n%", cells(lambda one: one.worst)),
        ],
    )
    inside, known = scores.covered
    if known:
        show("", f"90 % intervals hold {inside} of {known} measurements.")
    rankings = scores.rankings()
    if rankings:
        right = sum(rankings.values())
        show(
            *([] if known else [""]),
            f"Systems more than {100 * TELLING_APART:.0f} % apart are ranked as measured in "
            f"{right} of {len(rankings)} settings.",
        )
