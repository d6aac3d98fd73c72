"""Integer-coded orders against the SimPy engine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.engine import simulate
from pipesim.engine.compiled.orders import OrderEvaluator
from pipesim.errors import PipesimError, ScenarioError, ScheduleError
from pipesim.schedule import Op, Schedule
from pipesim.transport import Delegated, Exchange, Ideal, Isolated, Nccl, Transport, transport
from tests.engine.programs import close
from tests.strategies import cases, transports

unqueued = transports.filter(
    lambda t: not isinstance(t, Nccl | Exchange) and not getattr(t, "only_slow", False)
)


@given(cases(), unqueued)
def test_coded_orders_take_the_engines_times(
    case: tuple[Scenario, Schedule], over: Transport
) -> None:
    scenario, schedule = case
    timeline = simulate(scenario, schedule, over)
    evaluator = OrderEvaluator(scenario, over)
    times = evaluator.evaluate(*evaluator.encode(schedule))
    assert times.makespan_ms == close(timeline.iteration_ms)
    starts = [span.start_ms for device in timeline.compute for span in device]
    assert times.starts_ms == close(np.array(starts))
    assert times.peak_activations.tolist() == timeline.peak_activations.tolist()


@given(cases(), unqueued, st.data())
def test_stages_end_when_the_engine_ends_them(
    case: tuple[Scenario, Schedule], over: Transport, data: st.DataObject
) -> None:
    scenario, schedule = case
    factors = np.array(data.draw(st.lists(st.floats(0, 3), min_size=1, max_size=3)))
    kinds = ("forward_ms", "backward_ms", "weight_ms", "fused_backward_ms", "latency_ms")
    times = {kind: np.multiply.outer(factors, getattr(scenario, kind)) for kind in kinds}
    if isinstance(over, Isolated) and scenario.latency_ms.any():
        del times["latency_ms"]  # without a delay its stages would be no slower
    ends = OrderEvaluator(scenario, over).stage_ends_ms(schedule, **times)
    assert ends.shape == (len(factors), scenario.stages)
    for run, own in enumerate(ends):
        changed = scenario.replaced(**{kind: values[run] for kind, values in times.items()})
        last = np.zeros(scenario.stages)
        for span in (s for d in simulate(changed, schedule, over).compute for s in d):
            last[span.op.stage] = max(last[span.op.stage], span.end_ms)
        assert own == close(last)


@pytest.mark.parametrize("times", [{"forward_ms": [-1]}, {"latency_ms": [[1, 2, 3]]}])
def test_times_of_runs_are_checked(times: dict[str, object]) -> None:
    scenario = Scenario(stages=2, microbatches=2)
    with pytest.raises(ScenarioError):
        OrderEvaluator(scenario).stage_ends_ms(plan(scenario, "1f1b"), **times)


@given(cases())
def test_codes_say_everything(case: tuple[Scenario, Schedule]) -> None:
    scenario, schedule = case
    evaluator = OrderEvaluator(scenario)
    assert evaluator.decode(*evaluator.encode(schedule)).orders == schedule.orders


@given(cases(), unqueued, st.data())
def test_changed_orders_are_timed_or_infeasible(
    case: tuple[Scenario, Schedule], over: Transport, data: st.DataObject
) -> None:
    """Random swaps on the devices: the schedule says whether they can run, the engine when."""
    scenario, schedule = case
    evaluator = OrderEvaluator(scenario, over)
    codes, first = evaluator.encode(schedule)
    for _ in range(data.draw(st.integers(1, 4))):
        device = data.draw(st.integers(0, scenario.devices - 1))
        last = int(first[device + 1]) - 1
        at = data.draw(st.integers(int(first[device]), last))
        other = min(at + data.draw(st.integers(1, 3)), last)
        codes[[at, other]] = codes[[other, at]]
    times = evaluator.evaluate(codes, first)
    try:
        changed = evaluator.decode(codes, first)
    except ScheduleError:
        assert times.makespan_ms == math.inf
        assert np.isinf(times.peak_activations).all()
        assert np.isinf(times.starts_ms).all()
        return
    timeline = simulate(scenario, changed, over)
    assert times.makespan_ms == close(timeline.iteration_ms)
    assert times.peak_activations.tolist() == timeline.peak_activations.tolist()


@given(cases(), st.data())
def test_orders_that_are_not_complete_are_refused(
    case: tuple[Scenario, Schedule], data: st.DataObject
) -> None:
    scenario, schedule = case
    evaluator = OrderEvaluator(scenario)
    codes, first = evaluator.encode(schedule)
    at = data.draw(st.integers(0, len(codes) - 1))
    wrong = data.draw(st.integers(-3, 4 * scenario.stages * scenario.microbatches + 3))
    assume(wrong != codes[at])
    codes[at] = wrong
    with pytest.raises(ScheduleError):
        evaluator.evaluate(codes, first)
    with pytest.raises(ScheduleError):
        evaluator.decode(codes, first)


def test_what_is_wrong_with_orders_is_named() -> None:
    scenario = Scenario(stages=2, microbatches=2)
    evaluator = OrderEvaluator(scenario)
    codes, first = evaluator.encode(plan(scenario, "1f1b"))

    def complaint(codes: object, first: object) -> str:
        with pytest.raises(PipesimError) as caught:
            evaluator.evaluate(codes, first)  # type: ignore[arg-type]
        return str(caught.value)

    doubled = codes.copy()
    doubled[1] = doubled[0]
    assert complaint(doubled, first) == "0F0 is not an operator of device 0, or comes twice"
    elsewhere = codes.copy()
    elsewhere[-1] = evaluator.code(Op("W", 0, 1))
    assert complaint(elsewhere, first) == "0W1 is not an operator of device 1, or comes twice"
    assert complaint(codes[:-1], [0, 4, 7]).startswith("every stage and micro-batch needs F, and")
    assert complaint([*codes[:-1], 99], first) == "99 is no operator's code"
    assert complaint(codes, [0, 4]).startswith("orders of 2 devices are one array of codes")
    for places in ([0, 9, 8], [1, 4, 8], [0, 4, 7]):
        assert complaint(codes, places) == f"the places {places} do not divide 8 codes"


@pytest.mark.parametrize("over", ["nccl", "exchange", Delegated(only_slow=True)])
def test_transports_that_queue_kernels_are_refused(over: str | Transport) -> None:
    with pytest.raises(ScenarioError, match=f"what {transport(over)} does"):
        OrderEvaluator(Scenario(), over)


def test_an_order_of_the_worked_example() -> None:
    scenario = Scenario().with_delay(20, [0])
    evaluator = OrderEvaluator(scenario, Ideal())
    assert evaluator.evaluate(*evaluator.encode(plan(scenario, "pipemorph"))).makespan_ms == 410
    assert (
        evaluator.evaluate(*evaluator.encode(plan(scenario, "zerobubble"))).makespan_ms == 410 + 30
    )
