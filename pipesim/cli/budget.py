"""``pipesim budget``: how much delay each link can absorb, and what absorbing more takes."""

from __future__ import annotations

from math import isfinite
from typing import Annotated

from typer import Option

from pipesim.cli.options import (
    EngineName,
    Json,
    MessageCost,
    Quiet,
    RuntimeName,
    ScenarioOptions,
    TestbedOptions,
    complete_planner,
    engine_named,
    head,
    message_cost_ms,
    runtime_named,
)
from pipesim.cli.output import Column, progress, show, show_json, show_rows
from pipesim.documents.words import unblocked
from pipesim.studies.budgets import Budgets, LinkBudget, PlanBudgets, budgets
from pipesim.target import IDEAL
from pipesim.text import counted, decimals, fixed, links, milliseconds, numbers
from pipesim.transport import Ideal

__all__ = ["budget"]

_MOST_DEVICES = 8

EXAMPLES = ("pipesim budget --slow 0=20ms --slow 2=5ms",)


def budget(
    scenario: ScenarioOptions,
    where: TestbedOptions,
    planner: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Examine the plan of this planner (see `pipesim planners`).",
            autocompletion=complete_planner,
        ),
    ] = "zerobubble",
    message_cost: MessageCost = None,
    runtime: RuntimeName = None,
    engine: EngineName = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which delays a plan absorbs, link by link.

    A delay is absorbed if it adds no more than itself to the iteration. Two budgets are shown: the
    paper's formula, and the largest delay that the engine finds absorbed. If a delay is not, look
    for a warm-up that absorbs it, and say what that costs in activations. On a testbed, messages go
    through delegates where the runtime has some: where anything blocks, no plan absorbs a delay.
    """
    cost_ms, cluster = message_cost_ms(message_cost), where.cluster(message_cost)
    target = runtime_named(runtime)
    way = "delegated" if target is None or target.delegates else target.transport().name
    over = cluster.transport(way).unblocked if cluster else Ideal(base_ms=cost_ms)
    what = (target or IDEAL).adapted(scenario.build(cluster=cluster))
    with progress(quiet) as report:
        report(f"planning with {planner}")
        result = budgets(what, planner, over, engine=engine_named(engine))
    if json:
        own: dict[str, object] = {"message_cost_ms": cost_ms} if cost_ms else {}
        if cluster:
            own["testbed"] = cluster.as_dict(what)
        show_json(result.as_dict() | own)
        return
    if not quiet:
        show(
            *head(what, cost_ms, cluster, runtime=target),
            f"plan of {planner}, warm-up {numbers(result.current.warmup)}",
            "",
        )
    _show_links(result.current.links)
    if not quiet:
        if len(what.slow_links) > 1:
            show("", "It adds: alone or beside the other delays, whichever is more.")
        if result.why:
            show("", result.why)
    show("", _conclusion(result))


def _show_links(rows: tuple[LinkBudget, ...]) -> None:
    times = [(row.budget_ms, row.true_budget_ms, row.delay_ms, row.growth_ms) for row in rows]
    digits = decimals(max((t for row in times for t in row if isfinite(t)), default=0.0))

    def column(header: str, values: list[float]) -> Column:
        return Column(header, [fixed(v, digits) if isfinite(v) else "any" for v in values])

    show_rows(
        Column("link", [str(row.link) for row in rows], numeric=False),
        [
            Column("slackness", [str(row.slackness) for row in rows]),
            column("budget ms,\nformula", [row.budget_ms for row in rows]),
            column("budget ms,\nengine", [row.true_budget_ms for row in rows]),
            column("delay\nms", [row.delay_ms for row in rows]),
            column("it adds\nms", [row.growth_ms for row in rows]),
            Column("verdict", [_verdict(row) for row in rows], numeric=False),
        ],
    )


def _verdict(row: LinkBudget) -> str:
    if not row.absorbed:
        return f"over by {milliseconds(row.over_ms)}"
    return "absorbed" if row.delay_ms else "healthy"


def _conclusion(result: Budgets) -> str:
    now, slow = result.current, result.scenario.slow_links
    takes = f"the plan takes {_time(result, now)}"
    if not slow:
        return f"No link is slow; {takes}.{_pipemorph(result)}"
    if now.absorbs:
        return f"All delays are absorbed; {takes}.{_pipemorph(result)}"
    together = (
        f"Together the delays add {milliseconds(now.growth_ms)}, more than their sum. "
        if all(link.absorbed for link in now.links)
        else ""
    )
    return f"{together}{_advice(result)}"


def _advice(result: Budgets) -> str:
    now, new = result.current, result.smallest
    if not result.recommended:
        keep = (
            "; the present one" if result.pipemorph_is_faster else ": keep the present one, which"
        )
        none = f"No warm-up that was tried makes a faster plan{keep}"
        return f"{none} takes {_time(result, now)}.{_pipemorph(result)}"
    over = [link.link for link in new.links if not link.absorbed]
    absorbs = (
        "absorbs all delays"
        if new.absorbs
        else f"is the fastest that was tried, and leaves {links(over)} over"
        if over
        else "is the fastest that was tried; together the delays add more than their sum"
    )
    most = max(new.host_activations)
    hosts = f", up to {most:g} of them in host memory," if most else ""
    return (
        f"Warm-up {numbers(new.warmup)} {absorbs}: a plan with it takes "
        f"{milliseconds(new.iteration_ms)} instead of {milliseconds(now.iteration_ms)} "
        f"{unblocked(result.costs_ms)}, and its devices hold up to {_held(new)} activations{hosts} "
        f"instead of {_held(now)}.{_pipemorph(result)}"
    )


def _time(result: Budgets, plan: PlanBudgets) -> str:
    """What a plan takes, and whether it needs more memory than its devices may use."""
    time = f"{milliseconds(plan.iteration_ms)} {unblocked(result.costs_ms)}"
    most = max(plan.host_activations)
    if not most:
        return time
    over = counted(most, "activation")
    if plan.schedule.uses_hosts:
        return f"{time}, and up to {over} of a device wait in host memory"
    return f"{time}, but a device holds up to {over} over its limit"


def _pipemorph(result: Budgets) -> str:
    """Name the planner that is faster than all that was said, if it is."""
    if not result.pipemorph_is_faster:
        return ""
    hosts = " with host memory" if result.pipemorph.peak_host_activations.any() else ""
    time = milliseconds(result.pipemorph.iteration_ms)
    return f" `pipemorph` takes {time}{hosts}: see `pipesim compare`."


def _held(plan: PlanBudgets) -> str:
    """The peak of each device, or the highest one where there are many."""
    peaks = plan.peak_activations
    return numbers(peaks if len(peaks) <= _MOST_DEVICES else [max(peaks)])
