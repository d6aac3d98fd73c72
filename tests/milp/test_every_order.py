"""What a solver claims, against every order that there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milp import SOLVERS, solve
from pipesim.engine import simulate
from pipesim.scenario import Scenario
from pipesim.studies.optimum import best_within_limits
from tests.every_order import shortest_ms
from tests.processes import PATIENCE_S
from tests.strategies import examples
from tests.tiny import tiny_scenarios

EXACT, SOLVED = 1e-9, 1e-6
"""Errors of sums, and of a solver that does not compute in whole numbers."""


def check(scenario: Scenario, solver: str, *, planned: bool, optimum_ms: float) -> str:
    """Solve; whatever is claimed must hold. Return the status."""
    incumbent = best_within_limits(scenario) if planned else None
    result = solve(scenario, solver=solver, incumbent=incumbent, time_limit_s=PATIENCE_S / 20)
    assert (result.status == "infeasible") == math.isinf(optimum_ms)
    assert result.bound_ms <= optimum_ms * (1 + SOLVED)
    assert result.objective_ms >= optimum_ms * (1 - EXACT)
    if result.status == "optimal":
        assert result.objective_ms <= optimum_ms * (1 + SOLVED)
    if result.schedule is not None:
        timeline = simulate(scenario, result.schedule)
        assert timeline.iteration_ms == pytest.approx(result.objective_ms, rel=EXACT)
        assert (timeline.peak_activations <= scenario.activation_limit + EXACT).all()
    return result.status


@examples(4 / 3)
@given(tiny_scenarios(), st.sampled_from(SOLVERS), st.booleans())
def test_claims_hold_for_every_order(scenario: Scenario, solver: str, planned: bool) -> None:
    check(scenario, solver, planned=planned, optimum_ms=shortest_ms(scenario))


OVERTAKING = {
    "another first": {
        "forward_ms": [[15.7, 10, 10], [10, 10, 10]],
        "backward_ms": [[10, 10, 10], [10, 10, 11.4]],
    },
    "one stage": {"forward_ms": [[10, 10, 10], [4, 17, 9]], "latency_ms": [[3, 8]]},
    "no time": {"forward_ms": [[9, 0, 4], [2, 6, 0]], "activation_limit": [2, 1]},
    "sums": {"forward_ms": [[0.1 + 0.2, 0.7, 0.2], [0.5, 0.1, 0.1 + 0.7]], "released_by_b": 0.3,
             "activation_limit": [1.7, 2.3], "backward_ms": 0.3, "weight_ms": 0.1},
    "fused": {"fused_backward_ms": [12, 17], "activation_limit": 2},
    "fused, unequal": {"forward_ms": [[3, 11, 7], [8, 2, 9]], "fused_backward_ms": [14, 20],
                       "latency_ms": [[0, 12]]},
}  # fmt: skip


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("options", OVERTAKING.values(), ids=OVERTAKING)
def test_the_best_of_all_orders_is_proven(options: dict[str, object], solver: str) -> None:
    scenario = Scenario(stages=2, microbatches=3, **options)  # type: ignore[arg-type]
    optimum_ms = shortest_ms(scenario)
    assert check(scenario, solver, planned=True, optimum_ms=optimum_ms) == "optimal"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("placement", ["v", "interleaved"])
def test_stages_that_share_a_device(placement: str, solver: str) -> None:
    scenario = Scenario(
        stages=4,
        microbatches=2,
        placement=Scenario.place(placement, 2, 2),  # type: ignore[arg-type]
        forward_ms=[[3, 8], [5, 1], [7, 7], [2, 9]],
        backward_ms=[[4, 6], [9, 2], [3, 3], [8, 5]],
        weight_ms=[[2, 2], [5, 4], [1, 6], [3, 7]],
        activation_limit=3,
    )
    optimum_ms = shortest_ms(scenario)
    assert check(scenario, solver, planned=False, optimum_ms=optimum_ms) == "optimal"
