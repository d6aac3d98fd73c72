"""What the kinds of ``pipesim import`` share: their options, and what is said in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim.cli import parsing
from pipesim.cli.options import parsed
from pipesim.cli.output import Outputs, progress, show
from pipesim.documents.scenario_toml import save_scenario
from pipesim.documents.words import described
from pipesim.formats.measurement import Measurement
from pipesim.text import counted

__all__ = ["MessageBytes", "Name", "Output", "Source", "imported", "labels"]

Output = Annotated[Path, Option("--output", "-o", metavar="FILE", help="The scenario to write.")]
MessageBytes = Annotated[
    float, Option(metavar="BYTES", min=0, help="Size of a message; the files do not tell it.")
]
Name = Annotated[
    str, Option(metavar="TEXT", help="Name of the scenario (default: the first file's).")
]
Source = Annotated[str, Option(metavar="TEXT", help="Who measured it, and where.")]


def labels(iterations: str | None) -> list[str] | None:
    """Read the iterations that were named."""
    return None if iterations is None else parsed("--iterations", parsing.names, iterations)


def imported(
    read: Callable[[], Measurement], files: Sequence[Path], output: Path, quiet: bool
) -> None:
    """Read a measurement, write its scenario and say what was dropped or guessed."""
    outputs = Outputs({"--output": output}, *files)
    with progress(quiet) as report:
        report(f"reading {counted(len(files), 'file')}")
        measurement = read()
    save_scenario(measurement.scenario, output)
    if not quiet:
        show(described(measurement.scenario), *(f"- {text}" for text in measurement.notes))
    outputs.written(quiet=quiet)
