"""``pipesim import production``: a production trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.importing.shared import ExplainDrops, MessageBytes, Name, Output, Source, imported
from pipesim.cli.options import Quiet

__all__ = ["production"]

EXAMPLES = ("pipesim import production traces/production/trace-ST.parquet -o scenario.toml",)


def production(
    file: Annotated[Path, Argument(metavar="PARQUET", help="A production trace.")],
    output: Output,
    step: Annotated[
        int | None, Option(metavar="STEP", help="Use only this step (default: the usual ones).")
    ] = None,
    dp_rank: Annotated[
        int | None,
        Option(metavar="RANK", help="Use this data-parallel rank (default: the slowest one)."),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    explain_drops: ExplainDrops = False,
    quiet: Quiet = False,
) -> None:
    """Make a scenario from a production trace.

    The trace has one row for each operation, with the columns dp_rank, stage, rank, step,
    optype, start_ts, duration, seq_id, mc, mb_id, gmc. Steps in which ranks are missing or
    clocks jump are skipped.

    The scenario is that of the slowest worker (data-parallel rank), for which the others wait at
    the end of each step. What is slower than its peers is named; `pipesim explain` says what it
    costs.
    """
    from pipesim.formats.production import import_production

    imported(
        lambda: import_production(
            file,
            step=step,
            dp_rank=dp_rank,
            message_bytes=message_bytes,
            name=name,
            source=source,
        ),
        [file],
        output,
        quiet,
        explain_drops,
    )
