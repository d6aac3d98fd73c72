"""The exact optimum, against hand-derived values and against every order there is."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from milp import SOLVERS, Result, cpsat, ctrl_c, mip, solve
from milp.attempt import Attempt, Backend
from milp.ctrl_c import noted_ctrl_c
from milp.network import Network
from pipesim.analysis.bounds import horizon_bound_ms
from pipesim.analysis.windows import find_windows
from pipesim.engine import simulate
from pipesim.errors import ScheduleError, SolverError
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from planners import plan
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("error")


def longest_path(scenario: Scenario, schedule: Schedule) -> float:
    """Ideal iteration time by relaxation to a fixed point: slow, and unlike the model."""
    edges = [(need, op) for order in schedule.orders for op in order for need in schedule.needs(op)]
    edges += [pair for order in schedule.orders for pair in itertools.pairwise(order)]
    length = {op: float(scenario.durations_ms(op.kind)[op.stage, op.microbatch]) for op in
              itertools.chain(*schedule.orders)}  # fmt: skip
    start = dict.fromkeys(length, 0.0)
    changed = True
    while changed:
        changed = False
        for a, b in edges:
            delay = 0.0
            if a.stage != b.stage and a.microbatch == b.microbatch and a.kind == b.kind:
                delay = float(scenario.delay_ms[min(a.stage, b.stage), int(a.kind == "B")])
            if start[b] < start[a] + length[a] + delay:
                start[b] = start[a] + length[a] + delay
                changed = True
    return max(start[op] + length[op] for op in length)


def peaks(scenario: Scenario, schedule: Schedule) -> np.ndarray[Any, Any]:
    """Most activations held on each device, counted operator by operator."""
    part = scenario.released_by_b
    held = {"F": 1 + 0 * part, "B": -part, "W": part - 1}
    return np.array(
        [np.cumsum([held[op.kind][op.stage] for op in order]).max() for order in schedule.orders]
    )


def device_orders(device: int, microbatches: int) -> Iterator[tuple[Op, ...]]:
    """Every order of a plain device that runs F, B, W of a micro-batch in this order."""
    for owners in set(itertools.permutations([m for m in range(microbatches) for _ in "FBW"])):
        kinds = [iter("FBW") for _ in range(microbatches)]
        yield tuple(Op(next(kinds[m]), device, m) for m in owners)  # type: ignore[arg-type]


def brute_force(scenario: Scenario) -> float:
    """Shortest iteration over all orders, in-order or not, that fit the limits."""
    best = math.inf
    per_device = [list(device_orders(d, scenario.microbatches)) for d in range(scenario.devices)]
    for orders in itertools.product(*per_device):
        try:
            schedule = Schedule(orders, scenario.placement, scenario.microbatches)
        except ScheduleError:
            continue
        if (peaks(scenario, schedule) <= np.asarray(scenario.activation_limit) + 1e-9).all():
            best = min(best, longest_path(scenario, schedule))
    return best


def check(scenario: Scenario, solver: str = "highs") -> Result:
    """Solve, and check everything that a proven result promises."""
    result = solve(scenario, solver=solver)
    assert result.status == "optimal"
    assert result.schedule is not None
    assert result.schedule.planner == "milp"
    assert result.solver == solver
    assert result.gap == 0
    assert result.objective_ms == pytest.approx(longest_path(scenario, result.schedule))
    assert result.objective_ms == pytest.approx(
        simulate(scenario, result.schedule, "ideal").iteration_ms
    )
    assert (peaks(scenario, result.schedule) <= np.asarray(scenario.activation_limit)).all()
    return result


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("stages", "microbatches", "optimum"),
    # Uniform times t: the last stage starts after S−1 forwards, then has 3 N t to do.
    [(1, 1, 30), (1, 3, 90), (2, 2, 70), (2, 3, 100), (3, 3, 110)],
)
def test_uniform_optimum_leaves_no_bubble(
    solver: str, stages: int, microbatches: int, optimum: float
) -> None:
    scenario = Scenario(stages=stages, microbatches=microbatches)
    assert check(scenario, solver).objective_ms == optimum


def test_few_microbatches_wait_for_the_round_trip() -> None:
    # F down, B up, and the last W: nothing to fill the wait with.
    assert check(Scenario(stages=3, microbatches=1)).objective_ms == 70


TINY: list[dict[str, Any]] = [
    {},
    {"latency_ms": [[0, 25]]},
    {"latency_ms": [[25, 0]]},
    {"latency_ms": [[7, 12]], "activation_limit": 1},
    {"activation_limit": [1.5, 1], "released_by_b": 0.5},
    {"activation_limit": [1.5, 2], "released_by_b": 0.3},
    {"forward_ms": [4, 9], "backward_ms": [7, 3], "weight_ms": [2, 8], "latency_ms": 3},
    {"weight_ms": 0},
    {"weight_ms": 0, "backward_ms": [0, 5], "activation_limit": [1, 2]},
    {"forward_ms": 0, "backward_ms": 0, "weight_ms": 0},
]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("options", TINY, ids=str)
def test_equals_the_best_of_all_orders(solver: str, options: dict[str, Any]) -> None:
    scenario = Scenario(stages=2, microbatches=2, **options)
    assert check(scenario, solver).objective_ms == pytest.approx(brute_force(scenario))


def test_delays_of_the_two_directions_count_apart() -> None:
    # Down 20: the last stage starts 20 later. Up 20: stage 0 waits 10+10+20+20 − its work.
    base = {"stages": 2, "microbatches": 1}
    assert check(Scenario(**base, latency_ms=[[20, 0]])).objective_ms == 70  # type: ignore[arg-type]
    assert check(Scenario(**base, latency_ms=[[20, 5]])).objective_ms == 75  # type: ignore[arg-type]
    occupied = Scenario(**base).with_delay(20, links=[0])  # type: ignore[arg-type]
    assert check(occupied).objective_ms == 90


def test_a_binding_limit_costs_time() -> None:
    free = check(Scenario(stages=3, microbatches=3))
    tight = check(Scenario(stages=3, microbatches=3, activation_limit=1))
    assert tight.objective_ms > free.objective_ms
    # One micro-batch at a time on stage 0: F 10, two stages further and back 40, B, W.
    assert tight.objective_ms == 3 * 70


@pytest.mark.parametrize("solver", SOLVERS)
def test_v_placement(solver: str) -> None:
    # Device 0 holds both ends: F, 20 ms of forwards on device 1, F, B, the same back, B, W.
    place = Scenario.place("v", devices=2, chunks=2)
    single = Scenario(stages=4, microbatches=1, placement=place)
    assert check(single, solver).objective_ms == 90
    pair = Scenario(stages=4, microbatches=2, placement=place)
    assert check(pair, solver).objective_ms == 130
    # Limit 2: device 1 is free of B at 70, runs two W and one F before it may hold stage 2's
    # second activation (100), then 10 each for F F B B B B W on the way back.
    limited = Scenario(stages=4, microbatches=2, placement=place, activation_limit=2)
    assert check(limited, solver).objective_ms == 170


def test_worked_example() -> None:
    scenario = Scenario(stages=4, microbatches=6)
    assert check(scenario).objective_ms == 210


@pytest.mark.parametrize(("place", "limit"), [("plain", 0.5), ("v", 1.5)])
def test_a_limit_below_one_microbatch_is_infeasible(place: Any, limit: float) -> None:
    chunks = 1 if place == "plain" else 2
    scenario = Scenario(
        stages=2 * chunks,
        microbatches=2,
        placement=Scenario.place(place, 2, chunks),
        activation_limit=[np.inf, limit],
    )
    result = solve(scenario)
    assert result.status == "infeasible"
    assert result.schedule is None
    assert result.objective_ms == result.bound_ms == result.gap == math.inf


@pytest.mark.parametrize("solver", SOLVERS)
def test_running_out_of_time_is_never_called_optimal(solver: str) -> None:
    # Its optimum is far above the trivial bound, so that nothing is proven this fast.
    scenario = Scenario(stages=4, microbatches=12, activation_limit=4).with_delay(20, links=[1])
    result = solve(scenario, solver=solver, time_limit_s=0.02)
    assert result.status in ("feasible", "unknown")
    assert (result.schedule is None) == (result.status == "unknown")
    assert 410 <= result.bound_ms < result.objective_ms
    assert result.gap > 0
    incumbent = plan(scenario, "zerobubble")
    result = solve(scenario, solver=solver, time_limit_s=0.02, incumbent=incumbent)
    assert result.status == "feasible"
    assert result.objective_ms == simulate(scenario, incumbent).iteration_ms


def test_threads_may_change_between_solves() -> None:
    scenario = Scenario(stages=2, microbatches=2)
    assert {solve(scenario, threads=n).status for n in (1, 2, 1)} == {"optimal"}


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for solver in SOLVERS:
        solve(Scenario(stages=2, microbatches=2), solver=solver)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "abacus"}, "unknown solver 'abacus': one of highs, cbc, cpsat"),
        ({"time_limit_s": 0}, "time limit must be above 0"),
        ({"time_limit_s": -1}, "time limit must be above 0"),
        ({"time_limit_s": math.nan}, "time limit must be above 0"),
        ({"threads": 0}, "at least 1 thread"),
    ],
)
def test_clear_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SolverError, match=message):
        solve(Scenario(), **options)


@pytest.mark.parametrize(
    ("solver", "module", "message"),
    [
        ("highs", "highspy", "highs: highspy is not installed"),
        ("cpsat", "ortools", r"cpsat: ortools is not installed: pip install 'pipesim\[cpsat\]'"),
    ],
)
def test_a_missing_solver_is_named(
    solver: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SolverError, match=message):
        solve(Scenario(stages=2, microbatches=1), solver=solver)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pulp = pytest.importorskip("pulp")
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", "no-such-program")
    with pytest.raises(SolverError, match="cbc: the program is missing"):
        solve(Scenario(stages=2, microbatches=1), solver="cbc")


# -- with an incumbent -------------------------------------------------------------------

BACKENDS: dict[str, Backend] = {"highs": mip.highs, "cbc": mip.cbc, "cpsat": cpsat.cpsat}


@pytest.mark.parametrize(("delay", "optimum"), [(0, 390), (20, 410)])
@pytest.mark.parametrize(
    ("solver", "known"), [("highs", True), ("cbc", True), ("cpsat", True), ("highs", False)]
)
def test_the_solver_itself_proves_the_worked_example(
    delay: float, optimum: float, solver: str, known: bool
) -> None:
    """Without any bound in the model: from the incumbent, or within 5 % more by itself."""
    scenario = Scenario().with_delay(delay, links=[0])
    incumbent = plan(scenario, "pipemorph")
    horizon = optimum if known else 1.05 * optimum
    network = Network(scenario, find_windows(scenario, horizon) if known else None)
    attempt = BACKENDS[solver](
        network,
        horizon,
        hint=incumbent if known else None,
        deadline=math.inf,
        threads=2,
        pressed=ctrl_c.Pressed(),
    )
    assert attempt.status == "optimal"
    assert attempt.bound_ms == pytest.approx(optimum, rel=1e-6)
    assert attempt.schedule is not None
    assert simulate(scenario, attempt.schedule).iteration_ms == optimum


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_incumbent_is_taken_in_order_and_split(solver: str) -> None:
    scenario = Scenario(stages=3, microbatches=4)
    result = solve(scenario, solver=solver, incumbent=plan(scenario, "1f1b"))
    assert (result.status, result.objective_ms) == ("optimal", 140)


def test_an_incumbent_must_fit() -> None:
    scenario = Scenario(stages=3, microbatches=4, activation_limit=1)
    incumbent = plan(scenario.replaced(activation_limit=math.inf), "zerobubble")
    with pytest.raises(SolverError, match="holds more activations than device 0 may"):
        solve(scenario, incumbent=incumbent)
    with pytest.raises(ScheduleError, match="4 micro-batches"):
        solve(Scenario(stages=3, microbatches=3), incumbent=incumbent)


@pytest.mark.parametrize("solver", SOLVERS)
def test_ctrl_c_leaves_the_incumbent_and_its_bound(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(stages=4, microbatches=12, activation_limit=4).with_delay(25, links=[1])
    scenario = scenario.replaced(forward_ms=[9, 10, 12, 7])
    incumbent = plan(scenario, "zerobubble")
    run = ctrl_c.run

    def interrupted(work: Callable[[], object], *more: Any) -> None:
        def begun() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            work()

        run(begun, *more)

    monkeypatch.setattr(ctrl_c, "run", interrupted)
    monkeypatch.setattr(ctrl_c, "_PATIENCE_S", PATIENCE_S)
    hard = Network(scenario)  # no windows: nothing is solved by the time that Ctrl-C is heard
    with noted_ctrl_c() as pressed:
        attempt = BACKENDS[solver](
            hard,
            hard.makespan_ms(incumbent),
            hint=incumbent,
            deadline=math.inf,
            threads=1,
            pressed=pressed,
        )
    assert pressed.is_set()
    assert attempt.status in ("feasible", "unknown")

    def pressing(*_: Any, pressed: ctrl_c.Pressed, **__: Any) -> Attempt:
        pressed.set()
        return attempt

    module = "milp.cpsat" if solver == "cpsat" else "milp.mip"
    monkeypatch.setattr(f"{module}.{solver}", pressing)
    result = solve(scenario, solver=solver, incumbent=incumbent)
    assert result.interrupted
    assert result.status == "feasible"
    assert 480 <= result.bound_ms < result.objective_ms <= hard.makespan_ms(incumbent)


def test_ctrl_c_is_not_lost_where_a_horizon_holds_no_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []

    def infeasible(_: Network, horizon_ms: float, **__: Any) -> Attempt:
        tried.append(horizon_ms)
        os.kill(os.getpid(), signal.SIGINT)
        return Attempt("infeasible", math.inf)

    monkeypatch.setattr("milp.mip.highs", infeasible)
    result = solve(Scenario(stages=4, microbatches=12, activation_limit=3))
    assert result.interrupted
    assert result.status == "unknown"
    assert len(tried) == 1


def test_who_is_asked_to_stop_too_early_is_asked_again() -> None:
    asked: list[bool] = []
    begun, stopped = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not asked:
            time.sleep(0.01)
        begun.set()
        assert stopped.wait(PATIENCE_S)

    def stop() -> None:
        asked.append(begun.is_set())
        if begun.is_set():
            stopped.set()

    with noted_ctrl_c() as pressed:
        ctrl_c.run(work, stop, pressed)
        assert pressed.is_set()
    assert not asked[0]
    assert asked[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_ctrl_c_hears_it_and_is_put_back() -> None:
    heard: list[int] = []

    def handler(number: int, _: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        with noted_ctrl_c() as pressed:
            os.kill(os.getpid(), signal.SIGINT)
            assert pressed.is_set()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [signal.SIGINT]


def test_ctrl_c_while_the_solver_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    load = importlib.import_module

    def pressed(name: str) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return load(name)

    monkeypatch.setattr("milp.solvers.importlib.import_module", pressed)
    result = solve(Scenario(stages=2, microbatches=2))
    assert result.interrupted
    assert result.status == "unknown"


# -- solvers, bounds and brute force agree -----------------------------------------------


def tiny(seed: int) -> Scenario:
    """A random scenario that every solver proves at once; some times are 0, some have no grain."""
    rng = np.random.default_rng(seed)
    stages, microbatches = int(rng.integers(1, 4)), int(rng.integers(1, 5))

    def times() -> Any:
        low = 0 if rng.random() < 0.2 else 1
        return rng.integers(low, 15, stages) / rng.choice([1, 10]) + rng.choice([0, rng.random()])

    return Scenario(
        stages=stages,
        microbatches=microbatches,
        forward_ms=times(),
        backward_ms=times(),
        weight_ms=times(),
        latency_ms=rng.integers(0, 30, (stages - 1, 2)) * (rng.random((stages - 1, 2)) < 0.6),
        activation_limit=rng.choice([np.inf, 1, 1.5, 2, 3], stages),
        released_by_b=rng.choice([0, 0.5, 1, 1 / 3]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_solvers_and_bounds_agree(seed: int) -> None:
    scenario = tiny(seed)
    results = [check(scenario, solver) for solver in (SOLVERS if seed < 6 else ("highs", "cpsat"))]
    objective = results[0].objective_ms
    assert [result.objective_ms for result in results] == pytest.approx([objective] * len(results))
    assert horizon_bound_ms(scenario) <= objective * (1 + 1e-9)
    if scenario.stages <= 2 and scenario.microbatches <= 2:
        assert objective == pytest.approx(brute_force(scenario))
