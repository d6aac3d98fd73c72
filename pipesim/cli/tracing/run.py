"""``pipesim trace run``: what hours of changing links cost, with and without adaptation."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pipesim.adapt.detectors import DETECTORS
from pipesim.cli import parsing
from pipesim.cli.options import (
    Json,
    MessageOptions,
    Quiet,
    ScenarioOptions,
    TestbedOptions,
    head,
    parsed,
)
from pipesim.cli.output import Column, Outputs, bar, note, show, show_json, show_rows, wrapped
from pipesim.cli.tracing.reading import CountsBy, trace_in
from pipesim.cli.tracing.words import summary
from pipesim.errors import FormatError, ScenarioError
from pipesim.formats.delay_trace import line_of
from pipesim.scenario import Array
from pipesim.studies.systems import DEFAULT_SYSTEMS, SYSTEMS, default_systems, system
from pipesim.text import fixed, milliseconds, percent, plain

if TYPE_CHECKING:
    from pipesim.adapt.outcome import Outcome
    from pipesim.studies.adaptation import Adaptation

__all__ = ["run"]

EXAMPLES = (
    "pipesim trace run traces/superpod.csv --stages 8 --microbatches 24",
    "pipesim trace run traces/production_hour.csv --stages 8 --microbatches 24 --jitter 5%",
)


def run(
    trace: Annotated[Path, Argument(metavar="TRACE", help="Delays of the links (CSV).")],
    scenario: ScenarioOptions,
    messages: MessageOptions,
    where: TestbedOptions,
    systems: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help=f"Run these: a comma list of {', '.join(SYSTEMS)} or PLANNER:TRANSPORT "
            f"(default: {','.join(DEFAULT_SYSTEMS)}). An oracle is always run.",
        ),
    ] = None,
    detector: Annotated[
        str,
        Option(
            metavar="NAME[:OPTION=VALUE,…]",
            help=f"What tells slow links: {', '.join(DETECTORS)}.",
        ),
    ] = "ratio",
    by: CountsBy = None,
    iterations: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Stop after so many iterations (default: with the trace)."),
    ] = None,
    duration: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="End a trace over time there (default: its own end, or as far as its longest "
            "piece goes on).",
        ),
    ] = None,
    lead: Annotated[
        int,
        Option(
            metavar="N",
            min=0,
            help="Let the job run so many healthy iterations before the trace begins.",
        ),
    ] = 0,
    after: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="What follows the pipeline in each iteration: gradients, optimizer (default: the "
            "testbed's, or 0ms).",
        ),
    ] = None,
    jitter: Annotated[
        str,
        Option(metavar="PERCENT", help="Let operator and transfer times vary by this."),
    ] = "0%",
    seed: Annotated[int, Option(metavar="N", min=0, help="Seed of the jitter.")] = 0,
    adopt_every: Annotated[
        str,
        Option(
            metavar="N[,M]",
            help="Let senders look at the delays before every Nth of their sends, and delegates "
            "before every Mth, as injectors do: 64,8 in published experiments. Real links delay at "
            "once: 1.",
        ),
    ] = "1",
    replan_every: Annotated[
        int, Option(metavar="N", min=1, help="Plan at most once in so many iterations.")
    ] = 1,
    plan_time: Annotated[
        str | None, Option(metavar="TIME", help="Time to make a plan (default 100ms).")
    ] = None,
    switch_time: Annotated[
        str | None, Option(metavar="TIME", help="Time to swap plans (default 10ms).")
    ] = None,
    first_time: Annotated[
        str | None,
        Option(metavar="TIME", help="On top, when delegates are first used (default 450ms)."),
    ] = None,
    profile_time: Annotated[
        str | None,
        Option(metavar="TIME", help="Time to read transfer times, each iteration (default 0.5ms)."),
    ] = None,
    json: Json = False,
    csv_file: Annotated[
        Path | None,
        Option(
            "--csv",
            metavar="FILE",
            help="Write each iteration as CSV. If the run is interrupted, the same command goes on "
            "from there.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw the pace of all systems over time (.png, .svg, .pdf)."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a job along a trace of delays, with and without adaptation.

    A system that re-plans or delegates sees the transfer times of past iterations only: after each
    of them a detector looks at every link. When what it says has changed, the next plan is made
    while the job runs on, and swapped in at the next boundary between iterations. Messages are
    delegated at links that are taken as slow, and nowhere else. The oracle knows the delays when an
    iteration starts, and adapts at once and for nothing.
    """
    from pipesim.adapt.costs import Costs  # and with them planners
    from pipesim.studies.adaptation import ORACLE, NoBaselineError, adapt, ended

    outputs = Outputs({"--csv": csv_file, "--plot": plot}, trace, scenario.scenario)
    cluster = where.cluster(messages.message_cost)
    what = scenario.build(cluster=cluster)
    if scenario.injected_as != "occupancy":
        raise ScenarioError("--injection: delays of a trace are spent on the sender (occupancy)")
    if what.occupancy_ms.any():
        raise ScenarioError("the trace says which links are slow: leave out --delay and --slow")
    names = None if systems is None else parsed("--systems", parsing.names, systems)
    chosen = [name for name in names or default_systems(what) if name != ORACLE]
    ways = [system(name).transport for name in chosen]
    messages.check_used([*ways, "nccl", "delegated"])  # the latter are the oracle's
    told = trace_in(trace, by, links=what.stages - 1)
    if duration is not None:
        if told.by == "iteration":
            raise ScenarioError("--duration is for traces over time: give --iterations")
        told = ended(told, parsed("--duration", parsing.duration_ms, duration))
    elif told.by == "iteration" and iterations is not None:
        told = ended(told, iterations)
    looks = parsed("--adopt-every", parsing.counts, adopt_every)
    if len(looks) > 2:
        raise ScenarioError(f"--adopt-every: {adopt_every!r} is more than two numbers")

    def time_ms(option: str, text: str | None, default_ms: float) -> float:
        return default_ms if text is None else parsed(option, parsing.duration_ms, text)

    usual = Costs()
    try:
        with bar(quiet) as report:
            result = adapt(
                what,
                told,
                names,
                detector=detector,
                costs=Costs(
                    profile_ms=time_ms("--profile-time", profile_time, usual.profile_ms),
                    plan_ms=time_ms("--plan-time", plan_time, usual.plan_ms),
                    switch_ms=time_ms("--switch-time", switch_time, usual.switch_ms),
                    first_ms=time_ms("--first-time", first_time, usual.first_ms),
                ),
                replan_every=replan_every,
                jitter=parsed("--jitter", parsing.part, jitter),
                seed=seed,
                every=looks[0],
                delegates_every=looks[-1],
                after_ms=time_ms("--after", after, cluster.testbed.after_ms if cluster else 0.0),
                lead=lead,
                most=iterations,
                over=partial(messages.with_cost, cluster=cluster),
                csv=csv_file,
                progress=report,
            )
    except NoBaselineError as error:
        raise FormatError(
            f"{error} (--lead)", file=str(trace), line=line_of(trace, error.change)
        ) from None
    if told.end is None and iterations is None and not json:
        note(f"{trace} has no end: run as far as its longest piece goes on", quiet=quiet)
    if plot:
        from pipesim.plot import save
        from pipesim.plot.pace import pace

        save(pace(result, title=what.name or trace.stem), plot)
    if json:
        show_json(result.as_dict() | {"scenario": what.summary(), "detector": detector})
    else:
        if not quiet:
            show(
                *head(what, messages.message_cost_ms, cluster, slow=f"delays of {trace.name}"),
                *summary(result.trace),
                "",
            )
        _show(result)
        if not quiet:
            _show_costs(result)
    outputs.written(quiet=quiet)


def _show(result: Adaptation) -> None:
    ones = list(result.outcomes.values())
    shares = [result.share_of_oracle(name) for name in result.outcomes]
    found = [one.detections for one in ones]
    main = [
        Column("iterations", [str(len(one.iterations)) for one in ones], tight="iter-\nations"),
        Column("per\nminute", [fixed(one.per_minute, 1) for one in ones]),
        Column("of the oracle\n%", ["–" if s is None else fixed(100 * s, 1) for s in shares],
               tight="of or-\nacle %"),
        Column("median\nms", [_ms(one, 0.5) for one in ones]),
        Column("P99\nms", [_ms(one, 0.99) for one in ones]),
    ]  # fmt: skip
    adaptation = [
        Column("re-plans", [str(one.replans) if one.adapts else "–" for one in ones]),
        Column("known after\ns", [
            "–" if f is None or f.mean_ms is None else fixed(f.mean_ms / 1000, 1) for f in found
        ], tight="known\nafter s"),
        Column("missed", ["–" if f is None else str(f.missed) for f in found]),
        Column("false\nalarms", ["–" if f is None else str(f.false_alarms) for f in found]),
        Column("most\nactivations", [_most(one, one.peak_activations) for one in ones]),
    ]  # fmt: skip
    if any(one.host_activations.any() for one in ones):
        hosted = [_most(one, one.host_activations) for one in ones]
        adaptation.append(Column("of these\non hosts", hosted))
    if any(one.host_bytes.any() for one in ones):
        gib = [fixed(float(one.host_bytes.max()) / 2**30, 1) for one in ones]
        adaptation.append(Column("GiB of\na host", gib))
    titles = [one.strategy.title for one in ones]
    best = max(range(len(ones) - 1), key=lambda i: ones[i].per_minute) if len(ones) > 1 else None
    show_rows(Column("system", titles, numeric=False), main, adaptation, bold=best)
    _show_levels(titles, ones)
    if any(one.stalled for one in ones):
        text = "A link fails for good: what waits for it never ends, while the trace goes on."
        show("", wrapped(text, ""))


def _show_levels(titles: list[str], ones: list[Outcome]) -> None:
    """Show each system's pace at each level that the slowest link had."""
    shown = [k for k in range(len(ones[0].paces)) if any(one.paces[k].share for one in ones)]
    if len(shown) < 2:
        return
    paces = ones[-1].paces
    names = [_level(paces[k].above_ms, paces[k].upto_ms) for k in shown]
    shares = [fixed(100 * paces[k].share, 1) for k in shown]
    columns = [
        Column(f"{title}\nper minute", [_pace(one, k) for k in shown])
        for title, one in zip(titles, ones, strict=True)
    ]
    show("")
    show_rows(
        Column("slowest link", names, numeric=False),
        [Column("time of the\noracle's, %", shares), *columns[:3]],
        columns[3:],
    )


def _most(one: Outcome, activations: Array) -> str:
    """The most that any device holds, in micro-batches."""
    return plain(float(one.job.scenario.in_micro_batches(activations).max()), 1)


def _ms(one: Outcome, q: float) -> str:
    return fixed(one.quantile_ms(q), 1) if one.iterations else "–"


def _level(above_ms: float, upto_ms: float) -> str:
    if not upto_ms:
        return "no delay"
    if math.isinf(upto_ms):
        return f"over {milliseconds(above_ms)}"
    return f"{'' if not above_ms else plain(above_ms) + ' '}to {milliseconds(upto_ms)}".strip()


def _pace(one: Outcome, level: int) -> str:
    pace = one.paces[level].per_minute
    return "–" if math.isnan(pace) else fixed(pace, 1)


def _show_costs(result: Adaptation) -> None:
    lines = []
    for one in result.outcomes.values():
        costs = one.costs_ms
        if one.detections is None or not one.elapsed_ms:
            continue
        beside = costs.pop("planning")
        parts = ", ".join(
            f"{what} {percent(cost / one.elapsed_ms, 2)}" for what, cost in costs.items()
        )
        parts += f"; beside it, planning {percent(beside / one.elapsed_ms, 2)}"
        lines.append(wrapped(f"{one.strategy.title} spends of its time: {parts}", "  "))
    if lines:
        show("", *lines)
