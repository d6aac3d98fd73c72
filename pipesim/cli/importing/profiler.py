"""``pipesim import profiler``: PyTorch profiler traces."""

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

__all__ = ["profiler"]

EXAMPLES = ("pipesim import profiler rank0.json.gz rank1.json.gz -o scenario.toml",)


def profiler(
    files: Annotated[
        list[Path],
        Argument(metavar="JSON...", help="Traces of a run, one per rank (.json, .json.gz)."),
    ],
    output: Output,
    iterations: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Profiler steps, such as 5,6 or 20-40 (default: complete ones; of unlike, the "
            "fast).",
        ),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    explain_drops: ExplainDrops = False,
    quiet: Quiet = False,
) -> None:
    """Make a scenario from traces of the PyTorch profiler.

    Operators are found by the annotations that torch's pipeline schedules make, such as PP:0F0
    or Forward 0; its single-stage 1F1B makes none. Kernels tell their times. On the CPU,
    annotations include the wait for a message, which is taken off as far as the traces tell its
    end. If data-parallel copies of the pipeline are given too, the slowest is imported.
    """
    from pipesim.formats.profiler import import_profiler

    chosen = labels(iterations)
    imported(
        lambda: import_profiler(
            files, iterations=chosen, message_bytes=message_bytes, name=name, source=source
        ),
        files,
        output,
        quiet,
        explain_drops,
    )
