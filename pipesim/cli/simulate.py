"""``pipesim simulate``: one plan over one transport, device by device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim import analysis
from pipesim.cli.options import (
    EngineName,
    Json,
    PlanOptions,
    Quiet,
    ScenarioOptions,
    TestbedOptions,
    TransportOptions,
    engine_named,
    head,
    made_for_another,
)
from pipesim.cli.output import Column, Outputs, note, progress, show, show_json, show_rows
from pipesim.documents.words import titled
from pipesim.engine import Engine, Runs
from pipesim.errors import ScenarioError
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.formats.timeline_csv import save_timeline_csv
from pipesim.scenario import Array
from pipesim.schedule import Schedule
from pipesim.text import decimals, fixed, milliseconds
from pipesim.timeline import Timeline
from pipesim.transport import Transport

__all__ = ["simulate"]

EXAMPLES = (
    "pipesim simulate plan.json --delay 20ms --link 0 --transport delegated",
    "pipesim simulate --planner 1f1b --stages 8 --transport exchange --plot 1f1b.svg",
)


def simulate(
    scenario: ScenarioOptions,
    planned: PlanOptions,
    over: TransportOptions,
    where: TestbedOptions,
    engine: EngineName = None,
    json: Json = False,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="Write all operators with their times.")
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw a Gantt chart (.png, .svg, .pdf).")
    ] = None,
    memory_plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw activations over time (.png, .svg, .pdf).")
    ] = None,
    trace: Annotated[
        Path | None, Option(metavar="FILE", help="Write a Chrome trace, for Perfetto.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Simulate a plan over a transport.

    A plan from a file says its stages, their devices and its micro-batches itself; operators take
    10 ms per stage unless times are given. With --chunks, what is given is for whole stages, of
    which the plan's are chunks. Of activations, 1 is what a device saves for a micro-batch in all
    its stages.
    """
    files = {"--csv": csv_file, "--plot": plot, "--memory-plot": memory_plot, "--trace": trace}
    outputs = Outputs(files, scenario.scenario, planned.plan)
    chosen = _with_messages(engine_named(engine), {"--plot": plot, "--trace": trace})
    cluster = where.cluster(over.message_cost)
    runtime = planned.target
    transport = over.build(cluster, runtime, planner=planned.made_by if runtime else "")
    with progress(quiet) as report:
        what, schedule = planned.build(scenario, transport, report, cluster=cluster)
        report("simulating")
        timeline = Runs(schedule, transport, engine=chosen).timeline(what)
        name = f"{schedule.planner or 'plan'} over {transport}"
        if plot or memory_plot:
            from pipesim.plot import gantt, in_flight, save

            report("drawing")
            for draw, path in ((gantt, plot), (in_flight, memory_plot)):
                if path:
                    title = titled(
                        what, over.message_cost_ms, testbed=cluster.name if cluster else None
                    )
                    save(draw({name: timeline}, title=title), path)
        if csv_file:
            save_timeline_csv(timeline, csv_file)
        if trace:
            save_chrome_trace({name: timeline}, trace)
    if json:
        own = {"testbed": cluster.as_dict(what)} if cluster else {}
        show_json(_as_dict(schedule, transport, timeline) | own)
    else:
        if not quiet:
            show(*head(what, over.message_cost_ms, cluster, runtime=runtime), name, "")
        _show(transport, timeline)
    for text in made_for_another(schedule, runtime):
        note(text, quiet=quiet)
    outputs.written(quiet=quiet)


def _with_messages(engine: Engine | None, drawn: dict[str, Path | None]) -> Engine | None:
    """The engine; SimPy, which alone keeps messages, where a file shows them."""
    for option, file in drawn.items():
        if file and engine == "compiled":
            raise ScenarioError(f"{option} shows messages, which --engine compiled does not keep")
    return "simpy" if any(drawn.values()) else engine


def _as_dict(schedule: Schedule, transport: Transport, timeline: Timeline) -> dict[str, object]:
    warmup = analysis.warmup(schedule)
    return {
        "scenario": timeline.scenario.summary(),
        "planner": schedule.planner,
        "transport": transport.name,
        "iteration_ms": timeline.iteration_ms,
        "lower_bound_ms": analysis.bound_over_ms(timeline.scenario, transport),
        "bubble_fraction": timeline.bubble_fraction,
        "stage_span_ms": timeline.stage_span_ms,
        "warmup": list(warmup),
        "slackness": list(analysis.slackness(warmup)),
        "busy_ms": timeline.busy_ms.tolist(),
        "stage_spans_ms": timeline.stage_spans_ms.tolist(),
        "peak_activations": _in_micro_batches(timeline, timeline.peak_activations),
        "host_activations": _in_micro_batches(timeline, timeline.peak_host_activations),
    }


def _in_micro_batches(timeline: Timeline, activations: Array) -> list[float]:
    return list(map(float, timeline.scenario.in_micro_batches(activations)))


def _show(transport: Transport, timeline: Timeline) -> None:
    digits = decimals(timeline.iteration_ms)
    devices = range(timeline.scenario.devices)

    def column(header: str, values: list[float], digits: int = digits) -> Column:
        return Column(header, [fixed(value, digits) for value in values])

    def counts(header: str, values: list[float]) -> Column:
        return Column(header, [f"{value:g}" for value in values])

    spans = [timeline.compute[device] for device in devices]
    columns = [
        column("first start\nms", [own[0].start_ms - timeline.start_ms for own in spans]),
        column("last end\nms", [own[-1].end_ms - timeline.start_ms for own in spans]),
        column("busy\nms", timeline.busy_ms.tolist()),
        column("idle\nms", (timeline.iteration_ms - timeline.busy_ms).tolist()),
        counts("peak\nactivations", _in_micro_batches(timeline, timeline.peak_activations)),
    ]
    if timeline.peak_host_activations.any():
        hosted = _in_micro_batches(timeline, timeline.peak_host_activations)
        columns.append(counts("of them\non host", hosted))
    show_rows(Column("device", [str(device) for device in devices], numeric=False), columns)
    show(
        "",
        f"iteration time      {milliseconds(timeline.iteration_ms)}",
        f"longest stage span  {milliseconds(timeline.stage_span_ms)}",
        f"bubble              {100 * timeline.bubble_fraction:.1f} %",
        f"lower bound         {milliseconds(analysis.bound_over_ms(timeline.scenario, transport))}",
    )
