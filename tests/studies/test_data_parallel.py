"""Data-parallel jobs on the engine: as they are, re-mapped, re-planned, and in the best places."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt import mapping
from pipesim.adapt.data_parallel import Ended, step
from pipesim.adapt.mapping import Assignment, Delay, Job, Node
from pipesim.adapt.ring import AllReduce
from pipesim.documents.scenario_toml import load_scenario
from pipesim.engine import evaluate, simulate
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.fidelity.prediction import profiled
from pipesim.fidelity.runs import load_runs
from pipesim.fidelity.shipped import testbed_named as known_testbed
from pipesim.scenario import Scenario
from pipesim.studies.comparison import compare
from pipesim.studies.data_parallel import (
    DataParallelComparison,
    compare_data_parallel,
    job_of,
)
from pipesim.studies.data_parallel_advice import advised_row, data_parallel_advice
from planners import plan
from tests import ROOT
from tests.strategies import examples

H800 = ROOT / "traces" / "h800-gpt-7b.toml"


def _ring(delay_ms: float, stage: int = 1, rank: int = 0) -> dict[tuple[Node, Node], Delay]:
    ends = Node(rank, stage), Node(rank + 1, stage)
    return {way: Delay(0.0, delay_ms) for way in (ends, ends[::-1])}


def test_a_slow_link_between_ranks_of_the_worked_example() -> None:
    """Stage 1 ends after 370 ms and reduces 48 buckets in 2 steps of 10 ms."""
    result = compare_data_parallel(Scenario(), Job(2, 4, _ring(10)), systems=["zerobubble"])
    here = result.row("zerobubble")
    assert here.step.reduce_start_ms.tolist() == [360, 370, 380, 390]
    assert here.step.step_ms == 370 + 48 * 2 * 10
    assert (here.step.pipeline_ms, here.healthy.step_ms) == (390, 390)
    waiting = compare_data_parallel(
        Scenario(), Job(2, 4, _ring(10)), systems=["zerobubble"], overlap=False
    )
    assert waiting.row("zerobubble").step.step_ms == 390 + 48 * 2 * 10


def test_the_step_is_the_slowest_ranks() -> None:
    healthy, slow = Scenario(), Scenario().with_delay(20, links=[0])
    result = compare_data_parallel(
        healthy, job_of([healthy, slow, healthy], {}), AllReduce(0.0), ["zerobubble"]
    )
    alone = compare(slow, ["zerobubble"])["zerobubble"].iteration_ms
    here = result.row("zerobubble")
    assert here.step.pipelines_ms.tolist() == [390, alone, 390]
    assert here.step.step_ms == alone
    assert [row.scenario.slow_links for row in here.ranks] == [(), (0,), ()]


def test_a_job_takes_over_every_delay_of_its_pipelines() -> None:
    first = Scenario().with_delay(20, [1], directions=["up"], kind="latency").with_delay(5, [2])
    job = job_of([first, Scenario()], _ring(3))
    links = Assignment(job).links
    assert np.array_equal(links.latency_ms[0], first.latency_ms)
    assert np.array_equal(links.occupancy_ms[0], first.occupancy_ms)
    assert not links.latency_ms[1].any()
    assert links.ring_ms.tolist() == [[0, 0], [3, 3], [0, 0], [0, 0]]


def test_re_mapping_makes_pipeline_links_and_moves_few() -> None:
    result = compare_data_parallel(Scenario(), Job(2, 4, _ring(30)), systems=["zerobubble"])
    mapped = result.row("zerobubble", "re-mapped")
    (use,) = mapped.assignment.uses
    assert use.kind == "pipeline"
    assert mapped.assignment.moved == 2
    slow = [
        evaluate(Scenario().with_delay(30, links=[link]), plan(Scenario(), "zerobubble"), "nccl")
        for link in (0, 1)  # the links of stage 1; one exchange reaches no other
    ]
    assert mapped.step.step_ms == min(slow)


def test_re_mapping_leaves_alone_what_carries_nothing() -> None:
    idle = {(Node(0, 0), Node(1, 3)): Delay(0.0, 30.0)}
    result = compare_data_parallel(Scenario(), Job(2, 4, _ring(30) | idle), systems=["zerobubble"])
    mapped = result.row("zerobubble", "re-mapped").assignment
    assert sorted(use.kind for use in mapped.uses) == ["nothing", "pipeline"]
    assert mapped.moved == 2


def test_places_that_change_nothing_are_not_distinct() -> None:
    def places(job: Job) -> list[str]:
        result = compare_data_parallel(Scenario(), job, systems=["1f1b"])
        assert [row.places for row in result.rows] == ["as is", "re-mapped", "best"]
        return [row.places for row in result.distinct]

    assert places(Job(2, 4)) == ["as is"]
    assert places(job_of([Scenario().with_delay(5, [0]), Scenario()], {})) == ["as is", "best"]
    assert places(Job(2, 4, _ring(5))) == ["as is", "re-mapped", "best"]


@st.composite
def small_jobs(draw: st.DrawFn) -> Job:
    nodes = Job(2, 2).nodes
    ways = [(a, b) for a in nodes for b in nodes if a != b]
    slow = draw(st.lists(st.sampled_from(ways), min_size=1, max_size=5, unique=True))
    delays = st.integers(1, 40).map(float)
    return Job(2, 2, {way: Delay(0.0, draw(delays)) for way in slow})


@given(small_jobs(), st.sampled_from(["1f1b", "zerobubble", "pipemorph"]))
@examples(0.3)
def test_the_best_places_are_the_best_of_all_on_the_engine(job: Job, name: str) -> None:
    scenario = Scenario(stages=2, microbatches=4)
    reduction = AllReduce(3.0, 1.0)
    result = compare_data_parallel(scenario, job, reduction, [name])

    @cache
    def pipeline(latency_ms: bytes, occupancy_ms: bytes) -> Ended:
        delays = [np.frombuffer(one).reshape(1, 2) for one in (latency_ms, occupancy_ms)]
        slow = scenario.replaced(latency_ms=delays[0], occupancy_ms=delays[1])
        row = compare(slow, [name])[name]
        return Ended.of(simulate(slow, row.schedule, row.over))

    def step_ms(places: tuple[Node, ...]) -> float:
        links = Assignment(job, dict(zip(job.nodes, places, strict=True))).links
        both = zip(links.latency_ms, links.occupancy_ms, strict=True)
        ranks = [pipeline(latency.tobytes(), occupancy.tobytes()) for latency, occupancy in both]
        reduce_ms = np.array([reduction.duration_ms(ring) for ring in links.ring_ms])
        return step(ranks, reduce_ms).step_ms

    steps = list(map(step_ms, permutations(job.nodes)))
    assert result.row(name).step.step_ms == pytest.approx(steps[0])  # the nodes as they are
    assert result.row(name, "best").step.step_ms == pytest.approx(min(steps), abs=1e-5)
    assert result.exhaustive


def test_places_are_surely_best_where_nothing_is_left_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compared(slow: dict[tuple[Node, Node], Delay]) -> DataParallelComparison:
        return compare_data_parallel(Scenario(stages=2), Job(2, 2, slow), systems=["1f1b"])

    nodes = Job(2, 2).nodes
    every = {(a, b): Delay(0.0, 30.0) for a in nodes for b in nodes if a != b}
    assert compared(every).surely_best  # all places were tried
    monkeypatch.setattr(mapping, "MOST_PLACES", 0)
    assert not compared(every).surely_best
    one = compared(_ring(30, 0))
    assert one.surely_best
    as_is, mapped, best = one.rows
    still = replace(mapped, assignment=as_is.assignment)
    assert not replace(one, rows=(as_is, still, best)).surely_best


# -- the published job ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> dict[int, DataParallelComparison]:
    """7B, 2 × 4 on H800 GPUs, one slow link between data-parallel ranks."""
    return {
        delay_ms: compare_data_parallel(
            load_scenario(H800),
            Job(2, 4, _ring(delay_ms)),
            systems=["zerobubble", "pipemorph"],
            testbed="h800",
        )
        for delay_ms in (10, 20, 30)
    }


@pytest.mark.parametrize("delay_ms", [10, 20, 30])
def test_the_published_order(published: dict[int, DataParallelComparison], delay_ms: int) -> None:
    result = published[delay_ms]
    here, mapped = (result.row("zerobubble", places) for places in ("as is", "re-mapped"))
    replanned = result.row("pipemorph", "re-mapped")
    assert here.step.step_ms > 2 * mapped.step.step_ms
    assert mapped.step.step_ms > replanned.step.step_ms


@pytest.mark.parametrize("delay_ms", [20, 30])
def test_the_published_gains(published: dict[int, DataParallelComparison], delay_ms: int) -> None:
    """Re-mapping 3.6 times as fast, re-planning another 1.96 times; at 10 ms both gain less."""
    result = published[delay_ms]
    mapped = result.row("zerobubble", "re-mapped").step.step_ms
    assert result.row("zerobubble").step.step_ms / mapped == pytest.approx(3.6, rel=0.25)
    again = result.row("pipemorph", "re-mapped").step.step_ms
    assert mapped / again == pytest.approx(1.96, rel=0.25)


def test_the_published_slowdowns(published: dict[int, DataParallelComparison]) -> None:
    """30 ms between ranks: 8.04 times as long; in the pipeline: 2.24 times."""
    result = published[30]
    assert result.row("zerobubble").slowdown == pytest.approx(8.04, rel=0.05)
    assert result.row("zerobubble", "re-mapped").slowdown == pytest.approx(2.24, rel=0.1)


def test_the_shipped_scenario_is_the_profile_at_the_measured_healthy_iteration() -> None:
    run = next(
        run
        for run in load_runs(ROOT / "traces" / "measured_iterations.csv")
        if run.setting == ("h800", "7B", "2", 30.0) and run.system == "zerobubble"
    )
    scaled, shipped = profiled(run, known_testbed("h800")), load_scenario(H800)
    for kind in ("F", "B", "W"):
        assert shipped.durations_ms(kind) == pytest.approx(scaled.durations_ms(kind), abs=5e-4)
    assert np.array_equal(shipped.message_bytes, scaled.message_bytes)


# -- advice --------------------------------------------------------------------------------


def test_advice_names_the_exchange_and_what_it_gains() -> None:
    result = compare_data_parallel(Scenario(), Job(2, 4, _ring(30)))
    best = advised_row(result)
    assert best is not None
    assert (best.system.name, best.places) == ("zerobubble", "best")
    text = data_parallel_advice(result)
    assert text.startswith("Exchange nodes 0.0 ↔ 0.1, so that what is slow carries nothing: ")
    assert "8.33 times faster than ZeroBubble on the nodes as they are" in text
    assert "carries link 0 of rank 0, and re-plan; a step of PipeMorph takes 420 ms" in text


def test_advice_keeps_what_is_as_good() -> None:
    none = compare_data_parallel(Scenario(), Job(2, 4))
    assert data_parallel_advice(none).startswith("No link is slow: keep nodes and plan: ")
    hidden = compare_data_parallel(Scenario(), Job(2, 4, _ring(0.1)), systems=["zerobubble"])
    assert data_parallel_advice(hidden).startswith("Keep nodes and plan: ")


def test_advice_is_short_where_many_links_are_slow() -> None:
    rings = {
        way: delay for rank in (0, 2) for stage in range(4)
        for way, delay in _ring(30, stage, rank).items()
    }  # fmt: skip
    text = data_parallel_advice(
        compare_data_parallel(Scenario(), Job(4, 4, rings), systems=["1f1b"])
    )
    assert "so that what is slow carries pipeline links; a step" in text


def test_advice_leaves_out_a_re_mapping_that_makes_it_worse() -> None:
    reduction = AllReduce(1.0, 1.0)
    result = compare_data_parallel(Scenario(), Job(2, 4, _ring(50)), reduction, ["1f1b"])
    here, mapped = (result.row("1f1b", places).step.step_ms for places in ("as is", "re-mapped"))
    assert here < mapped
    text = data_parallel_advice(result)
    assert text.startswith("Exchange nodes")
    assert "as a pipeline link" not in text


def test_nothing_to_advise_where_nothing_can_be_run() -> None:
    result = compare_data_parallel(Scenario(), Job(2, 4), systems=["zerobubble:ideal"])
    assert data_parallel_advice(result).startswith("Nothing to advise")


# -- what cannot be ------------------------------------------------------------------------


def test_stages_have_a_device_each() -> None:
    with pytest.raises(ScenarioError, match="one stage on each device"):
        compare_data_parallel(Scenario(stages=2).interleaved(2), Job(2, 2))
    with pytest.raises(ScheduleError, match="cuts stages into chunks"):
        compare_data_parallel(Scenario(), Job(2, 4), systems=["interleaved-1f1b"])
