"""``pipesim export``: a plan in the format of another tool, checked for its runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim.actions import Batch, Upkeep, ends_of
from pipesim.cli.options import PlanOptions, Quiet, ScenarioOptions, TransportOptions
from pipesim.cli.output import Outputs, note, progress
from pipesim.documents.words import described
from pipesim.engine import simulate
from pipesim.errors import PipesimError
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.formats.timeline_csv import save_timeline_csv
from pipesim.formats.torch_csv import save_torch_csv
from pipesim.formats.torch_csv.actions import name
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.studies.retargeting import assumed_delays, retargeted
from pipesim.target import IDEAL, TARGETS, Target
from pipesim.text import counted, listed, milliseconds
from pipesim.timeline import Timeline
from pipesim.transport import Transport

__all__ = ["export"]

EXAMPLES = (
    "pipesim export plan.json --format chrome-trace -o plan-trace.json",
    "pipesim export --planner pipemorph --delay 20ms --link 0 --format torch-csv -o torch.csv",
)


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
    actions = [action for row in schedule.actions or () for action in row]
    kinds = [name(end) for end in ends_of(actions)]
    kinds += [name(action) for action in actions if isinstance(action, Upkeep)]
    counts = Counter(kinds)
    if not counts:
        return ""
    parts = listed([f"{count} {kind}" for kind, count in counts.items()])
    return f"left out: {parts}; torch adds its own (torch-csv-comms keeps the plan's)"


def _taken_apart(schedule: Schedule) -> str:
    """Say how many batches of a plan a file with sends and receives cannot hold; empty if none."""
    many = sum(isinstance(action, Batch) for row in schedule.actions or () for action in row)
    if not many:
        return ""
    batches = counted(many, "batch")
    return f"taken apart: {batches}; torch launches each message alone (--runtime torch plans so)"


def _complete(incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


def export(
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The file to write.")],
    form: Annotated[
        str,
        Option(
            "--format",
            metavar="FORMAT",
            help=f"Format of the file: {', '.join(FORMATS)}.",
            autocompletion=_complete,
        ),
    ],
    scenario: ScenarioOptions,
    planned: PlanOptions,
    over: TransportOptions,
    quiet: Quiet = False,
) -> None:
    """Write a plan for another tool.

    chrome-trace and timeline-csv hold its timeline: the plan is simulated first. torch-csv and
    torch-csv-comms hold only its order, for torch.distributed.pipelining to run. So a plan that is
    made here is made for --runtime torch, and one from a file is checked: if it was made for
    something else, a warning says what that costs, with the delays that it was made for and
    operators of 10 ms unless options say otherwise.
    """
    if form not in FORMATS:
        raise PipesimError(f"unknown format {form!r}: one of {', '.join(FORMATS)}")
    if form in OF_THE_PLAN and planned.runtime is None:
        planned = replace(planned, runtime=_RUNTIME)
    outputs = Outputs({"--output": output}, scenario.scenario, planned.plan)
    runtime = planned.target
    transport = over.build(runtime=runtime, planner=planned.made_by if runtime else "")
    notes = []
    with progress(quiet) as report:
        what, schedule = planned.build(scenario, transport, report)
        report("simulating")
        if form in OF_A_RUN:
            timeline = simulate(what, schedule, transport)
            OF_A_RUN[form](timeline, f"{schedule.planner or 'plan'} over {transport}", output)
        else:
            if planned.plan and runtime:
                given = scenario.build(plan=schedule, chunks=planned.chunks)
                if scenario == ScenarioOptions():
                    given = assumed_delays(schedule, given)
                notes = _misfit(given, schedule, runtime, transport)
            OF_THE_PLAN[form](schedule, output)
    lost = {"torch-csv": _left_out, "torch-csv-comms": _taken_apart}
    if form in lost and (text := lost[form](schedule)):
        notes.insert(0, text)
    for text in notes:
        note(text, quiet=quiet)
    outputs.written(quiet=quiet)


_RUNTIME = "torch"
"""What runs the formats of an order."""


def _misfit(scenario: Scenario, schedule: Schedule, runtime: Target, over: Transport) -> list[str]:
    """Warn in one line that a plan was not made for the runtime, if so, and what that costs."""
    found = retargeted(scenario, schedule, runtime, over)
    if found is None:
        return []
    whose = TARGETS.get(schedule.assumed.runtime or "", IDEAL).title
    there = f"{milliseconds(found.there_ms)} there instead of {milliseconds(found.meant_ms)}"
    if found.there_peak > found.meant_peak:
        there += (
            f", holding up to {found.there_peak:g} activations instead of {found.meant_peak:g} on "
            f"device {schedule.placement[0]}"
        )
    planner = found.planned.planner
    gain = (
        f"{milliseconds(found.planned_ms)} if planned for it (pipesim plan --planner {planner} "
        f"--runtime {runtime.name})"
        if found.planned_ms < found.there_ms
        else f"{planner} has no shorter plan for it"
    )
    return [
        f"warning: {runtime.described}, and this plan was made for {whose}: it takes {there}, and "
        f"{gain}; predicted over {found.over} for {described(scenario)}"
    ]
