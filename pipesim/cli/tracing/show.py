"""``pipesim trace show``: what a delay trace holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.adapt.levels import Band, Levels, changes, link_levels, slow_levels, slowest_levels
from pipesim.cli import parsing
from pipesim.cli.options import Json, Quiet, parsed
from pipesim.cli.output import Column, Outputs, note, show_json, show_rows
from pipesim.cli.output import show as show_parts
from pipesim.cli.tracing.reading import CountsBy, trace_in
from pipesim.cli.tracing.words import delay_text, summary
from pipesim.delays import By, DelayTrace
from pipesim.errors import PipesimError, ScenarioError
from pipesim.files import write_csv
from pipesim.text import fixed, milliseconds

__all__ = ["show"]

EXAMPLES = (
    "pipesim trace show traces/production_hour.csv --plot hour.png",
    "pipesim trace show traces/superpod.csv --from 100 --to 400",
)


def show(
    file: Annotated[Path, Argument(metavar="FILE", help="A delay trace.")],
    links: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Number of links of the pipeline (default: as many as FILE names).",
        ),
    ] = None,
    by: CountsBy = None,
    start: Annotated[
        str | None,
        Option("--from", metavar="TIME", help="Leave out what is before: a time or an iteration."),
    ] = None,
    end: Annotated[
        str | None,
        Option(
            "--to",
            metavar="TIME",
            help="Leave out what comes later (default: the trace's end, or its last change).",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw each link's delay over time (.png, .svg, .pdf)."),
    ] = None,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="Write the figures of each link as CSV.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what a delay trace holds: how slow each link is, how often it changes, for how long.

    FILE is a CSV with a column for each link (time_ms or iteration, delay_link0_ms …) or with a
    line for each change (time_ms or iteration, slow_links, delay_ms), or has lines
    when;links;seconds as in the artifact of "Attack of the Bubbles".
    """
    outputs = Outputs({"--plot": plot, "--csv": csv_file}, file)
    whole = trace_in(file, by, links=links)
    trace, first = _window(whole, start, end, file)
    if whole.end is None and end is None and not json:
        note(f"{file} has no end: counted up to its last change", quiet=quiet)
    if csv_file:
        records = _per_link(trace)
        write_csv(csv_file, list(records[0]), records)
    if plot:
        from pipesim.plot import save
        from pipesim.plot.delays import over_time

        save(over_time(trace, start=first, title=file.name), plot)
    if json:
        show_json({"trace": str(file), **_figures(trace)})
    else:
        if not quiet:
            show_parts(*summary(trace), "")
        _show_links(trace)
        show_parts("")
        _show_bands(slowest_levels(trace).bands())
    outputs.written(quiet=quiet)


def _window(
    trace: DelayTrace, start: str | None, end: str | None, file: Path
) -> tuple[DelayTrace, float]:
    """Return the part of the trace to show, which has an end, and where it begins."""
    first = 0.0 if start is None else parsed("--from", _point(trace.by), start)
    last = None if end is None else parsed("--to", _point(trace.by), end)
    if last is None and trace.end is None:
        last = float(trace.starts[-1])
    try:
        return trace.sliced(first, last), first
    except ScenarioError as error:
        raise PipesimError(f"{file}: {error}; say what to show with --from and --to") from None


def _point(by: By) -> Callable[[str], float]:
    return parsing.duration_ms if by == "time" else parsing.iteration


def _figures(trace: DelayTrace) -> dict[str, object]:
    slowest = slowest_levels(trace)
    return {
        "by": trace.by,
        "end": trace.end,
        "links": trace.links,
        "changes": sum(changes(trace)),
        "slowest": {
            "slow_share": slowest.slow_share,
            "failed_share": slowest.failed_share,
            **_quantiles(slowest),
        },
        "while_slow": _quantiles(slow_levels(trace)),
        "levels": [asdict(band) for band in slowest.bands() if math.isfinite(band.to_ms)],
        "per_link": _per_link(trace),
    }


def _per_link(trace: DelayTrace) -> list[dict[str, object]]:
    """Figures of each link; quantiles are of the time while it is slow."""
    return [
        {
            "link": link,
            "slow_share": levels.slow_share,
            "failed_share": levels.failed_share,
            **_quantiles(levels.while_slow),
            "changes": changed,
        }
        for link, (levels, changed) in enumerate(
            zip(link_levels(trace), changes(trace), strict=True)
        )
    ]


def _quantiles(levels: Levels) -> dict[str, float | None]:
    """Median, P99 and longest delay; None where there is none, or the link has failed."""
    quantiles = (levels.quantile(0.5), levels.quantile(0.99))
    middle, high = (value if math.isfinite(value) else None for value in quantiles)
    return {"median_ms": middle, "p99_ms": high, "max_ms": levels.largest_ms}


def _show_links(trace: DelayTrace) -> None:
    slowest = slowest_levels(trace)
    every = [*link_levels(trace), slowest]
    slow = [levels.while_slow for levels in every]
    columns = [
        Column("slow\n%", [fixed(100 * levels.slow_share, 1) for levels in every]),
        Column("median\nms", [delay_text(levels.quantile(0.5)) for levels in slow]),
        Column("P99\nms", [delay_text(levels.quantile(0.99)) for levels in slow]),
        Column("longest\nms", [delay_text(levels.largest_ms) for levels in slow]),
        Column("changes", [*map(str, changes(trace)), ""]),
    ]
    if slowest.failed_share:
        failed = [fixed(100 * levels.failed_share, 1) for levels in every]
        columns.insert(1, Column("failed\n%", failed))
    names = [*(f"link {link}" for link in range(trace.links)), "slowest"]
    show_parts("Each link, and the slowest at each moment; delays are those while it is slow:")
    show_rows(Column("", names, numeric=False), columns)


def _show_bands(bands: Sequence[Band]) -> None:
    show_rows(
        Column("slowest link's delay", [_band(band) for band in bands], numeric=False),
        [Column("of the time\n%", [fixed(100 * band.share, 1) for band in bands])],
    )


def _band(band: Band) -> str:
    if band.to_ms == 0:
        return "none"
    if math.isinf(band.to_ms):
        return "failed"
    to = milliseconds(band.to_ms)
    return to if band.over_ms == band.to_ms else f"over {delay_text(band.over_ms)}, up to {to}"
