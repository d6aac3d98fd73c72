"""Measured runs with a delayed link: predicted beside measured iteration times."""

from __future__ import annotations

from pathlib import Path

from pipesim.cli.output import Column, progress, show, show_json, show_rows
from pipesim.cli.validating.figures import interval_column, show_scores
from pipesim.fidelity.calibration import Calibration, predict_all
from pipesim.fidelity.runs import load_runs
from pipesim.fidelity.validation import Validation
from pipesim.text import fixed, percent

__all__ = ["validate_runs"]


def validate_runs(
    measured: Path, calibration: Calibration, json: bool, plot: Path | None, quiet: bool
) -> None:
    """Predict the runs of a CSV and print how far off that is."""
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
        show_json(validation.as_dict() | {"left_out": calibration.left_out})
    else:
        if not quiet:
            _show_runs(validation)
        _show_figures(validation)
        if calibration.left_out is not None:
            show(
                f"Of the {len(calibration.fitted_to)} runs of the calibration, each predicted from "
                "a fit without its setting: "
                f"{percent(calibration.left_out, 1)} mean absolute error."
            )


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
            Column("predicted\nms", [f"{one.predicted_ms:.1f}" for one in predictions]),
            *interval_column(predictions),
            Column("error\n%", [fixed(100 * one.error, 1, signed=True) for one in predictions]),
        ],
    )
    show("")


def _show_figures(validation: Validation) -> None:
    testbeds = validation.by_testbed()
    groups = {
        f"{testbed} {system}": one
        for testbed, own in testbeds.items()
        for system, one in own.by_system().items()
    }
    show_scores(validation, groups | testbeds)
