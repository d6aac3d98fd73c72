"""``pipesim import KIND``: a scenario from a measured run, or a plan from another tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli import parsing
from pipesim.cli.options import Quiet, parsed
from pipesim.cli.output import Outputs, progress, show
from pipesim.documents.scenario_toml import save_scenario
from pipesim.documents.words import described
from pipesim.formats.measurement import Measurement
from pipesim.text import counted

__all__ = ["megatron", "production", "profiler", "timeline", "torch_csv"]

Output = Annotated[Path, Option("--output", "-o", metavar="FILE", help="The scenario to write.")]
MessageBytes = Annotated[
    float, Option(metavar="BYTES", min=0, help="Size of a message; the files do not tell it.")
]
Name = Annotated[
    str, Option(metavar="TEXT", help="Name of the scenario (default: the first file's).")
]
Source = Annotated[str, Option(metavar="TEXT", help="Who measured it, and where.")]


def timeline(
    files: Annotated[list[Path], Argument(metavar="CSV...", help="Operator timelines, as CSV.")],
    output: Output,
    stages: Annotated[
        int | None,
        Option(
            metavar="S",
            min=1,
            help="Number of pipeline stages; iterations that lack one are skipped (default: as in "
            "the files).",
        ),
    ] = None,
    iterations: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Healthy iterations, such as 5,6 (default: all about as fast as the fastest).",
        ),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    quiet: Quiet = False,
) -> None:
    """Make a scenario from operator timelines.

    Operator times are medians over the healthy iterations. Each file has the columns
    iteration, stage, op, index, host_start_ms, host_end_ms, gpu_ms.
    """
    from pipesim.formats.operator_timeline import import_timelines

    chosen = _labels(iterations)
    _import(
        lambda: import_timelines(
            files,
            stages=stages,
            iterations=chosen,
            message_bytes=message_bytes,
            name=name,
            source=source,
        ),
        files,
        output,
        quiet,
    )


def production(
    file: Annotated[Path, Argument(metavar="PARQUET", help="A production trace.")],
    output: Output,
    step: Annotated[
        int | None, Option(metavar="STEP", help="Use only this step (default: medians over all).")
    ] = None,
    dp_rank: Annotated[
        int | None, Option(metavar="RANK", help="Use only this data-parallel rank (default: all).")
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    quiet: Quiet = False,
) -> None:
    """Make a scenario from a production trace.

    The trace has one row for each operation, with the columns dp_rank, stage, rank, step,
    optype, start_ts, duration, seq_id, mc, mb_id, gmc. Steps in which ranks are missing or
    clocks jump are skipped.
    """
    from pipesim.formats.production import import_production

    _import(
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
    )


def megatron(
    files: Annotated[list[Path], Argument(metavar="LOG...", help="Logs of Megatron-LM.")],
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
        Option(metavar="LIST", help="Iterations, such as 5,6 (default: all but a slow first one)."),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    quiet: Quiet = False,
) -> None:
    """Make a scenario from training logs of Megatron-LM.

    If Megatron-LM ran with --timing-log-level 2 --timing-log-option all, its log holds the times
    of every stage. Otherwise operator times are guessed from the iteration time.
    """
    from pipesim.formats.megatron import import_megatron

    chosen = _labels(iterations)
    _import(
        lambda: import_megatron(
            files,
            stages=stages,
            microbatches=microbatches,
            iterations=chosen,
            message_bytes=message_bytes,
            name=name,
            source=source,
        ),
        files,
        output,
        quiet,
    )


def profiler(
    files: Annotated[
        list[Path],
        Argument(metavar="JSON...", help="Traces of one pipeline, one per rank (.json, .json.gz)."),
    ],
    output: Output,
    iterations: Annotated[
        str | None,
        Option(metavar="LIST", help="Profiler steps, such as 5,6 (default: all complete ones)."),
    ] = None,
    message_bytes: MessageBytes = 0.0,
    name: Name = "",
    source: Source = "",
    quiet: Quiet = False,
) -> None:
    """Make a scenario from traces of the PyTorch profiler.

    Operators are found by the annotations that torch's pipeline schedules make, such as PP:0F0
    or Forward 0.
    """
    from pipesim.formats.profiler import import_profiler

    chosen = _labels(iterations)
    _import(
        lambda: import_profiler(
            files, iterations=chosen, message_bytes=message_bytes, name=name, source=source
        ),
        files,
        output,
        quiet,
    )


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


def _labels(iterations: str | None) -> list[str] | None:
    return None if iterations is None else parsed("--iterations", parsing.names, iterations)


def _import(
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
