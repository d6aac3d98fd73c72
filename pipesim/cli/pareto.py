"""``pipesim plan --pareto``: what each further activation buys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim import analysis
from pipesim.cli.options import head
from pipesim.cli.output import Column, progress, show, show_json, show_rows
from pipesim.documents.words import titled, unblocked
from pipesim.engine import Engine
from pipesim.files import write_csv
from pipesim.scenario import Scenario
from pipesim.studies.pareto import Point, pareto
from pipesim.target import Target
from pipesim.text import decimals, fixed, milliseconds, numbers
from pipesim.transport import Transport

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["show_pareto"]


def show_pareto(
    scenario: Scenario,
    over: Transport,
    cost_ms: float,
    cluster: Cluster | None,
    runtime: Target | None,
    engine: Engine | None,
    csv_file: Path | None,
    plot: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """Print the trade-off between iteration time and activations over a transport."""
    costs_ms = over.costs_ms(scenario)
    bound_ms = analysis.lower_bound_ms(scenario.with_message_cost(costs_ms))
    with progress(quiet) as report:
        points = pareto(scenario, over, engine=engine, progress=report)
        if plot:
            from pipesim.plot import save
            from pipesim.plot.pareto import trade_off

            report("drawing")
            title = titled(scenario, cost_ms, testbed=cluster.name if cluster else None)
            save(trade_off(points, bound_ms, title=title), plot)
        if csv_file:
            records = [point.as_dict() for point in points]
            write_csv(csv_file, list(records[0]), records)
    if json:
        show_json(
            {
                "scenario": scenario.summary(),
                "message_cost_ms": cost_ms,
                "testbed": cluster and cluster.as_dict(scenario),
                "lower_bound_ms": bound_ms,
                "points": [point.as_dict() for point in points],
            }
        )
    else:
        if not quiet:
            show(*head(scenario, cost_ms, cluster, runtime=runtime), "")
        _show_points(points)
        show("", f"Lower bound: {milliseconds(bound_ms)}")
        if not quiet:
            hint = "" if cost_ms or cluster else " (--message-cost)"
            what = unblocked(costs_ms)
            if over.name != "ideal":
                what = what.replace("where nothing blocks", f"over the transport {over}")
            show(f"Times hold {what}{hint}.")


def _show_points(points: Sequence[Point]) -> None:
    digits = decimals(max(point.iteration_ms for point in points))
    before = [None, *points[:-1]]
    columns = [
        Column("iteration\nms", [fixed(point.iteration_ms, digits) for point in points]),
        Column(
            "saves\nms",
            [
                "" if old is None else fixed(old.iteration_ms - point.iteration_ms, digits)
                for old, point in zip(before, points, strict=True)
            ],
        ),
        Column("warm-up", [numbers(point.warmup) for point in points], numeric=False),
        Column("by device", [numbers(point.peak_activations) for point in points], numeric=False),
    ]
    if any(point.host for point in points):
        columns.insert(2, Column("of them\non host", [f"{point.host:g}" for point in points]))
    show_rows(Column("activations", [f"{point.peak:g}" for point in points]), columns)
