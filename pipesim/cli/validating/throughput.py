"""Measured throughput: predicted from the profile and one row of each model."""

from __future__ import annotations

from pathlib import Path

from pipesim.cli.output import Column, note, progress, show, show_json, show_rows
from pipesim.cli.validating.figures import interval_column, show_scores
from pipesim.fidelity.throughput import ThroughputScores, load_throughput, predict_throughput
from pipesim.text import fixed

__all__ = ["validate_throughput"]


def validate_throughput(measured: Path, json: bool, quiet: bool) -> None:
    """Predict the rows of a CSV and print how far off that is."""
    rows = load_throughput(measured)
    with progress(quiet) as report:
        report(f"predicting {sum(row.iteration_ms is not None for row in rows)} iterations")
        scores = predict_throughput(rows)
    if json:
        show_json(scores.as_dict())
        return
    if not quiet:
        _show_rows(scores)
    show_scores(scores, scores.by_system())
    if not quiet:
        for model, (first, factor) in scores.scaled_on.items():
            note(
                f"{model}: runs take {factor:.3f} times what the profile says, from "
                f"{first.system} with {first.microbatches} micro-batches, which is not predicted."
            )
        note(
            "Throughput has three digits; rounding alone is up to "
            f"{fixed(100 * scores.rounding, 1)} %."
        )


def _show_rows(scores: ThroughputScores) -> None:
    predictions = scores.predictions
    show_rows(
        Column("model", [one.measured.model for one in predictions], numeric=False),
        [
            Column("micro-\nbatches", [str(one.measured.microbatches) for one in predictions]),
            Column("system", [one.system for one in predictions], numeric=False),
            Column("measured\nms", [f"{one.measured_ms:.1f}" for one in predictions]),
            Column("predicted\nms", [f"{one.predicted_ms:.1f}" for one in predictions]),
            *interval_column(predictions),
            Column("error\n%", [fixed(100 * error, 1, signed=True) for error in scores.errors]),
        ],
    )
    show("")
