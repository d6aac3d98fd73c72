"""A data-parallel job over slow links: each system on the nodes as they are, and on others.

Three ways to use the nodes. *As is*. *Re-mapped*: as few nodes as possible change places so that
slow links between data-parallel ranks become pipeline links (Falcon). *Best*: the places with the
shortest step, wherever they are. Each is found for each system on its own, with its plan: so
``zerobubble`` re-mapped is re-mapping alone, and ``pipemorph`` re-mapped is re-mapped and
re-planned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pipesim.adapt.data_parallel import Ended, Step, step
from pipesim.adapt.mapping import Assignment, Delay, Job, Node, best_assignment, few_places
from pipesim.adapt.ring import AllReduce
from pipesim.engine import Runs
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.scenario import Array, Scenario
from pipesim.studies.comparison import Row, compare
from pipesim.studies.systems import System, default_systems, system
from planners import chunks as chunks_of

__all__ = ["DataParallelComparison", "DataParallelRow", "Places", "compare_data_parallel", "job_of"]

Places = Literal["as is", "re-mapped", "best"]
"""Which nodes run what."""

_DIGITS = 6
"""Steps that differ by less than a nanosecond are as long."""


@dataclass(frozen=True)
class DataParallelRow:
    """What one system makes of the job on some places. Times in milliseconds.

    Attributes
    ----------
    places : str
        How the places of the nodes were chosen.
    assignment : Assignment
        The places, and what slow links carry there.
    step : Step
        The step.
    healthy : Step
        The same system's where no link is slow.
    ranks : tuple of Row, shape [D]
        What the system makes of each rank's pipeline; the same object where delays are the same.
    """

    system: System
    places: Places
    assignment: Assignment
    step: Step = field(repr=False)
    healthy: Step = field(repr=False)
    ranks: tuple[Row, ...] = field(repr=False)

    @property
    def slowdown(self) -> float | None:
        """The step over that on healthy links; None where that is nothing."""
        return self.step.step_ms / self.healthy.step_ms if self.healthy.step_ms else None

    @property
    def fits(self) -> bool:
        """Whether the activations of all ranks fit."""
        return all(row.fits for row in self.ranks)

    @property
    def replanned(self) -> bool:
        """Whether some rank's plan knows of a slow link."""
        return any(row.replanned for row in self.ranks)

    def as_dict(self) -> dict[str, object]:
        """The row in JSON types."""
        return {
            "system": self.system.name,
            "title": self.system.title,
            "planner": self.system.planner,
            "transport": self.system.transport,
            "nodes": self.places,
            "nodes_moved": self.assignment.moved,
            "assignment": self.assignment.as_dict(),
            **self.step.as_dict(),
            "healthy_step_ms": self.healthy.step_ms,
            "slowdown": self.slowdown,
            "replanned": self.replanned,
            "fits": self.fits,
            "pipelines": [
                {"ranks": ranks, **self.ranks[ranks[0]].as_dict()} for ranks in self._alike()
            ],
        }

    def _alike(self) -> list[list[int]]:
        """The ranks with the same pipeline, and delays in it."""
        groups: dict[int, list[int]] = {}
        for rank, row in enumerate(self.ranks):
            groups.setdefault(id(row), []).append(rank)
        return list(groups.values())


@dataclass(frozen=True)
class DataParallelComparison:
    """All systems on one job.

    Attributes
    ----------
    job : Job
        The nodes and the slow links between them.
    scenario : Scenario
        The pipeline of every rank, without delays.
    reduction : AllReduce
        The gradients of a stage.
    overlap : bool
        Whether a stage's all-reduce starts before other stages have ended.
    rows : tuple of DataParallelRow
        Three of each system, for the three ways to use the nodes.
    left_out : mapping of str to str
        Why there is no row of a system that is one by default.
    """

    job: Job
    scenario: Scenario
    reduction: AllReduce
    overlap: bool
    rows: tuple[DataParallelRow, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def exhaustive(self) -> bool:
        """Whether all places were tried, so that no others are better."""
        return few_places(self.job)

    @property
    def surely_best(self) -> bool:
        """Whether no other places do better.

        All were tried; or slow links cost nothing in the best ones, and re-mapped no all-reduce.
        """

        def done(row: DataParallelRow) -> bool:
            if row.places == "best":
                return round(row.step.step_ms - row.healthy.step_ms, _DIGITS) <= 0
            return row.places == "as is" or all(use.kind != "ring" for use in row.assignment.uses)

        return self.exhaustive or all(map(done, self.rows))

    @property
    def distinct(self) -> tuple[DataParallelRow, ...]:
        """The rows without those where a system's nodes do the same as in one before."""
        seen: dict[tuple[str, Hashable], DataParallelRow] = {}
        for row in self.rows:
            seen.setdefault((row.system.name, row.assignment.effect), row)
        return tuple(seen.values())

    def row(self, name: str, places: Places = "as is") -> DataParallelRow:
        """Return the row of a system on some places."""
        named = (row for row in self.rows if row.system.name == name)
        return next(row for row in named if row.places == places)

    def as_dict(self) -> dict[str, object]:
        """The comparison in JSON types."""
        slow = [
            {"from": list(start), "to": list(end), "delay_ms": delay.total_ms}
            for (start, end), delay in self.job.slow.items()
        ]
        return {
            "scenario": self.scenario.summary(),
            "data_parallel": {
                "ranks": self.job.ranks,
                "slow": slow,
                "overlap": self.overlap,
                "all_places_tried": self.exhaustive,
                **self.reduction.as_dict(self.job.ranks),
            },
            "rows": [row.as_dict() for row in self.rows],
            "left_out": dict(self.left_out),
        }


def job_of(ranks: Sequence[Scenario], rings: Mapping[tuple[Node, Node], Delay]) -> Job:
    """Return the job of some pipelines, with the delays of their links.

    Parameters
    ----------
    ranks : sequence of Scenario, shape [D]
        The pipeline of each rank.
    rings : mapping of (Node, Node) to Delay
        The slow ways between ranks.
    """
    slow = dict(rings)
    for rank, scenario in enumerate(ranks):
        for link in scenario.slow_links:
            ends = Node(rank, link), Node(rank, link + 1)
            delays = zip(scenario.latency_ms[link], scenario.occupancy_ms[link], strict=True)
            for way, delay in zip((ends, ends[::-1]), delays, strict=True):
                if any(delay):
                    slow[way] = Delay(*map(float, delay))
    return Job(len(ranks), ranks[0].stages, slow)


def compare_data_parallel(
    scenario: Scenario,
    job: Job,
    reduction: AllReduce | None = None,
    systems: Sequence[str] | None = None,
    *,
    overlap: bool = True,
    progress: Callable[[str], None] = lambda title: None,
    **told: Any,
) -> DataParallelComparison:
    """Run each system's step on the nodes as they are, re-mapped, and in the best places.

    Parameters
    ----------
    scenario : Scenario
        The pipeline of every rank, one stage a device; its delays are not looked at.
    job : Job
        The ranks, and what is slow.
    reduction : AllReduce, optional
        The gradients of a stage. Default: :class:`~pipesim.adapt.ring.AllReduce`'s.
    systems : sequence of str, optional
        As for :func:`~pipesim.studies.comparison.compare`; ``search`` only if named.
    overlap : bool
        See :func:`pipesim.adapt.data_parallel.step`.
    progress : callable
        Called with what is being done.
    **told
        What :func:`~pipesim.studies.comparison.compare` is told of costs, transports and engines.

    Raises
    ------
    ScenarioError, ScheduleError
        As by :func:`~pipesim.studies.comparison.compare`; or stages share devices.

    Examples
    --------
    One of two ranks' links of stage 1 is slow by 10 ms; in the worked example, stage 1 ends
    its pipeline after 370 of 390 ms, and then reduces 48 buckets in 2 steps of 10 ms:

    >>> from pipesim.adapt.mapping import Delay, Node
    >>> ends = Node(0, 1), Node(1, 1)
    >>> job = Job(2, 4, {ends: Delay(0.0, 10.0), ends[::-1]: Delay(0.0, 10.0)})
    >>> result = compare_data_parallel(Scenario(), job, systems=["zerobubble", "pipemorph"])
    >>> [(row.places, row.step.step_ms) for row in result.rows if row.system.name == "zerobubble"]
    [('as is', 1330.0), ('re-mapped', 550.0), ('best', 390.0)]
    >>> result.row("pipemorph", "re-mapped").step.step_ms
    400.0
    """
    if not scenario.is_plain:
        raise ScenarioError("a data-parallel job has one stage on each device here")
    whole, reduction = scenario.without_delay(), reduction or AllReduce()
    names = default_systems(whole) if systems is None else systems
    rows: list[DataParallelRow] = []
    left_out: dict[str, str] = {}
    for one in map(system, names):
        if (chunks_of(one.planner) or 1) > 1:
            raise ScheduleError(
                f"{one.title} cuts stages into chunks; a data-parallel job has one on each device"
            )
        steps = _Steps(whole, job, one, reduction, overlap, told)
        try:
            progress(one.title)
            rows += list(steps.rows())
        except ScheduleError as error:
            if systems is not None or len(left_out) + 1 == len(names):
                raise
            left_out[one.name] = str(error)
    rows.sort(key=lambda row: _ORDER.index(row.places))  # and as before within each
    return DataParallelComparison(job, whole, reduction, overlap, tuple(rows), left_out)


_ORDER: tuple[Places, ...] = ("as is", "re-mapped", "best")


@dataclass
class _Steps:
    """The steps of one system; every pipeline is planned and run once."""

    scenario: Scenario
    job: Job
    system: System
    reduction: AllReduce
    overlap: bool
    told: Mapping[str, Any]
    _pipelines: dict[bytes, tuple[Row, Ended]] = field(default_factory=dict)

    def rows(self) -> Iterator[DataParallelRow]:
        """Yield the system's rows."""
        healthy = self._step(Assignment(Job(self.job.ranks, self.job.stages)))[0]
        for places in _ORDER:
            assignment = self._assignment(places)
            step, ranks = self._step(assignment)
            yield DataParallelRow(self.system, places, assignment, step, healthy, ranks)

    def _assignment(self, places: Places) -> Assignment:
        here = Assignment(self.job)
        if places == "as is":
            return here
        if places == "best":
            return best_assignment(self.job, self._step_ms)
        if all(use.kind != "ring" for use in here.uses):
            return here
        return best_assignment(
            self.job,
            lambda one: (_not_in_use(here, one), one.moved, self._step_ms(one)),
        )

    def _step_ms(self, assignment: Assignment) -> float:
        return round(self._step(assignment)[0].step_ms, _DIGITS)

    def _step(self, assignment: Assignment) -> tuple[Step, tuple[Row, ...]]:
        links = assignment.links
        ranks = [
            self._pipeline(latency, occupancy)
            for latency, occupancy in zip(links.latency_ms, links.occupancy_ms, strict=True)
        ]
        reduce_ms = np.array([self.reduction.duration_ms(ring) for ring in links.ring_ms])
        whole = step([ended for _, ended in ranks], reduce_ms, overlap=self.overlap)
        return whole, tuple(row for row, _ in ranks)

    def _pipeline(self, latency_ms: Array, occupancy_ms: Array) -> tuple[Row, Ended]:
        key = latency_ms.tobytes() + occupancy_ms.tobytes()
        if key not in self._pipelines:
            slow = self.scenario.replaced(latency_ms=latency_ms, occupancy_ms=occupancy_ms)
            row = compare(slow, [self.system.name], **self.told).rows[0]
            runs = Runs(row.schedule, row.over, engine=self.told.get("engine"))
            self._pipelines[key] = row, Ended.of(runs.timeline(row.scenario))
        return self._pipelines[key]


def _not_in_use(before: Assignment, one: Assignment) -> int:
    """How many slow links are no pipeline links, but for those that carry nothing, as before."""
    kinds = ((was.kind, now.kind) for was, now in zip(before.uses, one.uses, strict=True))
    return sum(now != "pipeline" and (was, now) != ("nothing", "nothing") for was, now in kinds)
