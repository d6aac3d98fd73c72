"""``pipesim explain``: which causes take how much of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.explaining import explain_trace, is_trace, only_for_scenarios
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
    made_for_another,
    plan_from,
)
from pipesim.cli.output import Column, Outputs, note, progress, show, show_json, show_rows
from pipesim.documents.words import titled
from pipesim.errors import ScenarioError
from pipesim.explain.attribution import attribute
from pipesim.explain.causes import Attribution
from pipesim.explain.diagnosis import Line, diagnosis, first, lines
from pipesim.explain.operator_times import OUTLIER
from pipesim.files import write_csv
from pipesim.studies.planning import in_chunks
from pipesim.studies.systems import default_systems, system
from pipesim.target import IDEAL
from pipesim.text import decimals, fixed, milliseconds

__all__ = ["explain"]

EXAMPLES = (
    "pipesim explain traces/a10-gpt-7b.toml --slow 2=60ms --transport nccl",
    "pipesim explain run.toml plan.json --transport exchange --plot causes.png",
    "pipesim explain traces/production/trace-ST.parquet",
)


def explain(
    scenario: ScenarioOptions,
    planning: PlannerOptions,
    over: TransportOptions,
    where: TestbedOptions,
    files: Annotated[
        list[Path] | None,
        Argument(
            metavar="SCENARIO.toml | PLAN.json | TRACE.parquet",
            help="A scenario, for example from `pipesim import`, a plan, or both; or the "
            "production trace of a whole job.",
        ),
    ] = None,
    outlier: Annotated[
        float,
        Option(
            metavar="FACTOR",
            help="Call an operator slow if it takes more than this many times the median of its "
            "stage and kind.",
        ),
    ] = OUTLIER,
    engine: EngineName = None,
    json: Json = False,
    csv_file: Annotated[
        Path | None,
        Option("--csv", metavar="FILE", help="Write the causes and their parts as CSV."),
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw a bar chart (.png, .svg, .pdf).")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Explain an iteration: how much time it loses to each cause.

    The causes are slow links (dependency bubbles, HOL blocking), slow operators, stage
    imbalance, micro-batch variation, the transport, and warm-up and drain. Each is found by
    running the same plan again without it. "If removed" is what removing that cause alone
    saves; these times need not add up. "In order" removes the causes one after the other, from
    top to bottom; these times add up to the iteration. Without a plan, 1f1b is explained; where
    devices have several stages, interleaved-1f1b, or zerobubble where it does not fit them.

    Of a production trace it says which worker, which stage, which rank and which link is slower
    than its peers, and what the job's step would be without it: all workers are run again with
    the times of the peers.
    """
    if trace := next((file for file in files or () if is_trace(file)), None):
        if len(files or ()) > 1:
            raise ScenarioError(f"explain takes {trace} alone: a production trace is a whole job")
        only_for_scenarios([scenario, planning, over, where], engine=engine)
        explain_trace(trace, outlier=outlier, json=json, csv_file=csv_file, plot=plot, quiet=quiet)
        return
    scenario, plan = _inputs(scenario, files or [])
    if plan is not None and (planning.planner or planning.group_size):
        raise ScenarioError("explain takes a PLAN.json or --planner NAME, not both")
    outputs = Outputs({"--csv": csv_file, "--plot": plot}, scenario.scenario, plan)
    cluster = where.cluster(over.message_cost)
    with progress(quiet) as report:
        if plan:
            schedule = plan_from(plan)
            transport = over.build(cluster, planning.target, planner=schedule.planner)
            what = scenario.build(plan=schedule, chunks=planning.chunks, cluster=cluster)
        else:
            default = default_systems(scenario.build(chunks=planning.chunks))[0]
            planner = planning.planner or system(default).planner
            transport = over.build(cluster, planning.target, planner=planner)
            what = in_chunks(scenario.build(cluster=cluster), planner, planning.chunks)
            _, schedule = planning.planned(
                scenario, transport, report, planner=planner, cluster=cluster
            )
        found = attribute(
            what, schedule, transport, outlier=outlier, engine=engine_named(engine),
            runtime=planning.target or IDEAL,
            progress=lambda changed: report(f"simulating {changed}"),
        )  # fmt: skip
        if plot:
            from pipesim.plot import save
            from pipesim.plot.attribution import bars

            report("drawing")
            save(bars(found, title=titled(what, testbed=cluster.name if cluster else None)), plot)
        if csv_file:
            records = [line.as_dict() for line in lines(found)]
            write_csv(csv_file, list(records[0]), records)
    if json:
        own = {"testbed": cluster.as_dict(what)} if cluster else {}
        show_json(found.as_dict() | own)
    else:
        if not quiet:
            name = f"{schedule.planner or 'plan'} over {transport}"
            show(*head(what, 0.0, cluster, runtime=planning.target), name, "")
        _show(found, quiet)
    for text in made_for_another(schedule, planning.target):
        note(text, quiet=quiet)
    outputs.written(quiet=quiet)


def _inputs(scenario: ScenarioOptions, files: list[Path]) -> tuple[ScenarioOptions, Path | None]:
    """Sort files into the scenario and the plan by their ending."""
    plan: Path | None = None
    for file in files:
        if file.suffix.lower() == ".toml":
            if scenario.scenario is not None:
                raise ScenarioError(f"explain takes one scenario, not {file} too")
            scenario = replace(scenario, scenario=file)
        elif plan is None:
            plan = file
        else:
            raise ScenarioError(f"explain takes one plan, not {file} too")
    return scenario, plan


def _show(found: Attribution, quiet: bool) -> None:
    rows = lines(found)
    total = found.iteration_ms
    start = first(found)
    show_rows(
        Column("cause", [*map(_label, rows), "iteration"], numeric=False),
        [
            Column("if removed\nms", [*(_time(found, row.removal_ms) for row in rows), ""]),
            Column("\n%", [*(_part(found, row.removal_ms) for row in rows), ""]),
            Column("in order\nms", [_time(found, t) for t in (*_parts(rows), total)]),
            Column("\n%", [_part(found, t) for t in (*_parts(rows), total)]),
        ],
        bold=next((i for i, row in enumerate(rows) if row.cause == start), None),
    )
    if found.slowdown is not None:
        ideal = milliseconds(round(found.ideal_ms, decimals(total)))
        show("", f"Healthy and balanced: {ideal}; slowdown {found.slowdown:.2f}×")
    if not quiet:
        show("", diagnosis(found))


def _parts(rows: Sequence[Line]) -> list[float | None]:
    return [row.cumulative_ms for row in rows]


def _label(row: Line) -> str:
    return f"  {row.label}" if row.is_part else row.label


def _time(found: Attribution, time_ms: float | None) -> str:
    return "" if time_ms is None else fixed(time_ms, decimals(found.iteration_ms))


def _part(found: Attribution, time_ms: float | None) -> str:
    return "" if time_ms is None else fixed(100 * found.fraction(time_ms), 1)
