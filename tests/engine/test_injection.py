"""Delays that change during a run: when a send looks, what it gets, and what must stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.delays import DelayTrace
from pipesim.engine import Injection, run
from pipesim.errors import ScheduleError
from pipesim.lowering import lower
from pipesim.schedule import Op, Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Ideal, Nccl, Transport
from tests.strategies import cases, examples, transports

FORWARDS = Scenario(stages=2, microbatches=3, forward_ms=10, backward_ms=0, weight_ms=0)


def ran(trace: DelayTrace, over: Transport, *, every: int = 1, start: float = 0.0) -> Timeline:
    injection = Injection(trace, every=every, start=start)
    return run(lower(plan(FORWARDS, "gpipe"), FORWARDS, over), FORWARDS, injection)


def starts(timeline: Timeline) -> list[float]:
    return [timeline.spans[Op("F", 1, m)].start_ms for m in range(3)]


# F0, F1 and F2 of stage 0 end at 10, 20 and 30. The delay is 4 ms until 15, 25 ms until 28, then 1.
TRACE = DelayTrace([0, 15, 28], [[4], [25], [1]])


def test_a_message_in_flight_has_the_delay_of_its_departure() -> None:
    # It arrives at 14, 45 and 31; stage 1 runs 14–24, 45–55, 55–65.
    assert starts(ran(TRACE, Ideal())) == [14, 45, 55]


def test_a_busy_kernel_has_the_delay_of_its_start() -> None:
    # The kernel of F0 is busy 10–14; F1 waits for its group's start and runs 14–24; busy until
    # 49, so F2 runs 49–59; it looks at 59: 1 ms.
    assert starts(ran(TRACE, Nccl())) == [14, 49, 60]


def test_a_delegate_looks_when_it_picks_a_message_up() -> None:
    # One delegate: F0 10–14, F1 20–45, F2 from 45: 1 ms.
    assert starts(ran(TRACE, Delegated(delegates=1))) == [14, 45, 55]
    # Two: F2 is picked up at 30 by the first, and arrives at 31, before F1.
    held = [s for s in ran(TRACE, Delegated(delegates=2)).comm if s.path == "delegate"]
    assert sorted((s.start_ms, s.end_ms) for s in held if s.message.direction == 0) == [
        (10, 14), (20, 45), (30, 31),
    ]  # fmt: skip


def test_the_run_starts_where_the_trace_is() -> None:
    # 10, 20 and 30 are 28, 38 and 48 on the trace's clock: 1 ms each.
    assert starts(ran(TRACE, Ideal(), start=18)) == [11, 21, 31]


def test_a_sender_looks_at_every_second_send() -> None:
    # F0 looks (4 ms), F1 does not, F2 does (1 ms).
    assert starts(ran(TRACE, Ideal(), every=2)) == [14, 24, 34]


def test_delegates_count_their_own_sends() -> None:
    # Two delegates, each looks at every second send of its own: F0 and F1 look, F2 keeps F0's.
    held = [s for s in ran(TRACE, Delegated(delegates=2), every=2).comm if s.path == "delegate"]
    down = sorted((s.start_ms, s.end_ms) for s in held if s.message.direction == 0)
    assert down == [(10, 14), (20, 45), (30, 34)]


def test_sends_are_counted_over_iterations() -> None:
    """Four sends are done and none has seen a delay: the next look is at the sixth."""
    injection = Injection(DelayTrace([0], [[7.0]]), every=3)
    injection.sent(0, 4)
    program = lower(plan(FORWARDS, "gpipe"), FORWARDS, Ideal())
    first = run(program, FORWARDS, injection)
    assert starts(first) == [10, 20, 37]  # the third send is the seventh: it looks
    assert starts(run(program, FORWARDS, injection)) == [17, 27, 37]


def test_a_trace_for_other_links_does_not_fit() -> None:
    with pytest.raises(ScheduleError, match="for 2 links, the scenario has 1"):
        ran(DelayTrace([0], [[1, 2]]), Ideal())


def test_latency_stays_beside_the_trace() -> None:
    scenario = FORWARDS.with_delay(2, [0], kind="latency")
    program = lower(plan(scenario, "gpipe"), scenario, Ideal())
    timeline = run(program, scenario, Injection(DelayTrace([0], [[3.0]])))
    assert starts(timeline) == [15, 25, 35]


@examples(0.5)
@given(cases(), transports, st.integers(1, 9))
def test_a_trace_that_never_changes_is_a_delay(
    case: tuple[Scenario, Schedule], over: Transport, every: int
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, over)
    trace = DelayTrace([-1.0], scenario.occupancy_ms[None])
    static = run(program, scenario)
    traced = run(program, scenario.replaced(occupancy_ms=0.0), Injection(trace, every=every))
    if over.name == "isolated":  # it slows the ends of links that are known to be slow
        traced = run(program, scenario, Injection(trace, every=every))
    assert traced.spans == static.spans


@examples(0.5)
@given(
    cases(),
    st.sampled_from([Ideal(), Delegated(delegates=1), Delegated()]),
    st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True),
    st.data(),
)
def test_longer_delays_at_all_times_make_no_run_shorter(
    case: tuple[Scenario, Schedule], over: Transport, times: list[int], data: st.DataObject
) -> None:
    """If, besides, no delay falls faster than time passes: then no message overtakes itself.

    A message that leaves later may else meet a shorter delay, and arrive earlier.
    """
    scenario, schedule = case
    scenario = scenario.without_delay()
    shape = (len(times), scenario.stages - 1, 2)
    rises = st.lists(st.floats(0, 20), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
    crossing = np.array([scenario.crosses(i) for i in range(scenario.stages - 1)], dtype=bool)
    low = np.cumsum(np.array(data.draw(rises)).reshape(shape), axis=0) * crossing[:, None]
    high = low + np.array(data.draw(rises)).reshape(shape) * crossing[:, None]
    high = np.maximum.accumulate(high, axis=0)
    program = lower(schedule, scenario, over)
    short, long = (
        run(program, scenario, Injection(DelayTrace(sorted(times), delays))).iteration_ms
        for delays in (low, high)
    )
    assert short <= long + 1e-9
