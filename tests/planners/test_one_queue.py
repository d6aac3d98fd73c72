"""Plans for one launch queue: operators and messages together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim.actions import Batch
from pipesim.analysis import bound_over_ms, lower_bound_ms
from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.engine import evaluate, simulate
from pipesim.errors import ScheduleError
from pipesim.formats.torch_csv import load_torch_csv, save_torch_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Exchange, Ideal, Nccl, Transport
from planners import get, plan
from planners.one_queue import STARTS
from tests.engine.test_sequences import queueing
from tests.strategies import cases, examples, scenarios

SLOW = Scenario().with_delay(20, links=[0])
TORCH = Nccl("peer", fused=False)


def quick(scenario: Scenario, over: Transport, moves: int = 2_000, seed: int = 0) -> Schedule:
    return get("one-queue")(scenario, over=over, moves=moves, seed=seed)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("over", "most_ms"), [(Nccl(), 500), (Nccl("peer"), 500), (TORCH, 510), (Exchange(), 680)]
)
def test_worked_example(over: Transport, most_ms: float) -> None:
    """All other plans take 750 ms or more over NCCL's device streams, and 690 in exchanges.

    Without groups 510 ms is the bound.
    """
    schedule = plan(SLOW, "one-queue", over=over)
    for engine in ("simpy", "compiled"):
        assert bound_over_ms(SLOW, over) <= evaluate(SLOW, schedule, over, engine=engine) <= most_ms  # type: ignore[call-overload]
    batches = [action for row in schedule.actions or () for action in row if type(action) is Batch]
    assert bool(batches) == (over != TORCH)


@examples(0.3)
@given(scenarios(limited=True), queueing)
def test_never_longer_than_what_it_starts_from(scenario: Scenario, over: Nccl | Exchange) -> None:
    try:
        schedule = quick(scenario, over, moves=100)
    except ScheduleError:
        assume(False)
    timeline = simulate(scenario, schedule, over)
    assert (timeline.peak_activations <= scenario.activation_limit + 1e-9).all()
    for name in STARTS:
        try:
            other = simulate(scenario, plan(scenario, name, over=over), over)
        except ScheduleError:
            continue
        if (other.peak_activations <= scenario.activation_limit + 1e-9).all():
            assert timeline.iteration_ms <= other.iteration_ms * (1 + 1e-6), name


@given(cases(), queueing)
def test_no_plan_beats_the_bound(case: tuple[Scenario, Schedule], over: Nccl | Exchange) -> None:
    scenario, schedule = case
    bound_ms = bound_over_ms(scenario, over)
    assert bound_ms >= lower_bound_ms(scenario) * (1 - 1e-9)
    for one in (schedule, quick(scenario, over, moves=300)) if scenario.is_plain else (schedule,):
        assert evaluate(scenario, one, over) >= bound_ms * (1 - 1e-9)


def test_the_bound_counts_the_busy_kernels_of_a_stream() -> None:
    """One stage sends 12 activations, each behind 60 ms: at 10 ms the first, 60 ms to go after.

    The last one passes down three stages and its gradient back up them.
    """
    down = Scenario(
        backward_ms=[0, 10, 10, 10],
        weight_ms=[0, 10, 10, 10],
        occupancy_ms=[[60, 0], [0, 0], [0, 0]],
    )
    assert bound_over_ms(down, Nccl()) == 10 + 12 * 60 + 6 * 10
    slow = Scenario().with_delay(40, links=[0])
    # Stage 1 starts at 50. Beside each busy kernel runs a BW of 20 ms at most.
    assert bound_over_ms(slow, Nccl()) == 50 + 360 + 12 * (40 - 20)
    # Messages of both ways, one by one, behind the first F and before the last B and W.
    assert bound_over_ms(slow, TORCH) == 10 + 24 * 40 + 20
    assert bound_over_ms(slow, Nccl("direction", fused=False)) == bound_over_ms(slow, Nccl())
    assert bound_over_ms(slow, Nccl(fused=False, eager_bytes=1)) == bound_over_ms(slow, Nccl())
    # In an exchange stage 1 computes nothing meanwhile; it starts at 50.
    assert bound_over_ms(slow, Exchange()) == 50 + 360 + 12 * 40
    assert bound_over_ms(slow, Ideal()) == lower_bound_ms(slow)


@examples(0.3)
@given(st.integers(0, 50), st.sampled_from([0.001, 1 / 3, 7.0, 1000.0]))
def test_the_unit_of_time_and_the_machine_decide_nothing(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    times = rng.integers(5, 15, (3, 3)).astype(float)
    scenario = Scenario(
        stages=3, microbatches=5, forward_ms=times[0], backward_ms=times[1], weight_ms=times[2]
    ).with_delay(float(rng.integers(1, 30)), links=[int(rng.integers(2))])
    found = quick(scenario, Nccl(), seed=seed)
    assert quick(scenario, Nccl(), seed=seed).actions == found.actions
    assert quick(scenario.scaled(factor), Nccl(), seed=seed).actions == found.actions


def test_its_plans_are_kept_and_exported(tmp_path: object) -> None:
    schedule = quick(SLOW, Nccl())
    save_plan(schedule, f"{tmp_path}/plan.json")
    assert load_plan(f"{tmp_path}/plan.json") == schedule
    save_torch_csv(schedule, f"{tmp_path}/plan.csv", "compute_comms")
    read = load_torch_csv(f"{tmp_path}/plan.csv")
    assert read.orders == schedule.orders
    assert evaluate(SLOW, read, TORCH) == evaluate(SLOW, schedule, TORCH)


def test_it_needs_a_queue_and_room() -> None:
    with pytest.raises(ScheduleError, match="one-queue needs nccl or exchange"):
        plan(SLOW, "one-queue")
    with pytest.raises(ScheduleError, match="no plan to start from fits"):
        plan(SLOW.replaced(activation_limit=0.5), "one-queue", over=Nccl())
