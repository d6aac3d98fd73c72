"""``pipesim calibrate``: fit the constants of testbeds to runs measured there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Argument, Option

from pipesim.cli.options import Quiet
from pipesim.cli.output import Column, Outputs, note, progress, show, show_rows
from pipesim.errors import ScenarioError
from pipesim.fidelity.calibration import Calibration, Calibrator
from pipesim.fidelity.calibration_file import save_calibration
from pipesim.fidelity.runs import load_runs
from pipesim.fidelity.testbed import CONSTANTS
from pipesim.formats.measurement import Measurement
from pipesim.text import listed, plain

__all__ = ["calibrate"]

EXAMPLES = (
    "pipesim calibrate traces/measured_iterations.csv --timelines traces/a10_timelines "
    "-o calibration.toml",
    "pipesim calibrate runs.csv -o mine.toml && pipesim compare --testbed mine.toml",
)


def calibrate(
    measured: Annotated[Path, Argument(metavar="MEASURED.csv", help="Measured runs.")],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="The calibration to write.")
    ],
    timelines: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder of operator timelines (CSV) from one of the testbeds."),
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

    Each testbed gets at most four, such as the bandwidth of its network or the latency of a
    delegate; none is for a single run. Fifty runs take some minutes.

    Two short runs are enough for a start. The file has a line for each run, with these columns
    (others are ignored): testbed, model, stages, microbatches, gpus_per_node (ranks that send at
    once through one host), message_mib, system (1f1b, zerobubble, pipemorph-cpu, pipemorph),
    slow_links (such as 0), slow_sends (such as 0>1 1>0), delay_ms (of each),
    delegates_per_direction (0 without delegates), healthy_ms and slow_ms (median iteration without
    the delay and with it). For pipemorph-cpu without a delay, slow_ms is that with all messages
    delegated. `--testbed` takes the result.
    """
    outputs = Outputs({"--output": output}, measured)
    runs = load_runs(measured)
    with progress(quiet) as report:
        calibrator = Calibrator(runs, _timelines(timelines), progress=report)
        calibration = calibrator.calibrate()
        if leave_out:
            calibration = calibration.checked(calibrator.leave_one_setting_out())
    save_calibration(calibration, output)
    _show(calibration)
    if leave_out and calibrator.alone:
        note(
            f"{listed(calibrator.alone)}: there is one setting, so how far off predictions of "
            "others are cannot be known",
            quiet=quiet,
        )
    outputs.written(quiet=quiet)


def _timelines(folder: Path | None) -> Measurement | None:
    if folder is None:
        return None
    from pipesim.formats.operator_timeline import import_timelines

    files = sorted(folder.glob("*.csv"))
    if not files:
        raise ScenarioError(f"--timelines {folder}: the folder holds no CSV file")
    return import_timelines(files)


def _value(constant: float | None) -> str:
    if constant is None:
        return "–"
    return plain(constant) if np.isfinite(constant) else "unlimited"


def _show(calibration: Calibration) -> None:
    names = [
        name
        for name in CONSTANTS
        if any(name in testbed.constants for testbed in calibration.testbeds.values())
    ]
    testbeds = calibration.testbeds
    columns = [
        Column(
            testbed,
            [_value(testbeds[testbed].constants.get(name)) for name in names],
        )
        for testbed in testbeds
    ]
    show_rows(
        Column("constant", names, numeric=False),
        [
            Column("unit", [CONSTANTS[name].unit for name in names], numeric=False),
            *columns,
            Column("meaning", [CONSTANTS[name].meaning for name in names], numeric=False),
        ],
    )
    streams = ", ".join(f"{name}: {one.p2p_streams}" for name, one in testbeds.items())
    lines = [
        f"NCCL kernels share a stream per  {streams}",
        f"mean absolute error              {100 * calibration.residual:.2f} % over "
        f"{len(calibration.fitted_to)} runs",
    ]
    if calibration.left_out is not None:
        lines.append(
            f"leaving one setting out          {100 * calibration.left_out:.2f} %: each setting "
            "predicted from a fit without it"
        )
    show("", *lines)
