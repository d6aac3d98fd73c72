"""Delays that change during a run: when a send looks, what it gets, and what must stay the same."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.delays import DelayTrace
from pipesim.engine import ENGINES, Injection, Iterations, run
from pipesim.engine.compiled.injected import InjectedProgram
from pipesim.engine.senders import senders
from pipesim.engine.simpy.simulator import run_and_sends
from pipesim.errors import DeadlockError, ScenarioError
from pipesim.lowering import lower
from pipesim.scenario import UP
from pipesim.schedule import Op, Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Exchange, Ideal, Nccl, Transport
from tests.engine.programs import close
from tests.strategies import cases, examples

INF = float("inf")
FORWARDS = Scenario(stages=2, microbatches=3, forward_ms=10, backward_ms=0, weight_ms=0)


def ran(injection: Injection, over: Transport, scenario: Scenario = FORWARDS) -> Timeline:
    """Run GPipe on both engines, which agree; the injection is left as SimPy leaves it."""
    program = lower(plan(scenario, "gpipe"), scenario, over)
    other = deepcopy(injection)
    timeline, sent_ms = run_and_sends(program, scenario, injection)
    evaluation, compiled_ms = InjectedProgram(program).evaluate(scenario, other)
    for spans, starts in zip(timeline.compute, evaluation.starts_ms, strict=True):
        assert [span.start_ms for span in spans] == starts.tolist()
    assert np.array_equal(sent_ms, compiled_ms, equal_nan=True)
    known, also_known = (one.memory[one.places(senders(program))] for one in (injection, other))
    assert known.tolist() == also_known.tolist()
    return timeline


def starts(timeline: Timeline) -> list[float]:
    return [timeline.spans[Op("F", 1, m)].start_ms for m in range(3)]


def held(timeline: Timeline) -> list[tuple[float, float]]:
    """When delegates hold activations."""
    spans = [s for s in timeline.comm if s.path == "delegate" and s.message.direction != UP]
    return sorted((s.start_ms, s.end_ms) for s in spans)


# F0, F1 and F2 of stage 0 end at 10, 20 and 30. The delay is 4 ms until 15, 25 ms until 28, then 1.
TRACE = DelayTrace([0, 15, 28], [[4], [25], [1]])


def test_a_message_in_flight_has_the_delay_of_its_departure() -> None:
    # It arrives at 14, 45 and 31; stage 1 runs 14–24, 45–55, 55–65.
    assert starts(ran(Injection(TRACE), Ideal())) == [14, 45, 55]


def test_a_busy_kernel_has_the_delay_of_its_start() -> None:
    # The kernel of F0 is busy 10–14; F1 waits for its group's start and runs 14–24; busy until
    # 49, so F2 runs 49–59; it looks at 59: 1 ms.
    assert starts(ran(Injection(TRACE), Nccl())) == [14, 49, 60]
    assert starts(ran(Injection(TRACE), Exchange())) == [14, 49, 60]


def test_a_delegate_looks_when_it_picks_a_message_up() -> None:
    # One delegate: F0 10–14, F1 20–45, F2 from 45: 1 ms.
    assert starts(ran(Injection(TRACE), Delegated(delegates=1))) == [14, 45, 55]
    # Two: F2 is picked up at 30 by the first, and arrives at 31, before F1.
    two = ran(Injection(TRACE), Delegated(delegates=2))
    assert held(two) == [(10, 14), (20, 45), (30, 31)]


def test_the_run_starts_where_the_trace_is() -> None:
    # 10, 20 and 30 are 28, 38 and 48 on the trace's clock: 1 ms each.
    assert starts(ran(Injection(TRACE, start=18), Ideal())) == [11, 21, 31]


def test_a_sender_looks_at_every_second_send() -> None:
    # F0 looks (4 ms), F1 does not, F2 does (1 ms).
    assert starts(ran(Injection(TRACE, every=2), Ideal())) == [14, 24, 34]


def test_delegates_count_their_own_sends() -> None:
    # Two delegates, each looks at every second send of its own: F0 and F1 look, F2 keeps F0's.
    for lags in ({"every": 2}, {"every": 1, "delegates_every": 2}):
        two = ran(Injection(TRACE, **lags), Delegated(delegates=2))
        assert held(two) == [(10, 14), (20, 45), (30, 34)]


def test_devices_and_delegates_look_after_sends_of_their_own() -> None:
    """Device 1 sends F down in kernels, where nothing is slow, and B up with delegates."""
    scenario = Scenario(stages=3, microbatches=2, forward_ms=10, backward_ms=0, weight_ms=0)
    scenario = scenario.with_delay(1, [0], directions=["up"])
    trace = DelayTrace([0, 25, 35, 60], [[2, 2], [4, 4], [6, 6], [8, 8]])
    injection = Injection(trace, every=2, delegates_every=1)
    timeline = ran(injection, Delegated(only_slow=True, delegates=1), scenario)
    busy = [(s.message.producer, s.end_ms - s.start_ms) for s in timeline.comm if s.path == "busy"]
    # Each device looks at its first of two sends: at 10, at 24 and at 48.
    assert sorted(busy) == [
        (Op("BW", 2, 0), 6), (Op("BW", 2, 1), 6),
        (Op("F", 0, 0), 2), (Op("F", 0, 1), 2), (Op("F", 1, 0), 2), (Op("F", 1, 1), 2),
    ]  # fmt: skip
    carried = [s.end_ms - s.start_ms for s in timeline.comm if s.path == "delegate"]
    assert carried == [6, 8]  # picked up at 54 and 60


def test_sends_are_counted_over_iterations() -> None:
    """Four sends are done and none has seen a delay: the next look is at the sixth."""
    injection = Injection(DelayTrace([0], [[7.0]]), every=3)
    injection.sent(0, 4)
    first = ran(injection, Ideal())
    assert starts(first) == [10, 20, 37]  # the third send is the seventh: it looks
    assert starts(ran(injection, Ideal())) == [17, 27, 37]


def test_a_fork_remembers_the_same_and_tells_nobody() -> None:
    injection = Injection(TRACE, every=4)
    ran(injection, Ideal())
    places = injection.places([0, 1])
    before = injection.memory[places].tolist()
    fork = injection.fork(start=28)
    # Three sends are done and 4 ms known: F0 keeps that, F1 is the fifth and looks.
    assert starts(ran(fork, Ideal())) == [14, 24, 34]
    assert fork.start == 28
    assert injection.start == 0
    assert injection.memory[places].tolist() == before
    assert fork.memory[places].tolist() != before


def test_a_trace_by_iteration_is_the_same_for_all_sends_of_a_run() -> None:
    trace = DelayTrace([0, 2], [[4], [9]], by="iteration")
    for iteration, delay in enumerate([4, 4, 9, 9]):
        timeline = ran(Injection(trace, start=iteration), Ideal())
        assert starts(timeline) == [10 + delay, 20 + delay, 30 + delay]
    # Three sends an iteration; the first, fifth and ninth look.
    lagging = Injection(trace, every=4)
    for iteration, expected in enumerate([[14, 24, 34], [14, 24, 34], [14, 24, 39]]):
        lagging.start = iteration
        assert starts(ran(lagging, Ideal())) == expected


def test_latency_stays_beside_the_trace() -> None:
    scenario = FORWARDS.with_delay(2, [0], kind="latency")
    assert starts(ran(Injection(DelayTrace([0], [[3.0]])), Ideal(), scenario)) == [15, 25, 35]


# -- links that fail -----------------------------------------------------------------------

FAILS = DelayTrace([0, 15, 28, 29], [[4], [INF], [1], [6]])


@pytest.mark.parametrize(
    ("over", "every", "expected"),
    [
        (Ideal(), 1, [14, 29, 39]),  # sent at 10, 20 (waits for 28) and 30: there at 14, 29, 36
        (Ideal(), 3, [14, 29, 39]),  # F2 keeps what F1 found at the recovery: there at 31
        (Delegated(delegates=1), 1, [14, 29, 39]),
        # F1 is busy 24–29, so that F2 runs 29–39; it is busy 39–45, or lags: 39–40.
        (Nccl(), 1, [14, 29, 45]),
        (Exchange(), 3, [14, 29, 40]),
    ],
)
def test_what_meets_a_failed_link_waits_for_its_recovery(
    over: Transport, every: int, expected: list[float]
) -> None:
    injection = Injection(FAILS, every=every)
    assert starts(ran(injection, over)) == expected


def test_the_delay_of_a_message_holds_its_wait() -> None:
    program = lower(plan(FORWARDS, "gpipe"), FORWARDS, Ideal())
    _, sent_ms = run_and_sends(program, FORWARDS, Injection(FAILS))
    assert sent_ms[0, 0].tolist() == [4, 9, 6]


def test_a_failure_is_not_adopted_late() -> None:
    """Who has looked before the link fails meets the failure all the same."""
    trace = DelayTrace([0, 18, 21], [[4], [INF], [2]])
    # Sent at 10, 20 and 30; only the second waits, for 21, and looks there.
    assert starts(ran(Injection(trace, every=100), Ideal())) == [14, 24, 34]
    busy = ran(Injection(trace, every=100), Delegated(delegates=1))
    assert held(busy) == [(10, 14), (20, 23), (30, 32)]


def test_who_knows_of_a_link_only_that_it_was_down_looks_again() -> None:
    scenario = Scenario(stages=3, microbatches=1, weight_ms=0)
    healthy, down = [[0, 2], [3, 9]], [[0, INF], [3, 9]]
    trace = DelayTrace([0, 40, 60], [down, healthy, [[0, 5], [3, 9]]])
    injection = Injection(trace, every=100)
    # Device 1 looks at 20, while link 0 is down upwards: F 10–20, F 23–33, B 33–43, then 9 ms,
    # B 52–62; by then link 0 is up, with 5 ms since 60: B 67–77.
    timeline = ran(injection, Ideal(), scenario)
    assert timeline.spans[Op("BW", 0, 0)] == (Op("BW", 0, 0), 67, 77)
    assert injection.memory[injection.places([1])].tolist() == [[2, 3]]


@pytest.mark.parametrize("over", [Ideal(), Nccl(), Nccl(eager_bytes=1), Exchange(), Delegated()])
@pytest.mark.parametrize(
    ("trace", "since", "first"),
    [
        (DelayTrace([0, 15], [[4], [INF]]), 15, 1),
        (DelayTrace([0, 5, 16, 17], [[INF], [0], [INF], [INF]]), 16, 1),
        (DelayTrace([-3], [[INF]]), -3, 0),
    ],
)
def test_a_link_that_never_recovers_is_named(
    over: Transport, trace: DelayTrace, since: float, first: int
) -> None:
    program = lower(plan(FORWARDS, "gpipe"), FORWARDS, over)
    words = (
        f"link 0 (down) fails at {since} ms and never recovers: micro-batch {first} waits for it"
    )
    for engine in ENGINES:
        with pytest.raises(DeadlockError) as caught:
            Iterations(program, engine=engine).run(FORWARDS, Injection(trace))
        assert caught.value.blocked == (words,)


def test_a_link_that_fails_for_ever_when_nothing_is_sent_any_more_is_no_matter() -> None:
    assert starts(ran(Injection(DelayTrace([0, 65], [[0], [INF]])), Ideal())) == [10, 20, 30]


@pytest.mark.parametrize("every", [0, -1, 1.5, float("nan")])
def test_senders_look_after_a_whole_number_of_sends(every: int) -> None:
    for options in ({"every": every}, {"delegates_every": every}):
        with pytest.raises(ScenarioError, match="after a number of sends, from 1 on"):
            Injection(TRACE, **options)


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
    assert short <= long or short == close(long)
