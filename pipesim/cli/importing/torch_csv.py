"""``pipesim import torch-csv``: a schedule of torch.distributed.pipelining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.importing.shared import ExplainDrops, show_tallies
from pipesim.cli.options import Quiet
from pipesim.cli.output import Outputs, show
from pipesim.engine import Runs, deadlocked
from pipesim.formats.torch_csv.actions import in_torch_letters
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.target import target
from pipesim.text import counted, numbers
from pipesim.transport import Nccl

__all__ = ["torch_csv"]

EXAMPLES = ("pipesim import torch-csv schedule.csv -o plan.json",)


def torch_csv(
    file: Annotated[Path, Argument(metavar="CSV", help="A schedule, one line per rank.")],
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The plan to write.")],
    explain_drops: ExplainDrops = False,
    quiet: Quiet = False,
) -> None:
    """Make a plan from a schedule of torch.distributed.pipelining.

    The plan keeps all that the file says: operators, and where there are any, sends and receives
    in their order, overlaps, and UNSHARD, RESHARD and REDUCE_GRAD.
    """
    from pipesim.documents.plan_json import save_plan
    from pipesim.formats.torch_csv import import_torch_csv

    outputs = Outputs({"--output": output}, file)
    imported = import_torch_csv(file)
    schedule = target("torch").made(imported.schedule)
    save_plan(schedule, output)
    if not quiet:
        show(
            f"{counted(schedule.stages, 'stage')} on {counted(schedule.devices, 'rank')} × "
            f"{counted(schedule.microbatches, 'micro-batch')}",
            f"rank of each stage: {numbers(schedule.placement)}",
            f"peak activations of each rank: {numbers(_peaks(schedule))}",
            "",
        )
        show_tallies(imported.tallies, explain_drops)
        notes = (*imported.notes, *_hangs(schedule))
        show(*(f"- {text}" for text in notes))
    outputs.written(quiet=quiet)


def _peaks(schedule: Schedule) -> list[float]:
    """Most activations that each rank holds; its order alone decides, whatever operators take."""
    scenario = Scenario(
        stages=schedule.stages, microbatches=schedule.microbatches, placement=schedule.placement
    )
    peaks = Runs(schedule).timeline(target("torch").adapted(scenario)).peak_activations
    return [float(peak) for peak in scenario.in_micro_batches(peaks)]


def _hangs(schedule: Schedule) -> list[str]:
    """Whether the file's own order of sends and receives hangs, and where."""
    if not schedule.communicates:
        return []
    waits = deadlocked(schedule, "exchange")
    if not waits:
        return ["its sends and receives run in this order, even where each blocks its rank"]
    over_nccl = (
        "hangs where messages are too large for NCCL's buffers"
        if deadlocked(schedule, Nccl(p2p_streams="peer"))
        else "runs"
    )
    return [
        f"with blocking sends this hangs: {in_torch_letters('; '.join(waits))}",
        "torch does not block in a send, and waits for a receive in its operator: over gloo the "
        f"file runs; over NCCL, where the messages of two ranks share a stream, it {over_nccl}",
    ]
