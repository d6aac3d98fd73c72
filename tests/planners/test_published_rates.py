"""Bubble rates that "Zero Bubble Pipeline Parallelism" computed for schedules like ours.

A rate is 1 − N·(F + B + W) / longest stage span: every stage takes the profiled times, and every
message arrives a profiled time after its operator ends and blocks nobody.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pipesim import Scenario, plan, simulate
from pipesim.timeline import Timeline

RATES = Path(__file__).parents[1] / "data" / "zero_bubble" / "bubble_rates.csv"
ROWS = list(csv.DictReader(RATES.read_text().splitlines()))


def run(row: dict[str, str]) -> Timeline:
    """One iteration with the row's times; interleaved stages are cut into single layers.

    There the last device's messages to the first take as long as all others.
    """
    planner, stages = row["planner"], int(row["stages"])
    times = {name: float(row[name]) for name in ("forward_ms", "backward_ms", "weight_ms")}
    scenario = Scenario(stages=stages, microbatches=int(row["microbatches"]), **times)
    if planner == "interleaved-1f1b":
        scenario = scenario.interleaved((int(row["layers"]) + 2) // stages)
    scenario = scenario.replaced(latency_ms=float(row["comm_ms"]))
    return simulate(scenario, plan(scenario, planner), "ideal", engine="compiled")


def rate(row: dict[str, str], timeline: Timeline) -> float:
    work_ms = sum(float(row[name]) for name in ("forward_ms", "backward_ms", "weight_ms"))
    return 1 - int(row["microbatches"]) * work_ms / timeline.stage_span_ms


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['planner']}-{row['model']}-{row['microbatches']}"
)
def test_bubble_rates_are_the_published_ones(row: dict[str, str]) -> None:
    """To the last digit of the table, but for interleaved 1F1B.

    The published calculation lets a chunk's first forward and last backward wait for their
    message only in the first micro-batch of each group, so its rates are a little lower.
    """
    timeline = run(row)
    if row["planner"] == "interleaved-1f1b":
        assert rate(row, timeline) == pytest.approx(float(row["bubble_rate"]), abs=0.005)
        assert rate(row, timeline) >= float(row["bubble_rate"])
    else:
        assert rate(row, timeline) == pytest.approx(float(row["bubble_rate"]), abs=0.00006)


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["planner"] != "interleaved-1f1b"],
    ids=lambda row: f"{row['planner']}-{row['model']}-{row['microbatches']}",
)
def test_peaks_are_the_published_ones(row: dict[str, str]) -> None:
    stages = int(row["stages"])
    most = {"1f1b": stages, "zb-h1": stages, "zb-h2": 2 * stages - 1}
    peaks = run(row).peak_activations
    assert peaks[0] == peaks.max() == most[row["planner"]]
