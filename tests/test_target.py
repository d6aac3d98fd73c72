"""What runtimes do with operators: the same wherever it is asked, and on both engines."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.analysis import lower_bound_ms
from pipesim.engine import Runs, evaluate, simulate
from pipesim.errors import ScenarioError
from pipesim.scenario import KINDS, Scenario
from pipesim.schedule import Assumptions, Schedule
from pipesim.target import IDEAL, TARGETS, Target, target
from pipesim.transport import TRANSPORTS, Exchange, Ideal, Nccl, Transport
from planners import plan
from tests import ROOT, torch_first_stage
from tests.processes import Background
from tests.strategies import cases, examples, planned, scenarios, transports

TORCH = target("torch")
EXAMPLE = Scenario().with_delay(20, links=[0], kind="latency")
targets = st.sampled_from(sorted(TARGETS)).map(target)


def first_whole(schedule: Schedule) -> Schedule:
    """The schedule with each backward of the first stage whole, where its W was."""
    orders = [
        [
            op._replace(kind="BW") if (op.kind, op.stage) == ("W", 0) else op
            for op in order
            if (op.kind, op.stage) != ("B", 0)
        ]
        for order in schedule.orders
    ]
    return Schedule(orders, schedule.placement, schedule.microbatches)


# -- operators ---------------------------------------------------------------------------


@given(scenarios(limited=True), targets)
def test_adapted_twice_is_adapted_once(scenario: Scenario, runtime: Target) -> None:
    once = runtime.adapted(scenario)
    assert runtime.adapted(once) == once
    assert once == scenario or runtime == TORCH


@given(scenarios(limited=True))
def test_torch_moves_the_first_b_into_w_and_changes_nothing_else(scenario: Scenario) -> None:
    there = TORCH.adapted(scenario)
    whole = scenario.backward_ms[0] + scenario.weight_ms[0]
    assert not there.backward_ms[0].any()
    assert (there.weight_ms[0] == whole).all()
    for kind in KINDS:
        assert (there.durations_ms(kind)[1:] == scenario.durations_ms(kind)[1:]).all()
        assert (there.released(kind)[1:] == scenario.released(kind)[1:]).all()
    assert (there.fused_backward_ms == scenario.fused_backward_ms).all()
    assert [float(there.released(kind)[0]) for kind in KINDS] == [0, 0, 1, 1]
    same = there.replaced(
        backward_ms=scenario.backward_ms,
        weight_ms=scenario.weight_ms,
        released_by_b=scenario.released_by_b,
    )
    assert same == scenario


def test_it_is_the_first_stage_and_not_the_first_device() -> None:
    cut = Scenario().interleaved(2)
    there = TORCH.adapted(cut)
    assert cut.placement[4] == cut.placement[0]
    assert there.backward_ms[:, 0].tolist() == [0, *[5] * 7]
    assert there.weight_ms[:, 0].tolist() == [10, *[5] * 7]
    assert there.released_by_b.tolist() == [0, *[0.5] * 7]


@given(cases(limited=True), transports)
@examples(1 / 2)
def test_a_plan_whose_first_backwards_are_fused_is_the_same_everywhere(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    scenario, schedule = case
    whole = first_whole(schedule)
    assert TORCH.runs_as_planned(whole)
    here, there = simulate(scenario, whole, "ideal"), simulate(
        TORCH.adapted(scenario), whole, "ideal"
    )  # fmt: skip
    assert here.compute == there.compute
    assert (here.peak_activations == there.peak_activations).all()


@given(cases(limited=True), transports)
def test_both_engines_agree_on_what_torch_does(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    scenario, schedule = TORCH.adapted(case[0]), case[1]
    one, other = (
        Runs(schedule, over, engine=engine).timeline(scenario) for engine in ("simpy", "compiled")
    )
    assert one.iteration_ms == pytest.approx(other.iteration_ms, rel=1e-9, abs=1e-9)
    assert one.peak_activations == pytest.approx(other.peak_activations)


@given(cases())
def test_no_whole_backward_ends_later_than_one_that_waits_for_its_place(
    case: tuple[Scenario, Schedule],
) -> None:
    """A W that is the whole backward is a fused one, where nobody waits for the B before it."""
    scenario, schedule = case
    scenario = scenario.replaced(fused_backward_ms=None)
    there = TORCH.adapted(scenario)
    split, whole = evaluate(there, schedule), evaluate(there, first_whole(schedule))
    assert whole <= split * (1 + 1e-9) + 1e-9


@given(scenarios(limited=True))
@examples(1 / 4)
def test_every_planner_plans_for_torch_and_says_so(scenario: Scenario) -> None:
    for name in planned(scenario):
        made = plan(scenario, name, runtime=TORCH)
        assert made.assumed.runtime == "torch"
        assert TORCH.runs_as_planned(made)
        assert made.orders == plan(TORCH.adapted(scenario), name).orders
        assert plan(scenario, name).assumed.runtime is None


def test_the_worked_example_under_torchs_rules() -> None:
    """By hand for 1F1B: it is fused, so nothing changes. The others: see the bound."""
    there = TORCH.adapted(EXAMPLE)
    unaware = {name: plan(EXAMPLE, name) for name in ("1f1b", "zerobubble", "pipemorph")}
    assert [evaluate(EXAMPLE, made) for made in unaware.values()] == [650, 440, 410]
    assert [evaluate(there, made) for made in unaware.values()] == [650, 470, 430]
    for name in ("zerobubble", "pipemorph", "quick-search", "zb-auto"):
        aware = plan(EXAMPLE, name, runtime=TORCH)
        assert evaluate(there, aware) == lower_bound_ms(there) == 410


def test_the_first_stage_holds_all_until_w() -> None:
    made = plan(EXAMPLE, "zerobubble", runtime=TORCH)
    there = simulate(TORCH.adapted(EXAMPLE), made)
    assert there.peak_activations.tolist() == [12, 8.5, 7.5, 6.5]
    assert simulate(EXAMPLE, made).peak_activations[0] < 12


@pytest.mark.parametrize("name", ["zerobubble", "search", "quick-search"])
def test_plans_for_torch_keep_within_the_limits_there(name: str) -> None:
    tight = EXAMPLE.replaced(activation_limit=6)
    made = plan(tight, name, runtime=TORCH)
    assert simulate(TORCH.adapted(tight), made).peak_activations.max() <= 6
    unaware = simulate(TORCH.adapted(tight), plan(tight, name))
    assert unaware.peak_activations.max() > 6


# -- messages ----------------------------------------------------------------------------


def test_how_messages_travel() -> None:
    assert TORCH.transport() == TORCH.transport("nccl") == Nccl(p2p_streams="peer", fused=False)
    assert target("megatron").transport(planner="1f1b") == Exchange()
    assert target("megatron").transport(planner="zerobubble") == Nccl()
    assert IDEAL.transport(planner="1f1b") == Ideal()
    for name, kind in TRANSPORTS.items():
        assert isinstance(TORCH.transport(name), kind)
        assert IDEAL.transport(name) == kind()
    with pytest.raises(ScenarioError, match="unknown transport 'tcp'"):
        TORCH.transport("tcp")
    with pytest.raises(ScenarioError, match="unknown runtime 'jax': one of torch, megatron"):
        target("jax")


# -- plans -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made_for", "fits_torch", "fits_megatron"),
    [(None, False, True), ("torch", True, False), ("ideal", False, True), ("jax", False, True)],
)
def test_what_a_plan_was_made_for(
    made_for: str | None, fits_torch: bool, fits_megatron: bool
) -> None:
    bare = plan(EXAMPLE, "zerobubble")
    made = Schedule(
        bare.orders, bare.placement, bare.microbatches, assumed=Assumptions(runtime=made_for)
    )
    assert TORCH.runs_as_planned(made) == fits_torch
    assert target("megatron").runs_as_planned(made) == fits_megatron
    assert np.all([runtime.runs_as_planned(first_whole(made)) for runtime in TARGETS.values()])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_stock_torch_does_it(tmp_path: Path) -> None:
    """I of the first stage goes through nothing, and W through the whole stage."""
    command = [sys.executable, "-m", torch_first_stage.__name__, str(tmp_path)]
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    with Background(tmp_path / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert {action: seen[action] for action in ("0I0", "0W0")} == {"0I0": [0, 0], "0W0": [1, 2]}
    assert seen["1I0"][0] == 1
