"""``pipesim import timeline``: operator timelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.importing.shared import (
    ExplainDrops,
    MessageBytes,
    Name,
    Output,
    Source,
    imported,
    labels,
)
from pipesim.cli.options import Quiet

__all__ = ["timeline"]

EXAMPLES = ("pipesim import timeline zerobubble.csv 1f1b.csv -o scenario.toml",)


def timeline(
    files: Annotated[list[Path], Argument(metavar="CSV...", help="Operator timelines, as CSV.")],
    output: Output,
    stages: Annotated[
        int | None,
        Option(
            metavar="S",
            min=1,
            help="Number of pipeline stages; iterations that lack one are skipped (default: as in "
            "the files).",
        ),
    ] = None,
    iterations: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Healthy iterations, such as 5,6 or 20-40 (default: all about as fast as the "
            "fastest).",
        ),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    explain_drops: ExplainDrops = False,
    quiet: Quiet = False,
) -> None:
    """Make a scenario from operator timelines.

    Operator times are medians over the healthy iterations. Each file has the columns
    iteration, stage, op, index, host_start_ms, host_end_ms, gpu_ms.
    """
    from pipesim.formats.operator_timeline import import_timelines

    chosen = labels(iterations)
    imported(
        lambda: import_timelines(
            files,
            stages=stages,
            iterations=chosen,
            message_bytes=message_bytes,
            name=name,
            source=source,
        ),
        files,
        output,
        quiet,
        explain_drops,
    )
