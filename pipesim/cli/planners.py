"""``pipesim planners``: list the planners."""

from __future__ import annotations

from pipesim.cli.options import Json
from pipesim.cli.output import Column, show_json, show_rows
from planners import names, summary

__all__ = ["planners"]

EXAMPLES = ("pipesim planners",)


def planners(json: Json = False) -> None:
    """List the planners, including those of other packages."""
    summaries = {name: summary(name) for name in names()}
    if json:
        show_json({"planners": [{"name": n, "summary": s} for n, s in summaries.items()]})
        return
    show_rows(
        Column("planner", list(summaries), numeric=False),
        [Column("what it does", list(summaries.values()), numeric=False)],
    )
