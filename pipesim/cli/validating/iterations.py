"""Runs of which every iteration was measured: dynamic ones, and those that delegate all."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pipesim.cli.output import Column, note, progress, show, show_json, show_rows
from pipesim.cli.validating.figures import interval_column, show_scores
from pipesim.delays import DelayTrace
from pipesim.errors import ScenarioError
from pipesim.fidelity.calibration import Calibration
from pipesim.fidelity.delegation import load_delegation, predict_delegation
from pipesim.fidelity.dynamic import load_dynamic, predict_dynamic, trace_beside
from pipesim.fidelity.iterations import IterationScores
from pipesim.formats.delay_trace import load_trace
from pipesim.text import fixed, percent

__all__ = ["validate_delegation", "validate_dynamic"]


def validate_dynamic(
    measured: Path, calibration: Calibration, trace: Path | None, json: bool, quiet: bool
) -> None:
    """Predict the iterations of runs under changing delays and print how far off that is."""
    runs = load_dynamic(measured)
    rates = sorted({one.changes for one in runs})
    if trace and len(rates) > 1:
        raise ScenarioError(
            f"--trace gives the delays of one rate of change, but the runs of {measured} are of "
            f"several ({', '.join(rates)}): leave it out, and put the trace of each beside them"
        )
    delays = cache(load_trace)

    def trace_of(changes: str) -> DelayTrace:
        return delays(trace or trace_beside(measured, changes))

    with progress(quiet) as report:
        report(f"predicting {len(runs)} runs")
        scores = predict_dynamic(runs, calibration.testbed, lambda one: trace_of(one.changes))
    _show(scores, "changes\nevery ms", json, quiet)


def validate_delegation(measured: Path, calibration: Calibration, json: bool, quiet: bool) -> None:
    """Predict runs that delegate all transfers and print how far off that is."""
    runs = load_delegation(measured)
    without = [one for one in runs if not one.has_healthy]
    if without:
        testbed = calibration.testbed(without[0].measured)
        runs = tuple(one.with_healthy(testbed.healthy_ms) for one in runs)
    with progress(quiet) as report:
        report(f"predicting {len(runs)} runs")
        scores = predict_delegation(runs, calibration.testbed)
    _show(scores, "experiment", json, quiet)
    if without and not json and not quiet:
        note(
            f"{without[0].system} runs have no healthy iteration: it is the median of the model's "
            "zero-bubble runs that the testbed was fitted to."
        )
        for one in runs:
            if not one.has_healthy:
                note(f"{one.measured.place}: left out, there are none of {one.measured.model}.")


def _show(scores: IterationScores, name: str, json: bool, quiet: bool) -> None:
    if json:
        show_json(scores.as_dict())
        return
    if not quiet:
        _show_runs(scores, name)
    show_scores(scores, scores.by_system())
    show("", f"Single iterations: {percent(scores.each_mape, 1)} mean absolute error.")


def _show_runs(scores: IterationScores, name: str) -> None:
    predictions = scores.predictions
    runs = [one.measured for one in predictions]
    show_rows(
        Column(name, [one.name for one in predictions], numeric=False),
        [
            Column("model", [run.model for run in runs], numeric=False),
            Column("system", [one.system for one in predictions], numeric=False),
            Column("slow\nlinks", [run.slow_links for run in runs], numeric=False),
            Column("delay\nms", [f"{run.delay_ms:g}" if run.delay_ms else "" for run in runs]),
            Column("from\niteration", [str(one.settled.first) for one in predictions]),
            Column("measured\nms", [f"{one.measured_ms:.1f}" for one in predictions]),
            Column("predicted\nms", [f"{one.predicted_ms:.1f}" for one in predictions]),
            Column("error\n%", [fixed(100 * error, 1, signed=True) for error in scores.errors]),
            *interval_column(predictions),
        ],
    )
    show("")
