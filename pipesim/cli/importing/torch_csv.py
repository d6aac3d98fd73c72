"""``pipesim import torch-csv``: a schedule of torch.distributed.pipelining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.options import Quiet
from pipesim.cli.output import Outputs, show
from pipesim.text import counted

__all__ = ["torch_csv"]

EXAMPLES = ("pipesim import torch-csv schedule.csv -o plan.json",)


def torch_csv(
    file: Annotated[Path, Argument(metavar="CSV", help="A schedule, one line per rank.")],
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The plan to write.")],
    quiet: Quiet = False,
) -> None:
    """Make a plan from a schedule of torch.distributed.pipelining.

    The schedule may hold communication or not; the plan takes only the order of operators.
    """
    from pipesim.documents.plan_json import save_plan
    from pipesim.formats.torch_csv import load_torch_csv

    outputs = Outputs({"--output": output}, file)
    schedule = load_torch_csv(file)
    save_plan(schedule, output)
    if not quiet:
        show(
            f"{counted(schedule.stages, 'stage')} on {counted(schedule.devices, 'device')} × "
            f"{counted(schedule.microbatches, 'micro-batch')}"
        )
    outputs.written(quiet=quiet)
