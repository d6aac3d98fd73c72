"""``pipesim export``: a plan in the format of another tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.actions import Upkeep, ends_of
from pipesim.cli.options import Chunks, Quiet, ScenarioOptions, TransportOptions, plan_from
from pipesim.cli.output import Outputs, note, progress
from pipesim.engine import simulate
from pipesim.errors import PipesimError
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.formats.timeline_csv import save_timeline_csv
from pipesim.formats.torch_csv import save_torch_csv
from pipesim.formats.torch_csv.actions import name
from pipesim.schedule import Schedule
from pipesim.text import listed
from pipesim.timeline import Timeline

__all__ = ["export"]

EXAMPLES = ("pipesim export plan.json --format chrome-trace -o plan-trace.json",)


def _save_trace(timeline: Timeline, name: str, path: Path) -> None:
    save_chrome_trace({name: timeline}, path)


def _save_csv(timeline: Timeline, name: str, path: Path) -> None:
    save_timeline_csv(timeline, path)


def _save_torch(schedule: Schedule, path: Path) -> None:
    save_torch_csv(schedule, path, "compute_only")


def _save_torch_comms(schedule: Schedule, path: Path) -> None:
    save_torch_csv(schedule, path, "compute_comms")


OF_A_RUN: dict[str, Callable[[Timeline, str, Path], None]] = {
    "chrome-trace": _save_trace,
    "timeline-csv": _save_csv,
}
"""Formats that hold times, which come from running the plan."""

OF_THE_PLAN: dict[str, Callable[[Schedule, Path], None]] = {
    "torch-csv": _save_torch,
    "torch-csv-comms": _save_torch_comms,
}
"""Formats that hold only the order of operators."""

FORMATS = (*OF_A_RUN, *OF_THE_PLAN)


def _left_out(schedule: Schedule) -> str:
    """Say which actions of a plan a file of compute alone leaves out; empty if none."""
    rows = schedule.actions or ()
    upkeep = (action for row in rows for action in row if isinstance(action, Upkeep))
    counts = Counter(map(name, (*(end for row in rows for end in ends_of(row)), *upkeep)))
    if not counts:
        return ""
    parts = listed([f"{count} {kind}" for kind, count in counts.items()])
    return f"left out: {parts}; torch adds its own (torch-csv-comms keeps the plan's)"


def _complete(incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


def export(
    plan: Annotated[Path, Argument(metavar="PLAN.json", help="A plan, from `pipesim plan`.")],
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The file to write.")],
    target: Annotated[
        str,
        Option(
            "--format",
            metavar="FORMAT",
            help=f"Format of the file: {', '.join(FORMATS)}.",
            autocompletion=_complete,
        ),
    ],
    scenario: ScenarioOptions,
    over: TransportOptions,
    chunks: Chunks = None,
    quiet: Quiet = False,
) -> None:
    """Write a plan for another tool.

    chrome-trace and timeline-csv hold its timeline: the plan is simulated first. torch-csv and
    torch-csv-comms hold only its order, for torch.distributed.pipelining to run.
    """
    if target not in FORMATS:
        raise PipesimError(f"unknown format {target!r}: one of {', '.join(FORMATS)}")
    outputs = Outputs({"--output": output}, scenario.scenario, plan)
    schedule = plan_from(plan)
    if target in OF_A_RUN:
        transport = over.build()
        what = scenario.build(plan=schedule, chunks=chunks)
        with progress(quiet) as report:
            report("simulating")
            timeline = simulate(what, schedule, transport)
        OF_A_RUN[target](timeline, f"{schedule.planner or 'plan'} over {transport}", output)
    else:
        if (scenario, over, chunks) != (ScenarioOptions(), TransportOptions(), None):
            raise PipesimError(f"{target} holds no times: leave out the scenario and the transport")
        OF_THE_PLAN[target](schedule, output)
        if target == "torch-csv" and (left_out := _left_out(schedule)):
            note(left_out, quiet=quiet)
    outputs.written(quiet=quiet)
