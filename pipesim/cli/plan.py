"""``pipesim plan``: the order of operators that a planner gives each device."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim import analysis
from pipesim.actions import Action, Batch, Overlap
from pipesim.analysis.bounds import horizon_bound_ms
from pipesim.cli.options import (
    EngineName,
    Json,
    PlannerOptions,
    Quiet,
    ScenarioOptions,
    TestbedOptions,
    TransportOptions,
    engine_named,
    head,
)
from pipesim.cli.output import Outputs, progress, show, show_json, show_text, wrapped
from pipesim.documents.plan_json import plan_json, save_plan
from pipesim.documents.words import unblocked
from pipesim.engine import Runs
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.text import milliseconds, numbers, plain
from pipesim.timeline import Timeline
from pipesim.transport import Transport

__all__ = ["plan"]

EXAMPLES = ("pipesim plan --delay 20ms --link 0 -o plan.json",)


def plan(
    scenario: ScenarioOptions,
    planning: PlannerOptions,
    over: TransportOptions,
    where: TestbedOptions,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write the plan as JSON.")
    ] = None,
    pareto: Annotated[
        bool,
        Option("--pareto", help="Show what each further activation buys, instead of one plan."),
    ] = False,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="With --pareto: write its points as CSV.")
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="With --pareto: draw it (.png, .svg, .pdf).")
    ] = None,
    engine: EngineName = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan the order of operators on each device.

    The default planner is pipemorph. On a testbed, the plan is for messages that go through
    delegates, as `pipesim compare` runs it, unless --transport or --runtime says otherwise.
    """
    files = {"--csv": csv_file, "--plot": plot, "--output": output}
    outputs = Outputs(files, scenario.scenario)
    chosen = engine_named(engine)
    cost_ms, cluster = over.message_cost_ms, where.cluster(over.message_cost)
    planner = planning.planner or "pipemorph"
    transport = over.build(
        cluster, planning.target, planner=planner, default="delegated" if cluster else "ideal"
    )
    if pareto:
        if output:
            raise ScenarioError("--pareto makes several plans: --output is for one")
        if planning.planner or planning.group_size:
            option = "planner" if planning.planner else "group-size"
            raise ScenarioError(f"--pareto plans by search: leave out --{option}")
        from pipesim.cli.pareto import show_pareto

        what = planning.adapted(scenario.build(chunks=planning.chunks, cluster=cluster))
        asked = over.transport or planning.runtime
        route = transport if asked else transport.unblocked
        show_pareto(
            what, route, cost_ms, cluster, planning.target, chosen, csv_file, plot, json, quiet
        )
        outputs.written(quiet=quiet)
        return
    if csv_file or plot:
        raise ScenarioError(f"--{'csv' if csv_file else 'plot'} is for --pareto")
    with progress(quiet) as report:
        what, schedule = planning.planned(
            scenario, transport, report, planner=planner, cluster=cluster
        )
        timeline = Runs(schedule, transport, engine=chosen).timeline(what)
        _check_limits(timeline, schedule)
    worth = _worth(timeline, transport)
    if output:
        save_plan(schedule, output)
    if json:
        result: dict[str, object] = {**worth}
        if cost_ms:
            result["message_cost_ms"] = cost_ms
        if cluster:
            result["testbed"] = cluster.as_dict(what)
        show_json(json_module.loads(plan_json(schedule)) | {"result": result})
    else:
        if not quiet:
            show(*head(what, cost_ms, cluster, runtime=planning.target), "")
        how = "" if cluster or transport.name != "ideal" else f"{unblocked(cost_ms)} "
        _show(what, schedule, worth, f"{how}(transport {transport})")
    outputs.written(quiet=quiet)


def _check_limits(timeline: Timeline, schedule: Schedule) -> None:
    """Raise :class:`ScheduleError` if the plan holds more than fits the devices and hosts."""
    scenario, hosted = timeline.scenario, timeline.peak_host_activations
    over = hosted - (scenario.host_limit if schedule.uses_hosts else 0)
    if (over > 0).any():
        device = int(over.argmax())
        held, limit, host = (
            scenario.in_micro_batches(activations)[device]
            for activations in (
                timeline.peak_activations, scenario.activation_limit, scenario.host_limit,
            )
        )  # fmt: skip
        on_host = f" and {host:g} on its host" if schedule.uses_hosts else ""
        raise ScheduleError(
            f"{schedule.planner} has no plan within the limits: it holds "
            f"{held:g} activations on device {device}, and the limit is "
            f"{limit:g}{on_host}"
        )


def _worth(timeline: Timeline, over: Transport) -> dict[str, float]:
    """Iteration time, the best bound known, and the gap between them."""
    scenario, iteration_ms = timeline.scenario, timeline.iteration_ms
    told = scenario.with_message_cost(over.costs_ms(scenario))
    hosted = bool(timeline.peak_host_activations.any())
    bound_ms = horizon_bound_ms(told, within_limits=not hosted, incumbent_ms=iteration_ms)
    bound_ms = max(bound_ms, min(analysis.bound_over_ms(scenario, over), iteration_ms))
    gap = iteration_ms / bound_ms - 1 if bound_ms else 0.0
    return {"iteration_ms": iteration_ms, "bound_ms": bound_ms, "gap": gap}


def _show(scenario: Scenario, schedule: Schedule, worth: dict[str, float], how: str) -> None:
    rows = schedule.actions if schedule.communicates else schedule.orders
    for device, row in enumerate(rows or ()):
        name = f"device {device}: "
        actions = " ".join(_short(action, scenario) for action in row)
        show_text(wrapped(name + actions, " " * len(name)) + "\n")
    warmup = analysis.warmup(schedule)
    show(
        "",
        f"planner         {schedule.planner}",
        f"warm-up         {numbers(warmup)}",
        f"slackness       {numbers(analysis.slackness(warmup))}",
        f"iteration time  {milliseconds(worth['iteration_ms'])} {how}",
        f"lower bound     {milliseconds(worth['bound_ms'])}",
        f"gap             {plain(100 * worth['gap'], 2)} %",
    )


def _short(action: Action, scenario: Scenario) -> str:
    """The name of an action, without its stage if that equals its device."""
    if isinstance(action, Batch):
        return f"({'+'.join(_short(end, scenario) for end in action.ends)})"
    if scenario.is_plain and not isinstance(action, Overlap):
        return str(action).removeprefix(str(action.stage))
    return str(action)
