"""``pipesim compare``: what a slow link costs under each system, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim.cli import parsing
from pipesim.cli.options import (
    EngineName,
    Json,
    MessageCost,
    Quiet,
    ScenarioOptions,
    engine_named,
    message_cost_ms,
    parsed,
)
from pipesim.cli.output import Column, Outputs, progress, show, show_json, show_rows
from pipesim.documents.words import described, titled
from pipesim.files import write_csv
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.studies.advice import advice, advised
from pipesim.studies.comparison import DEFAULT_SYSTEMS, SYSTEMS, Comparison, Row
from pipesim.studies.comparison import compare as compare_systems
from pipesim.text import decimals, fixed, listed, milliseconds, numbers

__all__ = ["compare"]

EXAMPLES = (
    "pipesim compare --delay 20ms --link 0",
    "pipesim compare --scenario traces/a10-gpt-7b.toml --slow 2=60ms --plot a10.png",
)


def _complete_systems(incomplete: str) -> list[str]:
    """Complete the last name of a comma list of systems."""
    *given, last = incomplete.split(",")
    return [",".join([*given, name]) for name in SYSTEMS if name.startswith(last)]


def compare(
    scenario: ScenarioOptions,
    systems: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help=f"Compare these: a comma list of {', '.join(SYSTEMS)} or PLANNER:TRANSPORT "
            f"(default: {','.join(DEFAULT_SYSTEMS)}, and search if a limit is reached).",
            autocompletion=_complete_systems,
        ),
    ] = None,
    message_cost: MessageCost = None,
    delegates: Annotated[
        int | None,
        Option(
            metavar="K",
            min=1,
            help="Number of delegates for each neighbour and direction (default: enough that one "
            "is always free).",
        ),
    ] = None,
    optimum: Annotated[
        bool,
        Option(
            "--optimum", help="Add the shortest iteration within the limits when nothing blocks."
        ),
    ] = False,
    engine: EngineName = None,
    json: Json = False,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="Write the rows as CSV.")
    ] = None,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw Gantt charts on one time axis (.png, .svg, .pdf)."),
    ] = None,
    trace: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a Chrome trace, for Perfetto."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare systems: what a slow link costs each, and what helps.

    Each system gets one row: its iteration time, its slowdown against healthy links, how much
    of that comes from dependency bubbles and how much from head-of-line (HOL) blocking, its
    plan, and the activations it holds. Without options: 4 stages, 12 micro-batches, operators
    of 10 ms, no slow link.
    """
    files = {"--csv": csv_file, "--plot": plot, "--trace": trace}
    outputs = Outputs(files, scenario.scenario)
    names = None if systems is None else parsed("--systems", parsing.names, systems)
    what, cost_ms = scenario.build(), message_cost_ms(message_cost)
    with progress(quiet) as report:
        result = compare_systems(
            what,
            names,
            message_cost_ms=cost_ms,
            delegates=delegates,
            optimum_seconds=60.0 if optimum else None,
            engine=engine_named(engine),
            progress=lambda title: report(f"simulating {title}"),
        )
        if plot:
            from pipesim.plot import gantt, save

            report("drawing")
            save(gantt(result.timelines, title=titled(what, cost_ms)), plot)
        if csv_file:
            records = [row.as_dict() for row in result.rows]
            write_csv(csv_file, list(records[0]), records)
        if trace:
            save_chrome_trace(result.timelines, trace)
    if json:
        best = advised(result)
        advised_name = best.system.name if best else None
        show_json(result.as_dict() | {"advised": advised_name, "advice": advice(result)})
    else:
        if not quiet:
            show(described(what, cost_ms), "")
        _show_rows(result)
        show("", *filter(None, (_lower_bound(result), _misfits(result))))
        if not quiet:
            show("", advice(result))
    outputs.written(quiet=quiet)


def _show_rows(result: Comparison) -> None:
    rows = result.rows
    digits = decimals(max(row.iteration_ms for row in rows))
    plan_digits = decimals(max(row.plan_seconds for row in rows) * 1000) - 1

    def times(values: list[float], digits: int = digits) -> list[str]:
        return [fixed(value, digits) for value in values]

    times_columns = [
        Column("transport", [row.system.transport for row in rows], numeric=False),
        Column("iteration\nms", times([row.iteration_ms for row in rows])),
        Column("slowdown", [_times_as_long(row) for row in rows], tight="slow-\ndown"),
        Column("+ dependency\nms", times([row.dependency_ms for row in rows]), tight="+ dep.\nms"),
        Column("+ HOL\nms", times([row.hol_ms for row in rows])),
        Column("bubble\n%", [f"{100 * row.bubble_fraction:.1f}" for row in rows]),
    ]
    plan_columns = [
        Column("warm-up", [numbers(row.warmup) for row in rows], numeric=False),
        Column(
            "slackness", [numbers(row.slackness) for row in rows], numeric=False,
            tight="slack-\nness",
        ),
        Column(
            "peak activations", [numbers(row.peak_activations) for row in rows], numeric=False,
            tight="peak\nactivations",
        ),
    ]  # fmt: skip
    if any(any(row.host_activations) for row in rows):
        hosted = [numbers(row.host_activations) for row in rows]
        plan_columns.append(Column("over the limit", hosted, False, tight="over the\nlimit"))
    plan_columns.append(
        Column(
            "planning\nms", times([row.plan_seconds * 1000 for row in rows], plan_digits),
            tight="plan\nms",
        )
    )  # fmt: skip
    fastest = min(range(len(rows)), key=lambda index: rows[index].iteration_ms)
    show_rows(
        Column("system", [row.system.title for row in rows], numeric=False),
        times_columns,
        plan_columns,
        bold=fastest,
    )


def _times_as_long(row: Row) -> str:
    return "–" if row.slowdown is None else f"{row.slowdown:.2f}×"


def _misfits(result: Comparison) -> str:
    """Say which systems hold more than fits: on the devices, or also on their hosts."""
    misfits = [row for row in result.rows if not row.fits]
    groups = {
        "the activation limit, with no plan to use host memory": False,
        "the limits of the devices and their hosts": True,
    }
    over = {
        limit: [row.system.title for row in misfits if row.schedule.uses_hosts == hosts]
        for limit, hosts in groups.items()
    }
    return "\n".join(f"Over {limit}: {listed(names)}" for limit, names in over.items() if names)


def _lower_bound(result: Comparison) -> str:
    text = f"Lower bound: {milliseconds(result.lower_bound_ms)}"
    others = [row for row in result.rows if row.lower_bound_ms != result.lower_bound_ms]
    for row in others:
        text += f"; {row.system.title}: {milliseconds(row.lower_bound_ms)}"
    return text
