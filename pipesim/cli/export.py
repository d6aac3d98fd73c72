"""``pipesim export``: a plan, run over a transport, in the format of another tool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.options import Chunks, Quiet, ScenarioOptions, TransportOptions
from pipesim.cli.output import check_outputs, note, progress
from pipesim.engine import simulate
from pipesim.errors import PipesimError
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.formats.plan_json import load_plan
from pipesim.formats.timeline_csv import save_timeline_csv
from pipesim.timeline import Timeline

__all__ = ["export"]


def _save_trace(timeline: Timeline, name: str, path: Path) -> None:
    save_chrome_trace({name: timeline}, path)


def _save_csv(timeline: Timeline, name: str, path: Path) -> None:
    save_timeline_csv(timeline, path)


FORMATS: dict[str, Callable[[Timeline, str, Path], None]] = {
    "chrome-trace": _save_trace,
    "timeline-csv": _save_csv,
}


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
            help=f"One of {', '.join(FORMATS)}.",
            autocompletion=_complete,
        ),
    ],
    scenario: ScenarioOptions,
    over: TransportOptions,
    chunks: Chunks = 1,
    quiet: Quiet = False,
) -> None:
    """Run a plan and write its timeline for another tool."""
    if target not in FORMATS:
        raise PipesimError(f"unknown format {target!r}: one of {', '.join(FORMATS)}")
    check_outputs({"--output": output}, scenario.scenario, plan)
    schedule = load_plan(plan)
    transport = over.build()
    what = scenario.build(plan=schedule, chunks=chunks)
    with progress(quiet) as report:
        report("simulating")
        timeline = simulate(what, schedule, transport)
    FORMATS[target](timeline, f"{schedule.planner or 'plan'} over {transport}", output)
    note(f"wrote {output}", quiet=quiet)
