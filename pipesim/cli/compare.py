"""``pipesim compare``: what a slow link costs under each system, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from pipesim.cli import parsing
from pipesim.cli.options import (
    Chunks,
    DataParallelOptions,
    EngineName,
    GroupSize,
    Json,
    MessageOptions,
    Quiet,
    RuntimeName,
    ScenarioOptions,
    TestbedOptions,
    engine_named,
    head,
    parsed,
    runtime_named,
)
from pipesim.cli.output import Column, Outputs, progress, show, show_json, show_rows
from pipesim.documents.words import titled
from pipesim.errors import ScenarioError
from pipesim.files import write_csv
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.studies.advice import advice, advised
from pipesim.studies.comparison import Comparison, Row
from pipesim.studies.comparison import compare as compare_systems
from pipesim.studies.systems import (
    DEFAULT_SYSTEMS,
    SYSTEMS,
    System,
    default_systems,
    on_runtime,
    system,
)
from pipesim.text import decimals, fixed, listed, milliseconds, numbers
from planners import chunks as chunks_of
from planners import takes_group_size

__all__ = ["compare"]

EXAMPLES = (
    "pipesim compare --delay 20ms --link 0",
    "pipesim compare --scenario traces/a10-gpt-7b.toml --slow 2=60ms --plot a10.png",
    "pipesim compare --dp 2 --slow-dp 1=30ms",
)


def _complete_systems(incomplete: str) -> list[str]:
    """Complete the last name of a comma list of systems."""
    *given, last = incomplete.split(",")
    return [",".join([*given, name]) for name in SYSTEMS if name.startswith(last)]


def compare(
    scenario: ScenarioOptions,
    messages: MessageOptions,
    where: TestbedOptions,
    parallel: DataParallelOptions,
    systems: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help=f"Compare these: a comma list of {', '.join(SYSTEMS)} or PLANNER:TRANSPORT "
            f"(default: {','.join(DEFAULT_SYSTEMS)}, and search if a limit is reached).",
            autocompletion=_complete_systems,
        ),
    ] = None,
    chunks: Chunks = None,
    group_size: GroupSize = None,
    runtime: RuntimeName = None,
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
    plan, and the activations it holds (1 is what a device saves for a micro-batch in all its
    stages). Without options: 4 stages, 12 micro-batches, operators of 10 ms, no slow link.

    An option of planners or transports is for all systems that have it.

    With --dp, each system gets a row for the nodes as they are, one for as few exchanges of nodes
    as turn slow links of all-reduces into pipeline links, and one for the places of nodes with the
    shortest step.
    """
    parallel.check_used()
    files = {"--csv": csv_file, "--plot": plot, "--trace": trace}
    outputs = Outputs(files, scenario.scenario)
    names = None if systems is None else parsed("--systems", parsing.names, systems)
    cost_ms, cluster = messages.message_cost_ms, where.cluster(messages.message_cost)
    what = scenario.build(cluster=cluster, rank=None if parallel.dp is None else 0)
    target = runtime_named(runtime)
    compared = [system(name) for name in names or on_runtime(default_systems(what, chunks), target)]
    _check_used(compared, chunks, group_size)
    ways = list(dict.fromkeys(one.transport for one in compared))
    messages.check_used(ways)
    free = replace(messages, message_cost=None)
    told: dict[str, Any] = {
        "message_cost_ms": cost_ms,
        "testbed": cluster.testbed if cluster else None,
        "ranks_per_host": cluster.ranks_per_host if cluster else 1,
        "transports": [free.over(name, cluster, target) for name in (*ways, "ideal")],
        "engine": engine_named(engine),
    }
    if parallel.dp is not None:
        unused = {
            "--chunks": chunks, "--group-size": group_size, "--runtime": runtime,
            "--optimum": optimum,
        }  # fmt: skip
        for option, value in {**unused, "--plot": plot, "--trace": trace}.items():
            if value:
                raise ScenarioError(f"{option} is not for --dp")
        from pipesim.cli.comparing import compare_ranks  # and with it placements

        compare_ranks(
            scenario, parallel, cluster, names, told, json=json, csv_file=csv_file, quiet=quiet
        )
        outputs.written(quiet=quiet)
        return
    with progress(quiet) as report:
        result = compare_systems(
            what,
            names,
            chunks=chunks,
            group_size=group_size,
            runtime=target,
            optimum_seconds=60.0 if optimum else None,
            progress=lambda title: report(f"simulating {title}"),
            **told,
        )
        if plot:
            from pipesim.plot import gantt, save

            report("drawing")
            title = titled(what, cost_ms, testbed=cluster.name if cluster else None)
            save(gantt(result.timelines, title=title), plot)
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
            show(*head(what, cost_ms, cluster, runtime=target), "")
        _show_rows(result)
        show("", *filter(None, (_lower_bound(result), _misfits(result))), *_left_out(result))
        if not quiet:
            show("", advice(result))
    outputs.written(quiet=quiet)


def _check_used(compared: list[System], chunks: int | None, group_size: int | None) -> None:
    """Raise :class:`ScenarioError` if an option of planners is for none of the systems."""
    planners = list(dict.fromkeys(one.planner for one in compared))
    names = " or ".join(planners)
    if (chunks or 1) > 1 and all(chunks_of(planner) is None for planner in planners):
        raise ScenarioError(f"--chunks is not for {names}: one stage on each device")
    if group_size is not None and not any(map(takes_group_size, planners)):
        raise ScenarioError(f"--group-size is for interleaved-1f1b, not for {names}")


def _show_rows(result: Comparison) -> None:
    rows = result.rows
    digits = decimals(max(row.iteration_ms for row in rows))
    plan_digits = decimals(max(row.plan_seconds for row in rows) * 1000) - 1

    def times(values: list[float], digits: int = digits) -> list[str]:
        return [fixed(value, digits) for value in values]

    ranges = any(row.interval_ms for row in rows)
    times_columns = [
        Column("transport", [row.system.transport for row in rows], numeric=False),
        Column("iteration\nms", times([row.iteration_ms for row in rows])),
        *([Column("90 % in\nms", list(map(_range, rows)))] if ranges else []),
        Column("slowdown", [_times_as_long(row) for row in rows], tight="slow-\ndown"),
        Column("+ dependency\nms", times([row.dependency_ms for row in rows]), tight="+ dep.\nms"),
        Column("+ HOL\nms", times([row.hol_ms for row in rows])),
        Column("bubble\n%", [f"{100 * row.bubble_fraction:.1f}" for row in rows]),
    ]
    plan_columns = [] if all(row.chunks == 1 for row in rows) else [
        Column("chunks", [str(row.chunks) for row in rows])
    ]  # fmt: skip
    plan_columns += [
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


def _range(row: Row) -> str:
    """Where 90 % of measurements lie."""
    return "–" if row.interval_ms is None else "–".join(f"{end:.0f}" for end in row.interval_ms)


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


def _left_out(result: Comparison) -> list[str]:
    """Say which of the default systems have no row."""
    return [f"No row for {system(name).title}: {why}" for name, why in result.left_out.items()]


def _lower_bound(result: Comparison) -> str:
    """Say what no schedule can beat; where that differs among systems, whose it is."""
    titles: dict[float, list[str]] = {}
    for row in result.rows:
        titles.setdefault(row.lower_bound_ms, []).append(row.system.title)
    general_ms = next(iter(titles)) if len(titles) == 1 else result.lower_bound_ms
    bounds = [milliseconds(general_ms)] if general_ms in titles else []
    bounds += [
        f"{listed(names)}: {milliseconds(bound_ms)}"
        for bound_ms, names in titles.items()
        if bound_ms != general_ms
    ]
    return f"Lower bound: {'; '.join(bounds)}"
