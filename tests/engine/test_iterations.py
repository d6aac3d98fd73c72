"""Iterations of a job one after the other, with operator times that differ."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.delays import DelayTrace
from pipesim.engine import ENGINES, Engine, Injection, Iterations
from pipesim.errors import ScenarioError
from pipesim.lowering import lower
from pipesim.scenario import DOWN, TIME_OF, UP
from pipesim.schedule import Schedule
from pipesim.transport import Ideal, Nccl, Transport
from tests.engine.programs import TWO, gpipe
from tests.strategies import cases, examples, transports


@pytest.mark.parametrize("engine", ENGINES)
def test_iterations_follow_each_other_on_the_trace(engine: Engine) -> None:
    """F 10 and BW 20 of two stages and two micro-batches: F 0–20 and 10–30, BW 30–70 and 50–90."""
    injection = Injection(DelayTrace([75, 135], [[[3, 0]], [[0, 1]]]))
    iterations = Iterations(lower(gpipe(TWO), TWO, Ideal()), engine=engine)
    iterated = []
    for _ in range(3):
        iterated.append(iterations.run(TWO, injection))
        injection.start += iterated[-1].iteration_ms
    # The second starts at 90: F arrive at 13 and 23, BW at 53 and 73, 143 and 163 of the trace: 1.
    assert [one.iteration_ms for one in iterated] == [90, 94, 91]
    assert [one.sent_ms[0].tolist() for one in iterated] == [
        [[0, 0], [0, 0]], [[3, 3], [1, 1]], [[0, 0], [1, 1]],
    ]  # fmt: skip
    assert [one.peak_activations.tolist() for one in iterated] == [[2, 2]] * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_sent_inside_a_device_has_no_delay(engine: Engine) -> None:
    scenario = Scenario(stages=4, microbatches=2, placement=(0, 1, 1, 0))
    program = lower(plan(scenario, "zerobubble"), scenario, Nccl())
    trace = DelayTrace([0], [[[1, 2], [3, 4], [5, 6]]])
    sent_ms = Iterations(program, engine=engine).run(scenario, Injection(trace)).sent_ms
    assert sent_ms[[0, 2], DOWN].tolist() == [[1, 1], [5, 5]]
    assert sent_ms[[0, 2], UP].tolist() == [[2, 2], [6, 6]]
    assert np.isnan(sent_ms[1]).all()


@examples(0.5)
@given(cases(), transports, st.sampled_from(ENGINES), st.integers(0, 2), st.data())
def test_factors_on_times_are_another_scenario(
    case: tuple[Scenario, Schedule],
    over: Transport,
    engine: Engine,
    dimensions: int,
    data: st.DataObject,
) -> None:
    scenario, schedule = case
    shape = (scenario.stages, scenario.microbatches)[:dimensions]
    size = int(np.prod(shape, dtype=int))
    factors = st.lists(st.floats(0, 2, allow_subnormal=False), min_size=size, max_size=size)
    stretch = np.array(data.draw(factors)).reshape(shape)
    program = lower(schedule, scenario, over)
    trace = DelayTrace([0, 40], np.multiply.outer([5.0, 30.0], np.ones(scenario.stages - 1)))
    one = Iterations(program, engine=engine).run(scenario, Injection(trace), stretch=stretch)
    wide = stretch.reshape(shape + (1,) * (2 - dimensions))
    fields = {field: getattr(scenario, field) * wide for field in TIME_OF.values()}
    other = Iterations(program, engine=engine).run(scenario.replaced(**fields), Injection(trace))
    assert one.iteration_ms == other.iteration_ms
    assert np.array_equal(one.sent_ms, other.sent_ms, equal_nan=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stretch", [-1, [1, float("nan")], [1, 1, 1], [[1], [1]], float("inf")])
def test_factors_that_make_no_sense(engine: Engine, stretch: object) -> None:
    iterations = Iterations(lower(gpipe(TWO), TWO, Ideal()), engine=engine)
    with pytest.raises(ScenarioError, match=r"at least 0, in the shape of \[2, 2\]"):
        iterations.run(TWO, Injection(DelayTrace([0], [[1]])), stretch=stretch)  # type: ignore[arg-type]


def test_there_is_no_third_engine() -> None:
    program = lower(gpipe(TWO), TWO, Ideal())
    with pytest.raises(ScenarioError, match="unknown engine 'fast'"):
        Iterations(program, engine="fast").run(TWO, Injection(DelayTrace([0], [[1]])))  # type: ignore[arg-type]


def test_a_program_keeps_no_injection_alive() -> None:
    iterations = Iterations(lower(gpipe(TWO), TWO, Ideal()), engine="compiled")
    injection = Injection(DelayTrace([0], [[1]]))
    iterations.run(TWO, injection)
    gone = weakref.ref(injection)
    del injection
    gc.collect()
    assert gone() is None
