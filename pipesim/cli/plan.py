"""``pipesim plan``: the order of operators that a planner gives each device."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim import analysis
from pipesim.analysis.bounds import horizon_bound_ms
from pipesim.cli.options import Chunks, Json, Quiet, ScenarioOptions, complete_planner
from pipesim.cli.output import check_outputs, note, progress, show, show_json, show_text, wrapped
from pipesim.documents.plan_json import plan_json, save_plan
from pipesim.documents.words import described
from pipesim.engine import simulate
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.text import milliseconds, plain
from planners import plan as plan_with

__all__ = ["plan"]


def plan(
    scenario: ScenarioOptions,
    planner: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Who plans, see `pipesim planners`.",
            autocompletion=complete_planner,
        ),
    ] = "pipemorph",
    chunks: Chunks = 1,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write the plan as JSON.")
    ] = None,
    pareto: Annotated[
        bool,
        Option("--pareto", help="Show what each further activation buys, instead of one plan."),
    ] = False,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="With --pareto: its points as CSV.")
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="With --pareto: draw it (.png, .svg, .pdf).")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan the order of operators on each device."""
    check_outputs({"--output": output, "--csv": csv_file, "--plot": plot}, scenario.scenario)
    what = scenario.build(chunks=chunks)
    if pareto:
        if output:
            raise ScenarioError("--pareto makes several plans: --output is for one")
        from pipesim.cli.pareto import show_pareto

        show_pareto(what, csv_file, plot, json, quiet)
        return
    if csv_file or plot:
        raise ScenarioError(f"--{'csv' if csv_file else 'plot'} is for --pareto")
    with progress(quiet) as report:
        report(f"planning with {planner}")
        schedule = plan_with(what, planner)
        _check_limits(what, schedule)
    if output:
        save_plan(schedule, output)
    if json:
        show_json(json_module.loads(plan_json(schedule)) | {"result": _worth(what, schedule)})
    else:
        _show(what, schedule, quiet)
    if output:
        note(f"wrote {output}", quiet=quiet)


def _check_limits(scenario: Scenario, schedule: Schedule) -> None:
    """Raise :class:`ScheduleError` if the plan holds more than fits and knows no way out."""
    over = simulate(scenario, schedule, "ideal").peak_host_activations
    if over.any() and not schedule.uses_hosts:
        device = int(over.argmax())
        limit = float(scenario.activation_limit[device])
        raise ScheduleError(
            f"{schedule.planner} holds {limit + over[device]:g} activations on device {device}, "
            f"where {limit:g} fit, and has no other plan"
        )


def _worth(scenario: Scenario, schedule: Schedule) -> dict[str, float]:
    """Iteration time where nothing blocks, the best bound known, and the gap between them."""
    timeline = simulate(scenario, schedule, "ideal")
    iteration_ms = timeline.iteration_ms
    hosted = bool(timeline.peak_host_activations.any())
    bound_ms = horizon_bound_ms(scenario, within_limits=not hosted, incumbent_ms=iteration_ms)
    gap = iteration_ms / bound_ms - 1 if bound_ms else 0.0
    return {"iteration_ms": iteration_ms, "bound_ms": bound_ms, "gap": gap}


def _show(scenario: Scenario, schedule: Schedule, quiet: bool) -> None:
    if not quiet:
        show(described(scenario), "")
    for device, order in enumerate(schedule.orders):
        name = f"device {device}: "
        ops = " ".join(_short(op, scenario) for op in order)
        show_text(wrapped(name + ops, " " * len(name)) + "\n")
    warmup = analysis.warmup(schedule)
    worth = _worth(scenario, schedule)
    ideal_ms = milliseconds(worth["iteration_ms"])
    show(
        "",
        f"planner         {schedule.planner}",
        f"warm-up         {' '.join(map(str, warmup))}",
        f"slackness       {' '.join(map(str, analysis.slackness(warmup))) or '–'}",
        f"iteration time  {ideal_ms} where nothing blocks (transport ideal)",
        f"lower bound     {milliseconds(worth['bound_ms'])}",
        f"gap             {plain(100 * worth['gap'], 2)} %",
    )


def _short(op: Op, scenario: Scenario) -> str:
    """An operator; without its stage where that is its device."""
    return f"{op.kind}{op.microbatch}" if scenario.is_plain else str(op)
