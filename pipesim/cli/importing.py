"""``pipesim import timeline``: a scenario out of measured operators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli import parsing
from pipesim.cli.options import Quiet, parsed
from pipesim.cli.output import note, progress, show
from pipesim.formats.measured import import_timelines
from pipesim.formats.scenario_toml import save_scenario
from pipesim.wording import counted, described

__all__ = ["timeline"]


def timeline(
    files: Annotated[list[Path], Argument(metavar="CSV...", help="Operator timelines.")],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="The scenario to write.")
    ],
    iterations: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Healthy iterations, as 5,6 (default: about as fast as the fastest).",
        ),
    ] = None,
    message_bytes: Annotated[
        float, Option(metavar="BYTES", min=0, help="Size of a message, which no timeline tells.")
    ] = 0.0,
    name: Annotated[str, Option(help="Name of the scenario (default: the first file's).")] = "",
    source: Annotated[str, Option(help="Who measured it, where.")] = "",
    quiet: Quiet = False,
) -> None:
    """Make a scenario of operator timelines.

    Its times are medians over their healthy iterations. A file has the columns iteration,
    stage, op, index, host_start_ms, host_end_ms, gpu_ms.
    """
    chosen = None if iterations is None else parsed("--iterations", parsing.names, iterations)
    with progress(quiet) as report:
        report(f"reading {counted(len(files), 'file')}")
        measurement = import_timelines(
            files, iterations=chosen, message_bytes=message_bytes, name=name, source=source
        )
    save_scenario(measurement.scenario, output)
    if not quiet:
        show(described(measurement.scenario), *(f"- {text}" for text in measurement.notes))
    note(f"wrote {output}", quiet=quiet)
