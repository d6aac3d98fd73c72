"""What real processes take, beside what the engine predicts; for a quiet machine.

``pytest benchmarks/bench_replay.py -n 0 -s`` prints a line for each run and checks the limits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from pipesim.engine import simulate
from pipesim.replay.prepare import replay
from pipesim.replay.report import Replayed
from pipesim.scenario import Scenario
from planners import plan

HEALTHY = Scenario()
SLOW = HEALTHY.with_delay(20, links=[0])

RUNS = {
    "zerobubble nccl, no delay": (HEALTHY, "zerobubble", "nccl", 390.0, 0.03),
    "zerobubble delegated, no delay": (HEALTHY, "zerobubble", "delegated", 390.0, 0.03),
    "1f1b exchange, no delay": (HEALTHY, "1f1b", "exchange", 450.0, 0.1),
    "zerobubble delegated, 20 ms": (SLOW, "zerobubble", "delegated", 440.0, 0.03),
    "pipemorph delegated, 20 ms": (SLOW, "pipemorph", "delegated", 410.0, 0.03),
    "zerobubble nccl, 20 ms": (SLOW, "zerobubble", "nccl", 800.0, 0.05),
}
START_MS = 3.0
"""Of logical starts from the prediction, which knows what a message takes here; the nominal one
does not. Physical starts are printed: they depend on what else the machine does."""


@pytest.fixture(scope="module")
def replays() -> Mapping[str, Replayed]:
    return {
        name: replay(scenario, plan(scenario, planner), over)
        for name, (scenario, planner, over, _, _) in RUNS.items()
    }


@pytest.mark.parametrize("name", RUNS)
def test_iteration(replays: Mapping[str, Replayed], name: str) -> None:
    run = replays[name]
    *_, wanted, within = RUNS[name]
    error = run.measured_ms / wanted - 1
    print(
        f"\n{name}: {run.measured_ms:.1f} ms, {100 * error:+.1f} % from nominal {wanted:.0f}; "
        f"{run.predicted_ms:.1f} predicted with {run.base_ms:.2f} ms a message, "
        f"{100 * run.error:+.1f} %; logical {run.logical_ms:.1f}; median start error "
        f"{run.median_start_error_ms:.1f} ms, from nominal {run.nominal_start_error_ms:.1f} ms, "
        f"of logical starts {run.logical_start_error_ms:.1f} ms; "
        f"threads up to {run.longest_lag_ms:.1f} ms late; "
        f"all {', '.join(f'{time:.1f}' for time in run.iterations_ms)}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    assert run.nominal.iteration_ms == pytest.approx(wanted)
    assert abs(error) <= within


@pytest.mark.parametrize("name", RUNS)
def test_starts(replays: Mapping[str, Replayed], name: str) -> None:
    error_ms = replays[name].logical_start_error_ms
    assert error_ms is not None
    assert error_ms <= START_MS


def test_head_of_line_blocking(replays: Mapping[str, Replayed]) -> None:
    measured = (
        replays["zerobubble nccl, 20 ms"].measured_ms
        - replays["zerobubble delegated, 20 ms"].measured_ms
    )
    order = plan(SLOW, "zerobubble")
    nccl, ideal = (simulate(SLOW, order, over).iteration_ms for over in ("nccl", "ideal"))
    print(f"\nHOL: {measured:.1f} ms measured, {nccl - ideal:.1f} ms predicted")
    assert abs(measured - (nccl - ideal)) <= 0.05 * nccl
