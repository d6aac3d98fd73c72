"""``pipesim import megatron``: the logs of Megatron-LM and its relatives."""

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

__all__ = ["megatron"]

EXAMPLES = ("pipesim import megatron --stages 4 --microbatches 12 train.log -o scenario.toml",)


def megatron(
    files: Annotated[list[Path], Argument(metavar="LOG...", help="Logs of one run.")],
    output: Output,
    stages: Annotated[
        int | None,
        Option(metavar="S", min=1, help="Number of pipeline stages (default: from the log)."),
    ] = None,
    microbatches: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Number of micro-batches per iteration (default: from the log).",
        ),
    ] = None,
    iterations: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Iterations, such as 5,6 or 20-40 (default: all that are alike, without "
            "start-up).",
        ),
    ] = None,
    dp_rank: Annotated[
        int | None,
        Option(
            metavar="R",
            min=0,
            help="Data-parallel rank (default: all, or the slowest if some stand apart).",
        ),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    explain_drops: ExplainDrops = False,
    quiet: Quiet = False,
) -> None:
    """Make a scenario from training logs of Megatron-LM and its relatives.

    Of Megatron-LM from v1 on and AMD's fork, Megatron-DeepSpeed, GPT-NeoX, DeepSpeed's pipelines,
    NeMo and nanotron. If Megatron-LM ran with --timing-log-level 2 --timing-log-option all, its
    log holds the times of every stage; otherwise operator times are guessed from what it holds.

    Only iterations that are alike count: of one batch size, without start-up, and of the fastest
    of several levels of time. If some data-parallel ranks stand apart, the slowest is taken.
    """
    from pipesim.formats.megatron import import_megatron

    chosen = labels(iterations)
    imported(
        lambda: import_megatron(
            files,
            stages=stages,
            microbatches=microbatches,
            iterations=chosen,
            dp_rank=dp_rank,
            message_bytes=message_bytes,
            name=name,
            source=source,
        ),
        files,
        output,
        quiet,
        explain_drops,
    )
