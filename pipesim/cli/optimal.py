"""``pipesim optimal``: the shortest iteration that any order of the operators can have."""

from __future__ import annotations

import json as json_text
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from milp import SOLVERS, Result
from pipesim import analysis
from pipesim.cli import parsing
from pipesim.cli.options import (
    Chunks,
    Json,
    MessageCost,
    Quiet,
    RuntimeName,
    ScenarioOptions,
    head,
    message_cost_ms,
    parsed,
    runtime_named,
)
from pipesim.cli.output import Outputs, note, progress, show, show_json
from pipesim.documents.plan_json import plan_json, save_plan
from pipesim.documents.words import unblocked
from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.studies.optimum import optimum
from pipesim.target import IDEAL, Target
from pipesim.text import counted, milliseconds, numbers, plain

__all__ = ["optimal"]

EXAMPLES = (
    "pipesim optimal --delay 20ms --link 0",
    "pipesim optimal --slow 1=20ms --memory-limit 5 --solver cpsat --json",
)

_WORDS = {
    "optimal": "optimal: no order of the operators{within} is shorter",
    "feasible": "not proven: a shorter order{within} may exist",
    "unknown": "nothing found in the time given",
}


def _known_solvers(incomplete: str) -> list[str]:
    return [solver for solver in SOLVERS if solver.startswith(incomplete)]


def optimal(
    scenario: ScenarioOptions,
    solver: Annotated[
        str,
        Option(
            metavar="NAME",
            help=f"Solve with one of {', '.join(SOLVERS)}.",
            autocompletion=_known_solvers,
        ),
    ] = "highs",
    time_limit: Annotated[
        str, Option(metavar="TIME", help="Stop planning and solving after this time.")
    ] = "60s",
    threads: Annotated[
        int | None, Option(metavar="N", help="Number of solver threads (default: all cores).")
    ] = None,
    chunks: Chunks = None,
    message_cost: MessageCost = None,
    runtime: RuntimeName = None,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write the plan as JSON.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the shortest iteration when nothing blocks, and prove it.

    Micro-batches may run in any order, backwards split or fused, within the activation limits.
    Meant for small pipelines: large ones take too long to solve.
    """
    outputs = Outputs({"--output": output}, scenario.scenario)
    target, cost_ms = runtime_named(runtime), message_cost_ms(message_cost)
    what = (target or IDEAL).adapted(scenario.build(chunks=chunks))
    limit_ms = parsed("--time-limit", parsing.duration_ms, time_limit)
    with progress(quiet) as report:
        report(f"solving with {solver}")
        result = optimum(
            what.with_message_cost(cost_ms),
            solver=solver,
            time_limit_s=limit_ms / 1e3,
            threads=_cores() if threads is None else threads,
        )
    if result.status == "infeasible":
        raise ScenarioError(_why_infeasible(what))
    if target and result.schedule:
        result = replace(result, schedule=target.made(result.schedule))
    if output and result.schedule:
        save_plan(result.schedule, output)
    if json:
        show_json(_as_dict(result) | ({"message_cost_ms": cost_ms} if cost_ms else {}))
    else:
        _show(what, cost_ms, target, result, quiet)
    if result.interrupted:
        note("interrupted: this is what was known by then", quiet=quiet)
    if result.schedule:
        outputs.written(quiet=quiet)
    elif output:
        note(f"no plan to write to {output}", quiet=quiet)


def _cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _why_infeasible(scenario: Scenario) -> str:
    for device, (stages, limit) in enumerate(
        zip(scenario.stages_of, scenario.activation_limit.tolist(), strict=True)
    ):
        if limit < len(stages):
            room = counted(limit / len(stages), "activation")
            return (
                f"no schedule fits: device {device} may hold {room}, and one micro-batch needs 1 "
                "there"
            )
    return "no schedule fits the activation limits"


def _as_dict(result: Result) -> dict[str, object]:
    """The result in JSON types."""
    schedule = result.schedule
    return {
        "status": result.status,
        "iteration_ms": result.objective_ms if schedule else None,
        "bound_ms": result.bound_ms,
        "gap": result.gap if schedule else None,
        "solver": result.solver,
        "seconds": result.seconds,
        "schedule": json_text.loads(plan_json(schedule)) if schedule else None,
    }


def _show(
    scenario: Scenario, cost_ms: float, runtime: Target | None, result: Result, quiet: bool
) -> None:
    lines = [] if quiet else [*head(scenario, cost_ms, None, runtime=runtime), ""]
    lines += [f"solver          {result.solver}, {plain(result.seconds, 2)} s"]
    limited = np.isfinite(scenario.activation_limit).any()
    within = " within the activation limits" if limited else ""
    lines += [f"result          {_WORDS[result.status].format(within=within)}"]
    if result.schedule:
        warmup = analysis.warmup(result.schedule)
        lines += [
            f"warm-up         {numbers(warmup)}",
            f"slackness       {numbers(analysis.slackness(warmup))}",
            f"iteration time  {milliseconds(result.objective_ms)} {unblocked(cost_ms)} "
            "(transport ideal)",
        ]
    lines += [f"lower bound     {milliseconds(result.bound_ms)}"]
    if math.isfinite(result.gap):
        lines += [f"gap             {plain(100 * result.gap, 2)} %"]
    show(*lines)
