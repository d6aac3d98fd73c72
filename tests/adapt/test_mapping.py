"""Which nodes run what, and which assignment is best."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt import mapping
from pipesim.adapt.mapping import Assignment, Carried, Delay, Job, Node, best_assignment
from pipesim.errors import ScenarioError
from pipesim.scenario import DOWN, UP
from tests.strategies import examples

times = st.integers(1, 50).map(float)


@st.composite
def jobs(draw: st.DrawFn, most_nodes: int = 6, most_slow: int = 3) -> Job:
    """A small job with some slow ways, in one direction or both."""
    ranks = draw(st.integers(2, most_nodes // 2))
    stages = draw(st.integers(1, most_nodes // ranks))
    nodes = Job(ranks, stages).nodes
    ways = [(a, b) for a in nodes for b in nodes if a != b]
    slow = draw(st.lists(st.sampled_from(ways), max_size=most_slow, unique=True))
    return Job(ranks, stages, {way: Delay(draw(times), draw(times)) for way in slow})


def _everywhere(job: Job) -> list[Assignment]:
    """All assignments of all nodes."""
    return [
        Assignment(
            job, {node: at for node, at in zip(job.nodes, places, strict=True) if node != at}
        )
        for places in permutations(job.nodes)
    ]


def _made_up(one: Assignment) -> float:
    """A cost in which links weigh differently, and a step is the slower of two parts."""
    links = one.links
    weights = 1 + np.arange(links.latency_ms.size).reshape(links.latency_ms.shape)
    pipeline = (weights * links.latency_ms + 2 * links.occupancy_ms).sum(axis=(1, 2))
    ring = 3 * links.ring_ms.max(axis=1, initial=0.0) * (1 + np.arange(one.job.stages))
    return float(max(pipeline.max(initial=0.0), ring.max(initial=0.0)))


@given(jobs())
@examples(0.5)
def test_the_best_is_that_of_all_permutations(job: Job) -> None:
    best = min((_made_up(one), one.moved) for one in _everywhere(job))
    found = best_assignment(job, _made_up)
    assert (_made_up(found), found.moved) == best


@given(jobs())
def test_the_best_is_never_worse_than_the_nodes_as_they_are(job: Job) -> None:
    here = Assignment(job)
    assert _made_up(best_assignment(job, _made_up)) <= _made_up(here)


@given(jobs(most_nodes=12))
@examples(0.5)
def test_exchanges_never_worsen_and_end_where_none_helps(job: Job) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapping, "MOST_PLACES", 0)
        found = best_assignment(job, _made_up)
    cost = _made_up(found)
    assert cost <= _made_up(Assignment(job))
    for one in job.nodes:
        for other in job.nodes:
            if one < other:
                assert cost <= _made_up(found.exchanged(one, other))


def test_exchanges_get_over_links_that_cost_nothing_more() -> None:
    """All links of a job are slow, so that no exchange alone makes its rings any faster."""
    job = Job(4, 2)
    near = [
        (one, other)
        for one in job.nodes
        for other in job.nodes
        if one != other and Assignment(job).carried((one, other)).kind != "nothing"
    ]
    job = Job(4, 2, dict.fromkeys(near, Delay(30.0)))
    assert not mapping.few_places(job)
    found = best_assignment(job, lambda one: float(one.links.ring_ms.max(axis=1).sum()))
    assert found.links.ring_ms.max() == 0


def test_exchanges_that_gain_nothing_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "MOST_PLACES", 0)
    job = Job(2, 4, {(Node(0, 1), Node(1, 1)): Delay(30.0)})
    assert best_assignment(job, lambda one: 0.0).moved == 0


@given(jobs(most_nodes=12), st.data())
def test_places_are_a_permutation(job: Job, data: st.DataObject) -> None:
    one = Assignment(job)
    for _ in range(data.draw(st.integers(0, 4))):
        a, b = (data.draw(st.sampled_from(job.nodes)) for _ in range(2))
        at_a, at_b = one.place(a), one.place(b)
        one = one.exchanged(a, b)
        assert (one.place(a), one.place(b)) == (at_b, at_a)
    assert sorted(map(one.place, job.nodes)) == job.nodes
    assert one.moved == sum(one.place(node) != node for node in job.nodes)


@given(jobs())
def test_what_slow_ways_carry_is_where_their_delays_are(job: Job) -> None:
    for one in job.assignments:
        links, kinds = one.links, [use.kind for use in one.uses]
        if "pipeline" not in kinds:
            assert not links.latency_ms.any()
            assert not links.occupancy_ms.any()
        if "ring" not in kinds:
            assert not links.ring_ms.any()


def test_a_way_has_its_direction_on_every_link() -> None:
    a, b = Node(0, 0), Node(1, 0)
    job = Job(3, 3, {(a, b): Delay(1.0, 10.0), (b, a): Delay(2.0, 20.0)})
    here = Assignment(job)
    assert here.uses == (Carried("ring", 0, 0),)
    assert here.links.ring_ms.tolist() == [[11, 0, 0], [0, 0, 0], [0, 0, 0]]
    back = here.exchanged(a, Node(2, 0))  # from rank 2 to 1: against the ring, and back along it
    assert back.uses == (Carried("ring", 0, 1),)
    assert back.links.ring_ms.tolist() == [[0, 22, 0], [0, 0, 0], [0, 0, 0]]
    down = here.exchanged(b, Node(0, 1))
    assert down.uses == (Carried("pipeline", 0, 0),)
    assert down.links.latency_ms[0, 0, [DOWN, UP]].tolist() == [1, 2]
    up = down.exchanged(a, b)
    assert up.links.occupancy_ms[0, 0, [DOWN, UP]].tolist() == [20, 10]
    apart = here.exchanged(b, Node(1, 1))
    assert apart.uses == (Carried("nothing"),)
    assert not any(delays.any() for delays in apart.links)


def test_two_ranks_are_joined_both_ways_and_the_last_rank_with_the_first() -> None:
    ends = Node(0, 1), Node(1, 1)
    pair = Job(2, 2, {ends: Delay(5.0), ends[::-1]: Delay(7.0)})
    assert Assignment(pair).links.ring_ms.tolist() == [[0, 0], [5, 7]]
    last = Job(3, 2, {(Node(2, 1), Node(0, 1)): Delay(5.0)})
    assert Assignment(last).links.ring_ms.tolist() == [[0, 0, 0], [0, 0, 5]]
    assert Assignment(last).uses == (Carried("ring", 1, 2),)


def test_one_exchange_parts_two_nodes_or_makes_them_neighbours() -> None:
    ends = Node(0, 1), Node(1, 1)
    job = Job(2, 4, {ends: Delay(30.0), ends[::-1]: Delay(30.0)})
    fewest = {use: one.moved for one in job.assignments for use in one.uses}
    assert fewest[Carried("nothing")] == fewest[Carried("pipeline", 0, 0)] == 2
    assert fewest[Carried("ring", 1, 0)] == 0
    assert fewest[Carried("pipeline", 2, 1)] == 4  # both move, and put two others out


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"ranks": 1, "stages": 4}, "at least 2 ranks"),
        ({"ranks": 2, "stages": 0}, "at least 2 ranks"),
        (
            {"ranks": 2, "stages": 2, "slow": {(Node(0, 0), Node(0, 2)): Delay(1.0)}},
            "no stage 2 of rank 0",
        ),
        (
            {"ranks": 2, "stages": 2, "slow": {(Node(0, 0), Node(0, 0)): Delay(1.0)}},
            "no link to itself",
        ),
    ],
)
def test_what_cannot_be(job: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        Job(**job)  # type: ignore[arg-type]
