"""``pipesim plan --pareto``: what each further activation buys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipesim import analysis
from pipesim.cli.output import Column, progress, show, show_json, show_rows
from pipesim.documents.words import described, titled, unblocked
from pipesim.engine import Engine
from pipesim.files import write_csv
from pipesim.scenario import Scenario
from pipesim.studies.pareto import Point, pareto
from pipesim.text import decimals, fixed, milliseconds, numbers

__all__ = ["show_pareto"]


def show_pareto(
    scenario: Scenario,
    cost_ms: float,
    engine: Engine | None,
    csv_file: Path | None,
    plot: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """Print the trade-off between iteration time and activations, and write its files."""
    bound_ms = analysis.lower_bound_ms(scenario.with_message_cost(cost_ms))
    with progress(quiet) as report:
        points = pareto(scenario, message_cost_ms=cost_ms, engine=engine, progress=report)
        if plot:
            from pipesim.plot import save
            from pipesim.plot.pareto import trade_off

            report("drawing")
            save(trade_off(points, bound_ms, title=titled(scenario, cost_ms)), plot)
        if csv_file:
            records = [point.as_dict() for point in points]
            write_csv(csv_file, list(records[0]), records)
    if json:
        show_json(
            {
                "scenario": scenario.summary(),
                "message_cost_ms": cost_ms,
                "lower_bound_ms": bound_ms,
                "points": [point.as_dict() for point in points],
            }
        )
    else:
        if not quiet:
            show(described(scenario, cost_ms), "")
        _show_points(points)
        show("", f"Lower bound: {milliseconds(bound_ms)}")
        if not quiet:
            hint = "" if cost_ms else " (--message-cost)"
            show(f"Times hold {unblocked(cost_ms)}{hint}.")


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
