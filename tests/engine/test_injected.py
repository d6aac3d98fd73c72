"""Both engines under delays that change: the same times, delays and memories, to the last digit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.delays import DelayTrace
from pipesim.engine import ENGINES, Engine, Injection, Iterations, run
from pipesim.engine.compiled.evaluator import compile_program
from pipesim.engine.compiled.injected import InjectedProgram
from pipesim.engine.senders import senders
from pipesim.engine.simpy.simulator import run_and_sends
from pipesim.errors import DeadlockError, ScheduleError
from pipesim.lowering import lower
from pipesim.program import Compute, Group, Post, Program
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Ideal, Isolated, Nccl, Transport
from tests.engine.programs import TWO, deadlocked, gpipe, unmet
from tests.strategies import cases, communicating, examples, transports


@st.composite
def traces(draw: st.DrawFn, program: Program, scenario: Scenario) -> DelayTrace:
    """Delays that change within some iterations, often just when an operator ends."""
    by_iteration = draw(st.integers(0, 4)) == 0
    if by_iteration:
        moments: st.SearchStrategy[float] = st.integers(-1, 3).map(float)
    else:
        timeline = run(program, scenario)
        ends = sorted({span.end_ms for span in timeline.spans.values()})
        moments = st.sampled_from(ends) | st.floats(-5, 3 * ends[-1] + 1, allow_subnormal=False)
    starts = sorted(draw(st.lists(moments, min_size=1, max_size=8, unique=True)))
    delays = st.sampled_from([0.0, 0.0, 5.0, 20.0]) | st.floats(0, 60, allow_subnormal=False)
    if not by_iteration and draw(st.booleans()):
        delays |= st.just(float("inf"))
    shape = (len(starts), scenario.stages - 1, 2)
    values = draw(st.lists(delays, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    rows = np.array(values).reshape(shape)
    if draw(st.booleans()):  # else links may stay down
        rows[-1][np.isinf(rows[-1])] = 7.0
    return DelayTrace(starts, rows, by="iteration" if by_iteration else "time")


def assert_equal(
    program: Program, scenario: Scenario, trace: DelayTrace, data: st.DataObject
) -> None:
    """Run some iterations in a row on both engines, each with an injection of its own."""
    lags = data.draw(st.tuples(st.integers(1, 9), st.none() | st.integers(1, 4)))
    injections = [Injection(trace, every=lags[0], delegates_every=lags[1]) for _ in ENGINES]
    who = list(senders(program))
    if who and data.draw(st.booleans()):
        for injection in injections:
            injection.sent(who[-1], 4)
    compiled = InjectedProgram(program)
    for index in range(data.draw(st.integers(1, 4))):
        try:
            timeline, sent_ms = run_and_sends(program, scenario, injections[0])
        except DeadlockError as expected:
            with pytest.raises(DeadlockError, match=re.escape(str(expected)) + "$"):
                compiled.evaluate(scenario, injections[1])
            event("a link stays down")
            return
        evaluation, sent_compiled_ms = compiled.evaluate(scenario, injections[1])
        assert evaluation.makespan_ms == timeline.iteration_ms
        for spans, starts, ends in zip(
            timeline.compute, evaluation.starts_ms, evaluation.ends_ms, strict=True
        ):
            assert starts.tolist() == [span.start_ms for span in spans]
            assert ends.tolist() == [span.end_ms for span in spans]
        assert evaluation.peak_activations.tolist() == timeline.peak_activations.tolist()
        assert np.array_equal(sent_compiled_ms, sent_ms, equal_nan=True)
        memories = [injection.memory[injection.places(who)].tolist() for injection in injections]
        assert memories[0] == memories[1]
        for injection in injections:
            by_time = trace.by == "time"
            injection.start += timeline.iteration_ms if by_time else 1.0
        if np.nanmax(sent_ms, initial=0) > np.nanmin(sent_ms, initial=99):
            event(f"delays differ in iteration {index}")
    event(f"{program.transport.name} to the end")


@given(cases(), transports, st.data())
def test_both_engines_run_it_alike(
    case: tuple[Scenario, Schedule], over: Transport, data: st.DataObject
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, over)
    if data.draw(st.booleans()):
        scenario = scenario.replaced(message_bytes=1e5)
    assert_equal(program, scenario, data.draw(traces(program, scenario)), data)


@examples(0.5)
@given(communicating(), st.sampled_from([Exchange(), Nccl(p2p_streams="peer")]), st.data())
def test_so_they_do_in_a_schedules_own_order_of_sends(
    case: tuple[Scenario, Schedule], over: Transport, data: st.DataObject
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, over)
    try:
        compile_program(program, scenario)
    except DeadlockError as error:
        event("hangs without any delay")
        injection = Injection(DelayTrace([], np.zeros((0, scenario.stages - 1, 2))))
        for engine in ENGINES:
            with pytest.raises(DeadlockError, match=re.escape(str(error)) + "$"):
                Iterations(program, engine=engine).run(scenario, injection)
        return
    assert_equal(program, scenario, data.draw(traces(program, scenario)), data)


@examples(0.5)
@given(cases(), transports, st.integers(1, 9), st.sampled_from(ENGINES))
def test_a_trace_that_never_changes_is_a_delay(
    case: tuple[Scenario, Schedule], over: Transport, every: int, engine: Engine
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, over)
    static = run(program, scenario)
    injection = Injection(DelayTrace([-1.0], scenario.occupancy_ms[None]), every=every)
    if over.name != "isolated":  # which slows the ends of links that the scenario knows as slow
        scenario = scenario.replaced(occupancy_ms=0.0)
    one = Iterations(program, engine=engine).run(scenario, injection)
    assert one.iteration_ms == pytest.approx(static.iteration_ms, rel=1e-12)
    assert one.peak_activations.tolist() == static.peak_activations.tolist()


def test_a_hang_of_the_program_itself_is_told_first() -> None:
    for program, scenario in ((deadlocked(), TWO), (unmet(), Scenario(stages=2, microbatches=1))):
        for engine in ENGINES:
            injection = Injection(DelayTrace([0.0], [[1.0]]))
            with pytest.raises(DeadlockError, match="deadlock: device 0"):
                Iterations(program, engine=engine).run(scenario, injection)


def test_an_order_that_depends_on_times_is_refused() -> None:
    """The first device posts one message to a wire and launches a kernel for the other."""
    schedule = gpipe(TWO)
    program = lower(schedule, TWO, Ideal())
    kernel = lower(schedule, TWO, Nccl())
    group = next(i for i in kernel.instructions[0] if isinstance(i, Group) and i.sends)
    first = [
        i
        for i in program.instructions[0]
        if not (isinstance(i, Post) and i.message == group.sends[0])
    ]
    place = next(
        k for k, i in enumerate(first) if isinstance(i, Compute) and i.op == group.sends[0].producer
    )
    first.insert(place + 1, Group(0, group.sends, ()))
    mixed = Program(schedule, Ideal(), (tuple(first), program.instructions[1]))
    injection = Injection(DelayTrace([0.0], [[1.0]]))
    for engine in ENGINES:
        with pytest.raises(ScheduleError, match="device 0 sends kernels and over wires"):
            Iterations(mixed, engine=engine).run(TWO, injection)


@pytest.mark.parametrize("over", [Nccl(), Exchange(), Delegated(), Isolated(), Ideal()])
def test_a_trace_for_other_links_does_not_fit(over: Transport) -> None:
    program = lower(plan(TWO, "gpipe"), TWO, over)
    other = Scenario(stages=2, microbatches=3)
    for engine in ENGINES:
        with pytest.raises(ScheduleError, match="for 2 links, the scenario has 1"):
            Iterations(program, engine=engine).run(TWO, Injection(DelayTrace([0], [[1, 2]])))
        with pytest.raises(ScheduleError, match="2 micro-batches, the scenario 3"):
            Iterations(program, engine=engine).run(other, Injection(DelayTrace([0], [[1]])))
