"""Steps of data-parallel jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.data_parallel import Ended, step
from pipesim.engine import simulate
from pipesim.errors import ScenarioError
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from planners import plan
from tests.strategies import cases, examples

times = st.floats(0, 1e3, allow_subnormal=False)


def _arrays(size: int) -> st.SearchStrategy[Array]:
    return st.lists(times, min_size=size, max_size=size).map(np.array)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Ended], Array]:
    """Pipelines whose iteration ends with its last stage, and all-reduces."""
    stages = draw(st.integers(1, 5))
    ends = draw(st.lists(_arrays(stages), min_size=1, max_size=4))
    return [Ended(float(one.max()), one) for one in ends], draw(_arrays(stages))


@given(steps())
def test_overlap_is_never_slower(case: tuple[list[Ended], Array]) -> None:
    ranks, reduce_ms = case
    overlapped, barrier = step(ranks, reduce_ms), step(ranks, reduce_ms, overlap=False)
    assert overlapped.step_ms <= barrier.step_ms
    assert barrier.step_ms == barrier.pipeline_ms + reduce_ms.max()


@given(steps())
def test_a_step_is_as_long_as_each_of_its_parts(case: tuple[list[Ended], Array]) -> None:
    ranks, reduce_ms = case
    for overlap in (True, False):
        one = step(ranks, reduce_ms, overlap=overlap)
        assert all(one.step_ms >= rank.iteration_ms for rank in ranks)
        assert 0 <= one.exposed_ms <= reduce_ms.max() + 1e-9
        assert one.reduce_end_ms - one.reduce_start_ms == pytest.approx(reduce_ms)
        for rank in ranks:
            assert (one.reduce_start_ms >= rank.stages_ms).all()


@given(steps(), st.data())
def test_a_step_grows_with_each_all_reduce(
    case: tuple[list[Ended], Array], data: st.DataObject
) -> None:
    ranks, reduce_ms = case
    longer = reduce_ms + data.draw(_arrays(len(reduce_ms)))
    for overlap in (True, False):
        before = step(ranks, reduce_ms, overlap=overlap).step_ms
        assert step(ranks, longer, overlap=overlap).step_ms >= before


@given(steps())
def test_without_anything_to_reduce_the_slowest_pipeline_is_the_step(
    case: tuple[list[Ended], Array],
) -> None:
    ranks, reduce_ms = case
    one = step(ranks, 0 * reduce_ms)
    assert one.step_ms == one.pipeline_ms == max(rank.iteration_ms for rank in ranks)
    assert one.exposed_ms == 0


@given(cases())
@examples(0.2)
def test_stages_end_with_their_last_operator(case: tuple[Scenario, Schedule]) -> None:
    scenario, schedule = case
    timeline = simulate(scenario, schedule)
    ended = Ended.of(timeline)
    assert ended.iteration_ms == timeline.iteration_ms
    assert ended.stages_ms.max() == pytest.approx(ended.iteration_ms)
    for op, span in timeline.spans.items():
        device = scenario.placement[op.stage]
        assert span.end_ms - timeline.start_ms <= ended.stages_ms[device] + 1e-9


def test_the_worked_example_hides_what_the_cool_down_leaves() -> None:
    """Stages of zero-bubble's plan end at 360, 370, 380 and 390 ms."""
    scenario = Scenario()
    ended = Ended.of(simulate(scenario, plan(scenario, "zerobubble")))
    assert ended.stages_ms.tolist() == [360, 370, 380, 390]
    reduce_ms = np.array([0.0, 25.0, 0.0, 0.0])
    assert step([ended, ended], reduce_ms).exposed_ms == 5
    assert step([ended, ended], reduce_ms, overlap=False).exposed_ms == 25


def test_ranks_have_as_many_stages_each() -> None:
    one, other = Ended(1.0, np.ones(2)), Ended(1.0, np.ones(3))
    for ranks in ([], [one, other]):
        with pytest.raises(ScenarioError, match="as many stages each"):
            step(ranks, np.ones(2))
