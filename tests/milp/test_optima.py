"""The stored optima of the benchmark suites: a sample is proven again."""

from __future__ import annotations

import json
import sys

import pytest

from pipesim import plan, simulate
from pipesim.analysis.bounds import horizon_bound_ms
from pipesim.studies.optimum import optimum
from tests import ROOT
from tests.processes import PATIENCE_S

BENCHMARKS = ROOT / "benchmarks"
OPTIMA = json.loads((BENCHMARKS / "optima.json").read_text())
sys.path.insert(0, str(BENCHMARKS))

from instances import capped, capped_suite, paper, paper_suite  # noqa: E402


def test_every_instance_has_a_reference_and_no_plan_beats_it() -> None:
    scenarios = [*paper_suite(), *capped_suite()]
    assert {scenario.name for scenario in scenarios} == set(OPTIMA)
    for scenario in scenarios[::7]:
        found = simulate(scenario, plan(scenario, "quick-search")).iteration_ms
        assert found >= OPTIMA[scenario.name]["reference_ms"] * (1 - 1e-9)


@pytest.mark.parametrize("solver", ["highs", "cpsat"])
@pytest.mark.parametrize(
    "scenario",
    [paper(3, 6, 10, 0), capped(3, 6, 2), capped(4, 12, 1), capped(4, 12, 3)],
    ids=lambda scenario: scenario.name,
)
def test_a_sample_is_proven_again(scenario, solver: str) -> None:  # type: ignore[no-untyped-def]
    stored = OPTIMA[scenario.name]
    assert stored["proven_by"]
    result = optimum(scenario, solver=solver, time_limit_s=PATIENCE_S, threads=1)
    assert result.status == "optimal"
    assert result.objective_ms == pytest.approx(stored["reference_ms"], rel=1e-9)
    bound_ms = horizon_bound_ms(scenario, incumbent_ms=result.objective_ms)
    assert bound_ms <= result.objective_ms * (1 + 1e-9)
