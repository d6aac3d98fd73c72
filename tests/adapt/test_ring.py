"""The ring all-reduce, against its recurrence, against processes, and in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.ring import GRADIENT_BYTES, AllReduce, bucket_bytes
from pipesim.errors import ScenarioError
from pipesim.scenario import Array

delays = st.floats(0, 100, allow_subnormal=False)
rings = st.lists(delays, min_size=2, max_size=6).map(np.array)
sizes = st.floats(10, 1e9)


@st.composite
def reductions(draw: st.DrawFn) -> AllReduce:
    gradients = draw(sizes)
    bucket = gradients / draw(st.floats(0.1, 7))  # up to 7 buckets, the last one smaller
    return AllReduce(gradients, bucket, draw(st.one_of(st.just(math.inf), st.floats(1e3, 1e9))))


def _step_ms(reduction: AllReduce, delay_ms: Array) -> Array:
    """The time of every step on every link, shape [steps, D]: bucket after bucket."""
    ranks, bucket = len(delay_ms), reduction.bucket_bytes
    assert bucket is not None
    left, rows = reduction.gradient_bytes, []
    for _ in range(math.ceil(reduction.gradient_bytes / bucket)):
        size, left = min(bucket, left), left - bucket
        rows += [delay_ms + size / ranks / reduction.bytes_per_ms] * (2 * (ranks - 1))
    return np.array(rows)


def recurrence_ms(step_ms: Array) -> float:
    """When the last chunk is there: a link sends once it is free and has what it passes on."""
    end = np.zeros(step_ms.shape[1])
    for times in step_ms:
        end = np.maximum(end, np.roll(end, 1)) + times
    return float(end.max())


def processes_ms(step_ms: Array) -> float:
    """The same with a process for each node, which sends chunks and waits for those it gets."""
    env = simpy.Environment()
    steps, ranks = step_ms.shape
    inboxes = [simpy.Store(env) for _ in range(ranks)]

    def node(rank: int) -> simpy.events.ProcessGenerator:
        for step in range(steps):
            yield env.timeout(step_ms[step, rank])
            yield inboxes[(rank + 1) % ranks].put(step)
            got = yield inboxes[rank].get()
            assert got == step

    for rank in range(ranks):
        env.process(node(rank))
    env.run()
    return float(env.now)


@given(reductions(), rings)
def test_it_is_the_longest_path_through_all_steps(reduction: AllReduce, delay_ms: Array) -> None:
    steps = _step_ms(reduction, delay_ms)
    assert reduction.duration_ms(delay_ms) == pytest.approx(recurrence_ms(steps))


@given(reductions(), rings)
def test_it_is_what_nodes_that_send_and_wait_take(reduction: AllReduce, delay_ms: Array) -> None:
    steps = _step_ms(reduction, delay_ms)
    assert reduction.duration_ms(delay_ms) == pytest.approx(processes_ms(steps))


@given(st.integers(2, 8), delays, sizes, st.floats(1e3, 1e9))
def test_uniform_links_have_the_textbook_time(
    ranks: int, delay_ms: float, size: float, rate: float
) -> None:
    one = AllReduce(size, size, rate)
    textbook = 2 * (ranks - 1) * (delay_ms + size / ranks / rate)
    assert one.duration_ms([delay_ms] * ranks) == pytest.approx(textbook)


@given(reductions(), rings)
def test_one_slow_link_costs_as_much_as_if_all_were(reduction: AllReduce, delay_ms: Array) -> None:
    slowest = delay_ms.max()
    one = np.where(np.arange(len(delay_ms)) == delay_ms.argmax(), slowest, 0.0)
    every = np.full_like(delay_ms, slowest)
    durations = {reduction.duration_ms(links) for links in (one, delay_ms, every)}
    assert len(durations) == 1


@given(reductions(), rings, st.data())
def test_it_grows_with_delays_and_bytes(
    reduction: AllReduce, delay_ms: Array, data: st.DataObject
) -> None:
    less = np.array([data.draw(st.floats(0, delay)) for delay in delay_ms])
    assert reduction.duration_ms(less) <= reduction.duration_ms(delay_ms)
    smaller = data.draw(st.floats(0, reduction.gradient_bytes))
    fewer = AllReduce(smaller, reduction.bucket_bytes, reduction.bytes_per_ms)
    assert fewer.duration_ms(delay_ms) <= reduction.duration_ms(delay_ms)


@given(reductions(), rings, st.floats(0.1, 10))
def test_all_times_scale(reduction: AllReduce, delay_ms: Array, factor: float) -> None:
    slower = AllReduce(
        reduction.gradient_bytes, reduction.bucket_bytes, reduction.bytes_per_ms / factor
    )
    scaled = factor * reduction.duration_ms(delay_ms)
    assert slower.duration_ms(factor * delay_ms) == pytest.approx(scaled)


@given(reductions(), delays)
def test_a_single_rank_has_nothing_to_reduce(reduction: AllReduce, delay_ms: float) -> None:
    assert reduction.duration_ms([delay_ms]) == 0


def test_the_published_job_has_48_buckets() -> None:
    """1.887e9 parameters a stage in buckets of 40 million: 47.2, so 96 steps between two ranks."""
    assert GRADIENT_BYTES / bucket_bytes(2) == pytest.approx(47.19, abs=0.01)
    assert AllReduce().duration_ms([30.0, 30.0]) == 96 * 30
    # 30 ms for each 40 MiB on a link instead, of gradients in fp16.
    assert AllReduce(GRADIENT_BYTES / 2, 2 * 40 * 2**20).duration_ms([30.0, 30.0]) == 90 * 30


def test_no_gradients_take_no_time() -> None:
    assert AllReduce(0.0).duration_ms([30.0, 30.0]) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gradient_bytes": -1.0}, "gradients cannot have -1 bytes"),
        ({"gradient_bytes": math.inf}, "gradients cannot have inf bytes"),
        ({"bucket_bytes": 0.0}, "a bucket cannot have 0 bytes"),
        ({"bucket_bytes": 0.5}, "a bucket cannot have 0.5 bytes"),
        ({"bucket_bytes": math.nan}, "a bucket cannot have nan bytes"),
        ({"bytes_per_ms": 0.0}, "a bandwidth must be above 0, not 0"),
        ({"bytes_per_ms": math.nan}, "a bandwidth must be above 0, not nan"),
    ],
)
def test_what_cannot_be(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        AllReduce(**wrong)


@pytest.mark.parametrize("delay_ms", [-1.0, math.nan, math.inf])
def test_delays_are_times(delay_ms: float) -> None:
    with pytest.raises(ScenarioError, match="finite and not negative"):
        AllReduce().duration_ms([0.0, delay_ms])


@pytest.mark.parametrize("one", [AllReduce(1e9, 1.0), AllReduce(bytes_per_ms=1e-300)])
def test_an_all_reduce_that_takes_too_long(one: AllReduce) -> None:
    with pytest.raises(ScenarioError, match="which is too long"):
        one.duration_ms([1e15, 0.0])
