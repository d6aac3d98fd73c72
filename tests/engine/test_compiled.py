"""The compiled evaluator against the SimPy engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.engine import run
from pipesim.engine.compiled.evaluator import compile_program
from pipesim.engine.compiled.evaluator import run as run_compiled
from pipesim.errors import DeadlockError, PipesimError, ScenarioError, ScheduleError
from pipesim.lowering import lower
from pipesim.program import Compute, Group, Message, Program
from pipesim.scenario import Array
from pipesim.schedule import Op, Schedule
from pipesim.transport import Exchange, Ideal, Isolated, Nccl, Transport
from tests.engine.programs import TWO, close, deadlocked, gpipe, unmet
from tests.strategies import cases, transports


def assert_equal(program: Program, scenario: Scenario) -> None:
    timeline = run(program, scenario)
    evaluation = compile_program(program).evaluate(scenario)
    assert evaluation.makespan_ms == close(timeline.iteration_ms)
    for spans, starts, ends in zip(
        timeline.compute, evaluation.starts_ms, evaluation.ends_ms, strict=True
    ):
        assert starts == close(np.array([span.start_ms for span in spans]))
        assert ends == close(np.array([span.end_ms for span in spans]))
    assert evaluation.peak_activations.tolist() == timeline.peak_activations.tolist()


@given(cases(), transports)
def test_the_compiled_evaluator_equals_the_engine(
    case: tuple[Scenario, Schedule], transport: Transport
) -> None:
    scenario, schedule = case
    assert_equal(lower(schedule, scenario, transport), scenario)


@given(cases(), transports, st.data())
def test_one_compilation_serves_every_scenario_of_its_shape(
    case: tuple[Scenario, Schedule], transport: Transport, data: st.DataObject
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, transport)
    compiled = compile_program(program, scenario)
    other = scenario.scaled(data.draw(st.floats(0, 3))).replaced(
        message_bytes=data.draw(
            st.lists(
                st.sampled_from([0.0, 5e5, 2e6]),
                min_size=scenario.stages - 1,
                max_size=scenario.stages - 1,
            )
        )
    )
    expected = run(program, other)
    assert compiled.evaluate(other).makespan_ms == close(expected.iteration_ms)
    timeline = compiled.timeline(other)
    assert timeline.iteration_ms == close(expected.iteration_ms)
    assert list(timeline.spans) == list(expected.spans)


@given(cases(), transports, st.integers(1, 40), st.integers(0, 2**32 - 1), st.data())
def test_a_batch_equals_its_scenarios_one_by_one(
    case: tuple[Scenario, Schedule],
    transport: Transport,
    size: int,
    seed: int,
    data: st.DataObject,
) -> None:
    scenario, schedule = case
    compiled = compile_program(lower(schedule, scenario, transport), scenario)
    chance = np.random.default_rng(seed)
    crossing = np.array([scenario.crosses(i) for i in range(scenario.stages - 1)], dtype=bool)
    per_op = (size, scenario.stages, scenario.microbatches)[: data.draw(st.integers(1, 3))]
    fields = {
        "forward_ms": chance.uniform(0, 30, per_op),
        "fused_backward_ms": chance.uniform(0, 30, (size, *per_op[1:2])),
        "backward_ms": chance.uniform(0, 30, size),
        "weight_ms": chance.uniform(0, 30, per_op),
        "latency_ms": chance.uniform(0, 30, (size, len(crossing), 2)) * crossing[:, None],
        "occupancy_ms": chance.choice([0.0, 20.0], (size, len(crossing))) * crossing,
    }
    names = data.draw(st.sets(st.sampled_from(sorted(fields)), min_size=1))
    chosen = {name: fields[name] for name in names}
    makespans = compiled.makespans_ms(scenario, **chosen, threads=2)  # type: ignore[arg-type]
    assert makespans.shape == (size,)
    for at in {0, size // 2, size - 1}:
        one = scenario.replaced(**{name: values[at] for name, values in chosen.items()})
        assert makespans[at] == close(compiled.evaluate(one).makespan_ms)


def slowed(transport: Transport, link: int) -> Array:
    """Makespans of the worked example for 0, 5, … 60 ms on one link."""
    scenario = Scenario()
    delays = np.zeros((13, 3, 2))
    delays[:, link] = np.arange(0, 65, 5)[:, None]
    program = lower(plan(scenario, "zerobubble"), scenario, transport)
    return compile_program(program).makespans_ms(scenario, occupancy_ms=delays)


def test_the_worked_example_in_one_batch() -> None:
    published = {
        0: [390, 395, 400, 410, 440, 470, 500, 530, 560, 590, 620, 650, 680],
        1: [390, 395, 400, 430, 470, 510, 550, 590, 630, 670, 710, 750, 790],
        2: [390, 395, 400, 440, 480, 520, 560, 600, 640, 680, 720, 760, 800],
    }
    for link, expected in published.items():
        assert slowed(Ideal(), link).tolist() == expected


def test_only_the_ends_of_slow_links_are_slowed_in_a_batch() -> None:
    scenario = Scenario(stages=3, microbatches=1)
    program = lower(plan(scenario, "gpipe"), scenario, Isolated(compute_slowdown=2.0))
    delays = [[[0, 0], [0, 0]], [[1, 0], [0, 0]], [[0, 0], [0, 1]]]
    makespans = compile_program(program).makespans_ms(scenario, latency_ms=delays)
    assert makespans.tolist() == [90, 30 + 2 * 60 + 1, 30 + 2 * 60 + 1]


def test_the_compiled_run_is_a_timeline() -> None:
    scenario = Scenario()
    program = lower(plan(scenario, "1f1b"), scenario, Exchange())
    timeline = run_compiled(program, scenario)
    assert timeline.iteration_ms == 450
    assert timeline.compute == run(program, scenario).compute
    assert timeline.comm == ()


def blocked(program: Program, scenario: Scenario) -> tuple[str, ...]:
    with pytest.raises(DeadlockError) as expected:
        run(program, scenario)
    with pytest.raises(DeadlockError) as caught:
        compile_program(program, scenario)
    assert caught.value.blocked == expected.value.blocked
    return caught.value.blocked


def test_deadlocks_are_named_as_the_engine_names_them() -> None:
    assert len(blocked(deadlocked(), TWO)) == 2


def test_a_kernel_that_nobody_meets_is_a_deadlock_too() -> None:
    scenario = Scenario(stages=2, microbatches=1)
    assert blocked(unmet(), scenario) == ("device 0 never completes 0F0→1F0",)


def test_a_message_that_nobody_sends_is_a_deadlock_too() -> None:
    scenario = Scenario(stages=2, microbatches=1)
    program = lower(gpipe(scenario), scenario, Ideal())
    first = tuple(i for i in program.instructions[0] if isinstance(i, Compute))
    program = Program(program.schedule, Ideal(), (first, program.instructions[1]))
    assert blocked(program, scenario) == (
        "device 0 waits in 0BW0 for 1BW0→0BW0",
        "device 1 waits in 1F0 for 0F0→1F0",
    )


def test_an_eager_send_needs_no_receiver_to_go_on() -> None:
    """What would deadlock under rendezvous runs, and the size of messages decides."""
    program = deadlocked()
    program = Program(program.schedule, Nccl(eager_bytes=8.0), program.instructions)
    instructions = [*program.instructions[0]]
    receives = [Group(0, (), (i.receives[0],), blocking=True) for i in instructions[-2:]]  # type: ignore[union-attr]
    first = (*instructions[:-2], receives[0], instructions[-2], receives[1], instructions[-1])
    f1 = Message(Op("F", 0, 1), Op("F", 1, 1))
    second = [*program.instructions[1]]
    second.insert(3, Group(0, (), (f1,), blocking=True))
    b0, b1 = (Message(Op("BW", 1, m), Op("BW", 0, m)) for m in range(2))
    second = [*second[:3], Group(0, (b0,), ()), *second[3:], Group(0, (b1,), ())]
    program = Program(program.schedule, program.transport, (first, tuple(second)))
    assert_equal(program, TWO.replaced(message_bytes=8.0))
    blocked(program, TWO.replaced(message_bytes=9.0))


def test_a_program_is_evaluated_only_under_its_own_shape() -> None:
    program = lower(gpipe(TWO), TWO, Ideal())
    other = Scenario(stages=2, microbatches=3)
    with pytest.raises(ScheduleError, match="2 micro-batches, the scenario 3"):
        compile_program(program, other)
    for call in (compile_program(program).evaluate, compile_program(program).makespans_ms):
        with pytest.raises(ScheduleError, match="2 micro-batches, the scenario 3"):
            call(other)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a batch varies one of forward_ms, "),
        ({"forward_ms": 3.0}, r"forward_ms has shape \[\], expected the batch, then \[2, 2\]"),
        ({"forward_ms": np.ones((4, 3))}, r"forward_ms has shape \[4, 3\]"),
        ({"latency_ms": np.ones((4, 1, 2, 1))}, r"latency_ms has shape \[4, 1, 2, 1\]"),
        ({"forward_ms": [-1.0]}, "forward_ms must hold numbers from 0"),
        ({"forward_ms": [np.nan]}, "forward_ms must hold numbers from 0"),
        ({"forward_ms": ["x"]}, "forward_ms must hold numbers, in rows"),
        ({"forward_ms": [1.0], "latency_ms": [1.0, 2.0]}, "differ in length"),
    ],
)
def test_a_batch_that_makes_no_sense(fields: dict[str, object], message: str) -> None:
    compiled = compile_program(lower(gpipe(TWO), TWO, Ideal()))
    with pytest.raises(ScenarioError, match=message):
        compiled.makespans_ms(TWO, **fields)  # type: ignore[arg-type]


def test_a_link_inside_one_device_has_no_delay_in_a_batch_either() -> None:
    scenario = Scenario(stages=2, placement=[0, 0], microbatches=1)
    compiled = compile_program(lower(plan(scenario, "zerobubble"), scenario, Ideal()))
    with pytest.raises(PipesimError, match="both on device 0"):
        compiled.makespans_ms(scenario, latency_ms=[0.0, 1.0])


def test_an_empty_batch_has_no_makespans() -> None:
    compiled = compile_program(lower(gpipe(TWO), TWO, Ideal()))
    assert compiled.makespans_ms(TWO, forward_ms=np.ones(0)).shape == (0,)
