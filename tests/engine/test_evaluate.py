"""One schedule under many scenarios: whichever engine runs it, the times are the same."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, evaluate, plan, simulate
from pipesim.engine import ENGINES, Engine, Runs, choice, run
from pipesim.errors import ScenarioError
from pipesim.lowering import lower
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Nccl, Transport
from tests.strategies import cases, scenarios, transports


def close(value: object) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@st.composite
def families(draw: st.DrawFn) -> tuple[Schedule, list[Scenario]]:
    """A schedule, and scenarios of its shape that differ in everything else."""
    scenario, schedule = draw(cases())
    others = [
        scenario.replaced(
            forward_ms=draw(st.floats(0, 50)),
            backward_ms=draw(st.floats(0, 50)),
            message_bytes=draw(st.sampled_from([0.0, 1e6, 3e6])),
        ),
        scenario.without_delay(),
    ]
    return schedule, [scenario, *others, scenario]


@given(families(), transports)
def test_many_at_once_are_one_by_one(
    family: tuple[Schedule, list[Scenario]], transport: Transport
) -> None:
    schedule, many = family
    expected = [simulate(one, schedule, transport).iteration_ms for one in many]
    for engine in ENGINES:
        assert evaluate(many, schedule, transport, engine=engine) == close(expected)
        assert evaluate(many[1], schedule, transport, engine=engine) == close(expected[1])


@given(cases(), transports)
def test_both_engines_give_one_timeline(
    case: tuple[Scenario, Schedule], transport: Transport
) -> None:
    scenario, schedule = case
    simulated = Runs(schedule, transport, engine="simpy").timeline(scenario)
    compiled = Runs(schedule, transport, engine="compiled").timeline(scenario)
    assert [s.op for d in compiled.compute for s in d] == [
        s.op for d in simulated.compute for s in d
    ]
    for what in ("start_ms", "end_ms"):
        times = [[getattr(s, what) for d in t.compute for s in d] for t in (compiled, simulated)]
        assert times[0] == close(times[1])
    assert compiled.peak_activations == close(simulated.peak_activations)


@given(cases(), scenarios(), transports)
def test_a_program_that_is_kept_does_not_follow_the_operator_times(
    case: tuple[Scenario, Schedule], other: Scenario, transport: Transport
) -> None:
    """Attribution runs the program of the scenario as it is under all others."""
    scenario, schedule = case
    changed = scenario.replaced(forward_ms=float(other.forward_ms.max()), weight_ms=1.0)
    kept = run(lower(schedule, scenario, transport), changed).iteration_ms
    for engine in ENGINES:
        runs = Runs(schedule, transport, lowered_for=scenario, engine=engine)
        assert runs.makespan_ms(changed) == close(kept)
        assert runs.timeline(changed).iteration_ms == close(kept)


def test_scenarios_that_lower_to_other_programs_are_told_apart() -> None:
    """A delay decides what `only_slow` delegates, and sizes what is eager."""
    healthy = Scenario(message_bytes=8.0)
    slow = healthy.with_delay(20, [1])
    large = slow.replaced(message_bytes=9.0)
    schedule = plan(healthy, "zerobubble")
    for transport in (Delegated(only_slow=True), Nccl(eager_bytes=8.0)):
        many = [healthy, slow, large]
        expected = [simulate(one, schedule, transport).iteration_ms for one in many]
        assert len(set(expected)) > 1
        assert evaluate(many, schedule, transport, engine="compiled").tolist() == expected


def test_no_scenario_has_no_makespan() -> None:
    schedule = plan(Scenario(), "1f1b")
    for engine in ENGINES:
        assert evaluate([], schedule, "nccl", engine=engine).shape == (0,)


def test_any_iterable_of_scenarios() -> None:
    scenario = Scenario()
    assert evaluate((scenario for _ in range(2)), plan(scenario, "1f1b")).tolist() == [450, 450]  # type: ignore[call-overload]


@pytest.mark.parametrize("what", [Nccl, None, 3])
def test_what_is_no_transport(what: object) -> None:
    scenario = Scenario()
    with pytest.raises(ScenarioError, match="unknown transport"):
        evaluate(scenario, plan(scenario, "1f1b"), what)  # type: ignore[call-overload]


def test_delegates_of_one_way_do_not_wait_for_those_of_the_other() -> None:
    """Two devices with several stages each: all messages go between the same two hosts."""
    rng = np.random.default_rng(48)
    times = rng.integers(1, 40, (6, 12)).astype(float)
    scenario = Scenario(
        stages=6,
        microbatches=12,
        placement=(0, 1, 0, 1, 0, 1),
        forward_ms=times,
        backward_ms=times[::-1],
        weight_ms=times[:, ::-1],
    ).with_delay(60, [0, 1, 2, 3, 4])
    schedule = plan(scenario, "zerobubble")
    for delegates in (1, 2, 3):
        transport = Delegated(delegates=delegates)
        simulated = simulate(scenario, schedule, transport).iteration_ms
        assert evaluate(scenario, schedule, transport, engine="compiled") == close(simulated)
        many = evaluate([scenario, scenario], schedule, transport, engine="compiled")
        assert many == close([simulated, simulated])


def test_an_unknown_engine() -> None:
    scenario = Scenario()
    with pytest.raises(ScenarioError, match="unknown engine 'fast': simpy or compiled"):
        evaluate(scenario, plan(scenario, "1f1b"), engine="fast")  # type: ignore[call-overload]


@pytest.mark.parametrize("given", ENGINES)
def test_who_names_an_engine_gets_it(given: Engine) -> None:
    assert choice.chosen(given, 10**9) == choice.chosen(given, 0) == given


def test_simpy_runs_until_the_other_would_have_been_loaded() -> None:
    """In a process of its own: numba is loaded in this one."""
    code = (
        "from pipesim.engine.choice import WORTH_LOADING, chosen\n"
        "print(chosen(None, WORTH_LOADING), chosen(None, 0), chosen(None, 1), chosen(None, 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["simpy", "simpy", "compiled", "compiled"]


def test_parts_of_a_batch_that_memory_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipesim.engine.compiled.evaluator._MOST_WEIGHTS", 1)
    scenario = Scenario()
    many = [scenario.with_delay(float(delay), [0]) for delay in range(40)]
    schedule = plan(scenario, "zerobubble")
    expected = [evaluate(one, schedule, "nccl") for one in many]
    np.testing.assert_allclose(evaluate(many, schedule, "nccl", engine="compiled"), expected)
