"""Round trips: a known timeline, traced in each dialect, is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.engine import simulate
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.profiler import import_profiler
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from tests.formats.profiler_traces import DIALECTS, MADE, STORED, Dialect, saved, traced
from tests.strategies import cases, examples

FIELDS = {
    "F": "forward_ms",
    "B": "backward_ms",
    "W": "weight_ms",
    "BW": "fused_backward_ms",
}
WITHIN_MS = 2e-4
"""Times are kept to half of this."""

_COUNT = iter(range(10**9))


def read(documents: list[dict[str, object]], folder: Path) -> Measurement:
    folder = folder / str(next(_COUNT))
    folder.mkdir()
    return import_profiler(saved(documents, folder))


def apart(case: tuple[Scenario, Schedule], delays: bool) -> tuple[Scenario, Schedule]:
    """A case whose operators all take a while, so that their order can be seen."""
    scenario, schedule = case
    times = {field: np.asarray(getattr(scenario, field)) + 0.1 for field in FIELDS.values()}
    healthy = {} if delays else {"latency_ms": 0.0, "occupancy_ms": 0.0}
    return scenario.replaced(**times, **healthy), schedule


def same_times(made: Measurement, scenario: Scenario, timeline: Timeline) -> None:
    """Every operator that ran has the time that it had."""
    for op, span in timeline.spans.items():
        read_ms = getattr(made.scenario, FIELDS[op.kind])[op.stage, op.microbatch]
        assert read_ms == pytest.approx(span.end_ms - span.start_ms, abs=WITHIN_MS), op
    assert made.scenario.placement == scenario.placement


@given(
    case=cases(),
    dialect=st.sampled_from(DIALECTS),
    pairs=st.booleans(),
    steps=st.booleans(),
    skew_ms=st.sampled_from([0.0, 0.0, 40.0]),
)
@examples(1)
def test_operator_times_are_read_back(
    case: tuple[Scenario, Schedule],
    dialect: Dialect,
    pairs: bool,
    steps: bool,
    skew_ms: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Delays and clocks that disagree change nothing where the trace itself tells the wait."""
    tells = dialect != "annotations"
    scenario, schedule = apart(case, delays=tells)
    timeline = simulate(scenario, schedule, "ideal")
    pairs = pairs and dialect not in ("annotations", "gpu annotations")
    documents = traced(
        [timeline] * 2, dialect, pairs=pairs, steps=steps, skew_ms=skew_ms if tells else 0.0
    )
    made = read(documents, tmp_path_factory.getbasetemp())
    same_times(made, scenario, timeline)
    assert made.schedule is not None
    assert made.schedule.orders == schedule.orders
    if not skew_ms or not tells:
        assert made.iteration_ms == pytest.approx([timeline.iteration_ms] * 2, abs=WITHIN_MS)
        assert len(made.iterations) == 2


@pytest.mark.parametrize("name", STORED)
def test_stored_traces_give_their_scenario(name: str) -> None:
    scenario, planner, *_ = STORED[name]
    made = import_profiler(sorted(MADE.glob(f"{name}-rank*.json.gz")))
    for field in ("forward_ms", "fused_backward_ms") if planner == "gpipe" else (
        "forward_ms", "backward_ms", "weight_ms"
    ):  # fmt: skip
        assert getattr(made.scenario, field) == pytest.approx(getattr(scenario, field), rel=0.01)
    check = check_import(made)
    assert check is not None
    assert check.error == pytest.approx(0, abs=1e-5)
