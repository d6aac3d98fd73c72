"""Which node runs which stage of which rank: what a slow link between two nodes becomes.

A link is slow between two nodes. Where one feeds the other in a pipeline it delays activations or
gradients of micro-batches; where both run the same stage of neighbouring ranks it delays their
all-reduce; anywhere else they have nothing to tell each other, and it delays nothing. Exchanging
nodes chooses among the three. Falcon (arXiv 2410.12588) exchanges nodes so that a slow
data-parallel link becomes a pipeline link; :func:`best_assignment` looks at all places.

This takes for granted that nodes are alike, and that the *path* between two nodes is slow. A slow
network card is slow to all neighbours of its node: give each of these paths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, permutations
from math import perm
from typing import Any, NamedTuple

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.scenario import DOWN, UP, Array

__all__ = [
    "MOST_PLACES",
    "Assignment",
    "Carried",
    "Delay",
    "Job",
    "Links",
    "Node",
    "best_assignment",
    "few_places",
]


class Node(NamedTuple):
    """A node by the rank and stage that it runs at first; also the place of a rank and stage."""

    rank: int
    stage: int

    def __str__(self) -> str:
        return f"{self.rank}.{self.stage}"


class Delay(NamedTuple):
    """What a message takes longer, in ms: in flight, and in a busy kernel of the sender."""

    latency_ms: float = 0.0
    occupancy_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Both."""
        return self.latency_ms + self.occupancy_ms


@dataclass(frozen=True)
class Job:
    """A data-parallel job on its nodes.

    Parameters
    ----------
    ranks, stages : int
        D pipelines of S stages; there are D · S nodes.
    slow : mapping of (Node, Node) to Delay
        The delay of each slow way from one node to another.

    Raises
    ------
    ScenarioError
        There are fewer than two ranks, or a slow way has an end that is no node, or two that are
        the same.
    """

    ranks: int
    stages: int
    slow: Mapping[tuple[Node, Node], Delay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.stages < 1:
            raise ScenarioError("a data-parallel job has at least 2 ranks and 1 stage")
        for way in self.slow:
            for node in way:
                if not (0 <= node.rank < self.ranks and 0 <= node.stage < self.stages):
                    raise ScenarioError(f"there is no stage {node.stage} of rank {node.rank}")
            if way[0] == way[1]:
                raise ScenarioError(f"node {way[0]} has no link to itself")

    @property
    def nodes(self) -> list[Node]:
        """All nodes, rank after rank."""
        return [Node(rank, stage) for rank in range(self.ranks) for stage in range(self.stages)]

    @property
    def slow_pairs(self) -> list[tuple[Node, Node]]:
        """The pairs of nodes with a slow way between them, in order."""
        return sorted({(min(way), max(way)) for way in self.slow})

    @property
    def slow_nodes(self) -> list[Node]:
        """The nodes at slow ways, in order."""
        return sorted({node for way in self.slow for node in way})

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """One for each way to have the slow ways on links: one that moves the fewest nodes.

        The nodes at slow ways take all places, and whom they put out takes those that they left.
        There may be very many, see :data:`MOST_PLACES`.
        """
        slow = self.slow_nodes
        found: dict[Hashable, Assignment] = {}
        for places in permutations(self.nodes, len(slow)):
            one = _placed(self, dict(zip(slow, places, strict=True)))
            if one.effect not in found or one.moved < found[one.effect].moved:
                found[one.effect] = one
        return tuple(found.values())


class Carried(NamedTuple):
    """What a link between two nodes carries.

    ``kind`` is "pipeline" (link ``number`` of rank ``rank``), "ring" (stage ``number``, from rank
    ``rank`` to the next), or "nothing".
    """

    kind: str
    number: int = 0
    rank: int = 0

    def __str__(self) -> str:
        if self.kind == "nothing":
            return "no traffic"
        if self.kind == "pipeline":
            return f"rank {self.rank} link {self.number}"
        return f"all-reduce of stage {self.number}"


class Links(NamedTuple):
    """The delays of a job's links, in ms.

    ``latency_ms`` and ``occupancy_ms`` have shape [D, S−1, 2], the pipeline links of each rank as
    :class:`~pipesim.scenario.Scenario` has them. ``ring_ms`` has shape [S, D], the link from rank
    r to r+1 of each stage.
    """

    latency_ms: Array
    occupancy_ms: Array
    ring_ms: Array


@dataclass(frozen=True)
class Assignment:
    """Nodes in places.

    Parameters
    ----------
    job : Job
        Whose nodes.
    places : mapping of Node to Node
        The place of each node that is not where it was.
    """

    job: Job
    places: Mapping[Node, Node] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        """How many nodes are not where they were."""
        return len(self.places)

    def place(self, node: Node) -> Node:
        """Return the place of a node."""
        return self.places.get(node, node)

    def carried(self, pair: tuple[Node, Node]) -> Carried:
        """Return what the link between two nodes carries."""
        return _carried(self.job, *map(self.place, pair))

    @property
    def uses(self) -> tuple[Carried, ...]:
        """What each slow pair carries, in the order of :attr:`Job.slow_pairs`."""
        return tuple(self.carried(pair) for pair in self.job.slow_pairs)

    @cached_property
    def effect(self) -> Hashable:
        """What differs between two assignments that differ in more than names of nodes."""
        return self.uses, *(delays.tobytes() for delays in self.links)

    @cached_property
    def links(self) -> Links:
        """The delays of all links that carry something."""
        job = self.job
        pipeline = np.zeros((2, job.ranks, job.stages - 1, 2))
        ring = np.zeros((job.stages, job.ranks))
        for (start, end), delay in job.slow.items():
            a, b = self.place(start), self.place(end)
            if a.rank == b.rank and abs(a.stage - b.stage) == 1:
                way = DOWN if b.stage > a.stage else UP
                pipeline[:, a.rank, min(a.stage, b.stage), way] = delay
            elif a.stage == b.stage and b.rank == (a.rank + 1) % job.ranks:
                ring[a.stage, a.rank] = delay.total_ms
        return Links(pipeline[0], pipeline[1], ring)

    @property
    def carried_ms(self) -> float:
        """The delays of all links that carry something, summed up."""
        return float(sum(delays.sum() for delays in self.links))

    def exchanged(self, one: Node, other: Node) -> Assignment:
        """Return the assignment where two nodes have changed places."""
        places = {**self.places, one: self.place(other), other: self.place(one)}
        return Assignment(self.job, {node: at for node, at in places.items() if node != at})

    def as_dict(self) -> dict[str, object]:
        """The assignment in JSON types."""
        return {
            "moved": [
                {"node": list(node), "runs": list(place)}
                for node, place in sorted(self.places.items())
            ],
            "slow": [
                {"nodes": [list(node) for node in pair], **self.carried(pair)._asdict()}
                for pair in self.job.slow_pairs
            ],
        }


def _carried(job: Job, a: Node, b: Node) -> Carried:
    if a.rank == b.rank and abs(a.stage - b.stage) == 1:
        return Carried("pipeline", min(a.stage, b.stage), a.rank)
    if a.stage == b.stage and (a.rank - b.rank) % job.ranks in (1, job.ranks - 1):
        first = a if b.rank == (a.rank + 1) % job.ranks else b
        rank = min(a.rank, b.rank) if job.ranks == 2 else first.rank
        return Carried("ring", a.stage, rank)
    return Carried("nothing")


# -- which is best ------------------------------------------------------------------------

MOST_PLACES = 25_000
"""Ways to place the nodes at slow links up to which all of them are looked at."""

Cost = Callable[[Assignment], Any]
"""What an assignment costs: anything that can be compared. It may depend on the delays of the
links, what slow pairs carry, and how many nodes move, and on nothing else."""


def best_assignment(job: Job, cost: Cost) -> Assignment:
    """Return the assignment of the lowest cost; of those that cost as much, one that moves fewest.

    What counts is only where the nodes at slow links are. All their places are tried where there
    are at most :data:`MOST_PLACES`; for more, exchanges of two nodes are made, the best first, from
    the nodes as they are, as long as one lowers the cost, or the sum of delays on links that carry
    something: of two slow links of a ring, the second is free, but must go first where both go one
    after the other. That may miss the best.

    Parameters
    ----------
    job : Job
        With its slow links.
    cost : callable
        What an assignment costs, such as its step on the engine.

    Examples
    --------
    The fewest moves away from an all-reduce into a pipeline:

    >>> slow = {(Node(0, 1), Node(1, 1)): Delay(30.0), (Node(1, 1), Node(0, 1)): Delay(30.0)}
    >>> def off_pipelines(one):
    ...     return sum(use.kind != "pipeline" for use in one.uses)
    >>> found = best_assignment(Job(2, 4, slow), off_pipelines)
    >>> found.moved, [str(use) for use in found.uses]
    (2, ['rank 0 link 0'])
    """
    if few_places(job):
        return min(job.assignments, key=lambda one: (cost(one), one.moved))
    return _by_exchanges(Assignment(job), cost)


def few_places(job: Job) -> bool:
    """Whether so few nodes are at slow links that all their places can be looked at."""
    return perm(job.ranks * job.stages, len(job.slow_nodes)) <= MOST_PLACES


def _placed(job: Job, places: dict[Node, Node]) -> Assignment:
    """The assignment with these nodes there, and as few others moved as can be."""
    put_out = [place for place in places.values() if place not in places]
    taken = set(places.values())
    left = [node for node in places if node not in taken]
    everyone = {**places, **dict(zip(put_out, left, strict=True))}
    return Assignment(job, {node: at for node, at in everyone.items() if node != at})


def _by_exchanges(start: Assignment, cost: Cost) -> Assignment:
    """Go from one assignment to a better one, and return the best on the way."""
    way = [start]
    while True:
        lowest = min(
            [way[-1], *_exchanges(way[-1])],
            key=lambda one: (cost(one), one.carried_ms, one.moved),
        )
        if lowest is way[-1]:
            return min(way, key=lambda one: (cost(one), one.moved))
        way.append(lowest)


def _exchanges(one: Assignment) -> Iterator[Assignment]:
    """Exchange each node at a slow link with each other node."""
    slow = one.job.slow_nodes
    for node in slow:
        for other in one.job.nodes:
            if other not in slow:
                yield one.exchanged(node, other)
    for node, other in combinations(slow, 2):
        yield one.exchanged(node, other)
