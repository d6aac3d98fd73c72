"""``pipesim budget``: how much delay each link can absorb, and what absorbing more takes."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from pipesim.cli.options import (
    EngineName,
    Json,
    Quiet,
    ScenarioOptions,
    complete_planner,
    engine_named,
)
from pipesim.cli.output import Column, progress, show, show_json, show_rows
from pipesim.documents.words import described
from pipesim.studies.budgets import Budgets, LinkBudget, budgets
from pipesim.text import counted, decimals, links, milliseconds, numbers

__all__ = ["budget"]

EXAMPLES = ("pipesim budget --slow 0=20ms --slow 2=5ms",)


def budget(
    scenario: ScenarioOptions,
    planner: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Examine the plan of this planner (see `pipesim planners`).",
            autocompletion=complete_planner,
        ),
    ] = "zerobubble",
    engine: EngineName = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which delays a plan absorbs, link by link.

    Then find the smallest warm-up that absorbs them all, and what it costs in activations.
    """
    what = scenario.build()
    with progress(quiet) as report:
        report(f"planning with {planner}")
        result = budgets(what, planner, engine=engine_named(engine))
    if json:
        show_json(result.as_dict())
        return
    if not quiet:
        show(described(what), f"plan of {planner}, warm-up {numbers(result.current.warmup)}", "")
    _show_links(result.current.links)
    show("", _conclusion(result))


def _show_links(rows: tuple[LinkBudget, ...]) -> None:
    digits = decimals(max([max(row.budget_ms, row.delay_ms) for row in rows], default=0.0))
    show_rows(
        Column("link", [str(row.link) for row in rows], numeric=False),
        [
            Column("slackness", [str(row.slackness) for row in rows]),
            Column("budget\nms", [f"{row.budget_ms:.{digits}f}" for row in rows]),
            Column("delay\nms", [f"{row.delay_ms:.{digits}f}" for row in rows]),
            Column("slackness\nneeded", [_needed(row) for row in rows]),
            Column("verdict", [_verdict(row) for row in rows], numeric=False),
        ],
    )


def _needed(row: LinkBudget) -> str:
    return "–" if row.needed_slackness is None else str(row.needed_slackness)


def _verdict(row: LinkBudget) -> str:
    if row.over_ms:
        return f"over by {milliseconds(row.over_ms)}"
    return "absorbed" if row.delay_ms else "healthy"


def _conclusion(result: Budgets) -> str:
    now, new = result.current, result.smallest
    takes = f"the plan takes {milliseconds(now.iteration_ms)} where nothing blocks"
    if not result.scenario.slow_links:
        return f"No link is slow; {takes}."
    if now.absorbs:
        return f"All delays are within their budgets; {takes}."
    warmup = numbers(new.warmup)
    takes = (
        f"a plan with it takes {milliseconds(new.iteration_ms)} instead of "
        f"{milliseconds(now.iteration_ms)} where nothing blocks, and its devices hold up to "
        f"{numbers(new.peak_activations)} activations instead of {numbers(now.peak_activations)}"
    )
    if new.absorbs:
        return f"Warm-up {warmup} is the smallest that absorbs all delays: {takes}."
    over = [link.link for link in new.links if link.over_ms]
    return (
        f"With {counted(result.scenario.microbatches, 'micro-batch')} no warm-up keeps all delays "
        f"within their budgets: {warmup} leaves {links(over)} over; {takes}."
    )
