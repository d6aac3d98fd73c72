"""``pipesim validate``: compare predictions, or replays, with measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.options import Json, Quiet
from pipesim.cli.output import Column, Outputs, progress, show, show_json, show_rows
from pipesim.cli.validating.production import validate_production
from pipesim.errors import ScenarioError
from pipesim.fidelity.calibration import Calibration, predict_all
from pipesim.fidelity.calibration_file import load_calibration
from pipesim.fidelity.runs import load_runs
from pipesim.fidelity.validation import TELLING_APART, Validation
from pipesim.text import fixed

__all__ = ["validate"]

EXAMPLES = (
    "pipesim validate traces/measured_iterations.csv --calibration traces/calibration.toml",
    "pipesim validate traces/production/trace-ST.parquet --format production",
)

FORMATS = ("runs", "production")


def validate(
    measured: Annotated[
        Path, Argument(metavar="FILE", help="Measured runs (CSV), or a production trace (parquet).")
    ],
    calibration: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="The testbeds' constants, from `pipesim calibrate` (for runs)."
        ),
    ] = None,
    source: Annotated[
        str,
        Option(
            "--format",
            metavar="FORMAT",
            help="What FILE holds: runs, to be predicted, or production, for a replay check.",
        ),
    ] = "runs",
    json: Json = False,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw predicted against measured times (.png, .svg, .pdf)."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Predict measured runs and say how far off the predictions are.

    For each run, the iteration under the delay is predicted from its shape, its healthy
    iteration and the constants of its testbed.

    A production trace gets a replay check instead, which predicts nothing: each step is run
    again from its own operator times. Its length shows whether the dependencies are right.
    """
    outputs = Outputs({"--plot": plot}, measured, calibration)
    if source == "production":
        if calibration or plot:
            option = "--calibration" if calibration else "--plot"
            raise ScenarioError(f"{option} is for runs, not for production traces")
        validate_production(measured, json, quiet)
    elif source == "runs":
        if calibration is None:
            raise ScenarioError("measured runs need --calibration FILE, see `pipesim calibrate`")
        _validate_runs(measured, load_calibration(calibration), json, plot, quiet)
    else:
        raise ScenarioError(f"unknown format {source!r}: {' or '.join(FORMATS)}")
    outputs.written(quiet=quiet)


def _validate_runs(
    measured: Path, calibration: Calibration, json: bool, plot: Path | None, quiet: bool
) -> None:
    runs = load_runs(measured)
    with progress(quiet) as report:
        report(f"predicting {len(runs)} runs")
        validation = Validation(predict_all(runs, calibration))
        if plot:
            from pipesim.plot import save
            from pipesim.plot.validation import scatter

            report("drawing")
            save(scatter(validation), plot)
    if json:
        show_json(validation.as_dict())
    else:
        if not quiet:
            _show_runs(validation)
        _show_figures(validation)


def _show_runs(validation: Validation) -> None:
    predictions = validation.predictions
    runs = [one.measured for one in predictions]
    show_rows(
        Column("testbed", [run.testbed for run in runs], numeric=False),
        [
            Column("model", [run.model for run in runs], numeric=False),
            Column("system", [run.system for run in runs], numeric=False),
            Column("slow\nlinks", [run.slow_links for run in runs], numeric=False),
            Column("delay\nms", [f"{run.delay_ms:g}" for run in runs]),
            Column("measured\nms", [f"{run.slow_ms:.1f}" for run in runs]),
            Column("predicted\nms", [f"{one.slow_ms:.1f}" for one in predictions]),
            Column("error\n%", [fixed(100 * one.error, 1, signed=True) for one in predictions]),
        ],
    )
    show("")


def _show_figures(validation: Validation) -> None:
    groups: dict[str, Validation] = {}
    for testbed, own in validation.by_testbed().items():
        groups |= {f"{testbed} {system}": one for system, one in own.by_system().items()}
    groups |= {f"{testbed}": one for testbed, one in validation.by_testbed().items()}
    groups["all"] = validation

    def cells(figure: Callable[[Validation], float], *, signed: bool = False) -> list[str]:
        return [fixed(100 * figure(one), 1, signed=signed) for one in groups.values()]

    show_rows(
        Column("runs of", list(groups), numeric=False),
        [
            Column("runs", [str(len(one.predictions)) for one in groups.values()]),
            Column("mean abs.\nerror %", cells(lambda one: one.mape)),
            Column("bias\n%", cells(lambda one: one.bias, signed=True)),
            Column("worst\n%", cells(lambda one: one.worst)),
        ],
    )
    rankings = validation.rankings()
    if rankings:
        right = sum(rankings.values())
        show(
            "",
            f"Systems more than {100 * TELLING_APART:.0f} % apart are ranked as measured in "
            f"{right} of {len(rankings)} settings.",
        )
