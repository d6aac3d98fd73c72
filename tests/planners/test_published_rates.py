"""Bubble rates that "Zero Bubble Pipeline Parallelism" computed for schedules like ours.

A rate is 1 − N·(F + B + W) / longest stage span: every stage takes the profiled times, and every
message arrives a profiled time after its operator ends and blocks nobody. Stages have 3 layers
each, and the first and the last one layer less (22 = 8 × 3 − 2, 46 = 16 × 3 − 2).
"""

from __future__ import annotations

import csv

import pytest

from pipesim import Scenario, plan, simulate
from pipesim.timeline import Timeline
from tests import ROOT

TABLE = ROOT / "traces" / "zero_bubble_throughput.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
PLANNERS = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved-1f1b",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-1p": "zb-auto",
    "ZB-2p": "zb-auto",
}
PEAKS = {"1F1B": (1, 0), "ZB-H1": (1, 0), "ZB-H2": (2, -1), "ZB-1p": (1, 0), "ZB-2p": (2, 0)}
"""Most activations on a device, as a·D + b; what ZB-1p and ZB-2p may hold."""
IDS = [f"{row['system']}-{row['model']}-{row['microbatches']}" for row in ROWS]


def run(row: dict[str, str]) -> Timeline:
    """One iteration with the row's times; interleaved stages are cut into single layers.

    There the last device's messages to the first take as long as all others.
    """
    stages = int(row["stages"])
    times = {name: float(row[name]) for name in ("forward_ms", "backward_ms", "weight_ms")}
    scenario = Scenario(stages=stages, microbatches=int(row["microbatches"]), **times)
    if row["system"] == "1F1B-I":
        scenario = scenario.interleaved((int(row["layers"]) + 2) // stages)
    scenario = scenario.replaced(latency_ms=float(row["comm_ms"]))
    if row["system"] in ("ZB-1p", "ZB-2p"):
        scenario = scenario.replaced(activation_limit=PEAKS[row["system"]][0] * stages)
    schedule = plan(scenario, PLANNERS[row["system"]])
    return simulate(scenario, schedule, "ideal", engine="compiled")


def rate(row: dict[str, str], timeline: Timeline) -> float:
    work_ms = sum(float(row[name]) for name in ("forward_ms", "backward_ms", "weight_ms"))
    return 1 - int(row["microbatches"]) * work_ms / timeline.stage_span_ms


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_bubble_rates_are_the_published_ones(row: dict[str, str]) -> None:
    """To the last digit of the table, but for interleaved 1F1B.

    The published calculation lets a chunk's first forward and last backward wait for their
    message only in the first micro-batch of each group, so its rates are a little lower.
    """
    timeline, published = run(row), float(row["bubble_rate_theory"])
    if row["system"] == "1F1B-I":
        assert rate(row, timeline) == pytest.approx(published, abs=0.005)
        assert rate(row, timeline) >= published
    else:
        assert rate(row, timeline) == pytest.approx(published, abs=0.00006)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["system"] in PEAKS], ids=[i for i in IDS if "-I-" not in i]
)
def test_peaks_are_the_published_ones(row: dict[str, str]) -> None:
    often, more = PEAKS[row["system"]]
    most = often * int(row["stages"]) + more
    peaks = run(row).peak_activations
    if row["system"] in ("ZB-1p", "ZB-2p"):
        assert peaks.max() <= most
    else:
        assert peaks[0] == peaks.max() == most
