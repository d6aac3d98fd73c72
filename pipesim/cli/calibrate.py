"""``pipesim calibrate``: fit the constants of testbeds to runs measured there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from typer import Argument, Option

from pipesim.cli.options import Quiet
from pipesim.cli.output import Column, Outputs, progress, show, show_rows
from pipesim.errors import ScenarioError
from pipesim.text import counted, listed, plain

if TYPE_CHECKING:
    from pipesim.fidelity.calibration import Calibration
    from pipesim.fidelity.runs import MeasuredRun
    from pipesim.fidelity.testbed import Testbed
    from pipesim.formats.measurement import Measurement

__all__ = ["calibrate"]

EXAMPLES = (
    "pipesim calibrate traces/measured_iterations.csv traces/delegation_iterations.csv "
    "--timelines traces/a10_timelines --operators traces/h800_operator_times.csv "
    "-o calibration.toml",
    "pipesim calibrate runs.csv -o mine.toml && pipesim compare --testbed mine.toml",
)


def calibrate(
    measured: Annotated[
        list[Path],
        Argument(metavar="MEASURED.csv", help="Measured runs, with or without a delay."),
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="The calibration to write.")
    ],
    timelines: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder of operator timelines (CSV) from one of the testbeds."),
    ] = None,
    operators: Annotated[
        Path | None,
        Option(metavar="FILE", help="Operator times of models, a row for each stage (CSV)."),
    ] = None,
    leave_out: Annotated[
        bool,
        Option(
            "--leave-out/--no-leave-out",
            help="Also predict each setting from a fit without it.",
        ),
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Fit the constants of each testbed to measured runs.

    Each testbed gets at most four that are fitted, such as the latency of a delegate, and only
    those that the runs can tell; what operator timelines tell is read off them. None is for a
    single run. Fifty runs take some minutes.

    Two short runs are enough for a start. The file has a line for each run, with these columns
    (others are ignored): testbed, model, stages, microbatches, gpus_per_node (ranks that send at
    once through one host), message_mib, system (1f1b, zerobubble, pipemorph-cpu, pipemorph),
    slow_links (such as 0), slow_sends (such as 0>1 1>0), delay_ms (of each),
    delegates_per_direction (0 without delegates), healthy_ms and slow_ms (median iteration without
    the delay and with it). For pipemorph-cpu without a delay, slow_ms is that with all messages
    delegated. `--testbed` takes the result.
    """
    from pipesim.fidelity.calibration import Calibrator
    from pipesim.fidelity.calibration_file import save_calibration
    from pipesim.fidelity.fit_rows import load_fit_rows
    from pipesim.fidelity.profiles import load_operator_times

    outputs = Outputs({"--output": output}, *measured, operators)
    runs = load_fit_rows(measured)
    times = load_operator_times(operators) if operators else None
    with progress(quiet) as report:
        calibrator = Calibrator(runs, _timelines(timelines), times, progress=report)
        calibration = calibrator.checked() if leave_out else calibrator.calibrate()
    save_calibration(calibration, output)
    _show(calibration, runs, leave_out)
    outputs.written(quiet=quiet)


def _timelines(folder: Path | None) -> Measurement | None:
    if folder is None:
        return None
    from pipesim.formats.operator_timeline import import_timelines

    files = sorted(folder.glob("*.csv"))
    if not files:
        raise ScenarioError(f"--timelines {folder}: the folder holds no CSV file")
    return import_timelines(files)


def _value(testbed: Testbed, name: str) -> str:
    if name not in testbed.constants:
        return "–"
    value = testbed[name]
    shown = plain(value) if np.isfinite(value) else "unlimited"
    return f"{shown} (read)" if name in testbed.read else shown


def _show(calibration: Calibration, runs: Sequence[MeasuredRun], checked: bool) -> None:
    from pipesim.fidelity.constants import CONSTANTS

    testbeds = calibration.testbeds
    show_rows(
        Column("constant", list(CONSTANTS), numeric=False),
        [
            Column("unit", [one.unit for one in CONSTANTS.values()], numeric=False),
            *(
                Column(name, [_value(testbed, constant) for constant in CONSTANTS])
                for name, testbed in testbeds.items()
            ),
            Column("meaning", [one.meaning for one in CONSTANTS.values()], numeric=False),
            Column("fixed by", [one.fixed_by for one in CONSTANTS.values()], numeric=False),
        ],
    )
    lines = [
        "(read): read off the timelines, not fitted. –: these runs cannot tell it, or it changes "
        "their error by less than 0.1 %.",
        "",
        f"mean absolute error      {100 * calibration.residual:.2f} % over "
        f"{counted(len(runs), 'run')}",
    ]
    if calibration.left_out is not None:
        lines.append(
            f"leaving one setting out  {100 * calibration.left_out:.2f} %: each setting predicted "
            "from a fit without it"
        )
    alone = [name for name, testbed in testbeds.items() if not testbed.errors]
    if alone and checked:
        lines.append(f"{listed(alone)}: a single setting, so nothing says how far off others are")
    for name in testbeds:
        lines += _untold(name, [run for run in runs if run.testbed == name])
    show("", *lines)


def _untold(name: str, runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """What the runs of a testbed cannot tell, however they came out."""
    from pipesim.fidelity.fitting import RUNS_EACH

    if len(runs) < RUNS_EACH:
        yield f"{name}: a single run, and a constant needs {RUNS_EACH}: none is fitted"
    for delegated, how in ((True, "through delegates"), (False, "over NCCL")):
        if all(run.delegated is not delegated for run in runs):
            yield f"{name}: no run is {how}, so what messages cost there is taken as nothing"
