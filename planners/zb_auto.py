"""The automatic schedule of "Zero Bubble Pipeline Parallelism": ZB-1p, ZB-2p and other limits.

Qi et al., ICLR 2024, arXiv 2401.10241, section 3.1; details after the authors' program (``Graph``
in ``zerobubble/scheduler/zb.py`` of sail-sg/zero-bubble-pipeline-parallelism), which the published
runs took their orders from. Micro-batch after micro-batch, all stages get one more backward, and
before it one more forward each, unless one is better put off. W fills the time that a stage would
wait. Three choices can be made either way; of the eight orders the one with the shortest longest
stage span is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.scenario import DOWN, UP, Kind, Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from pipesim.units import in_whole_units
from planners.registry import planner

__all__ = ["zb_auto"]

_ROUNDING = 1e-9
"""What is given back in parts may add up to a little less than was taken."""


@planner("zb-auto", chunks=None)
def zb_auto(scenario: Scenario) -> Schedule:
    """The published heuristic for split backwards, for the times, delays and limits given.

    With a limit of D activations it is the paper's ZB-1p, with 2D ZB-2p. Links have what its
    authors call the communication cost: their delays. Ties between operators are real ones in
    any unit of time (:mod:`pipesim.units`).

    Raises
    ------
    ScheduleError
        A device holds more than one stage, or has no room for one activation.

    Examples
    --------
    >>> scenario = Scenario(stages=2, microbatches=4, activation_limit=2)
    >>> for order in zb_auto(scenario).orders:
    ...     print(*order)
    0F0 0F1 0B0 0W0 0F2 0B1 0W1 0F3 0B2 0W2 0B3 0W3
    1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1F3 1B3 1W2 1W3
    """
    if not scenario.is_plain:
        raise ScheduleError("zb-auto needs one stage on each device, in order")
    limits = scenario.activation_limit
    for device in np.flatnonzero(limits < 1):
        raise ScheduleError(
            f"device {device} may hold {limits[device]:g} activations; one micro-batch needs 1 "
            "there"
        )
    whole, _ = in_whole_units(scenario)
    best = min(_candidates(whole), key=_Candidate.span)  # the first of equals
    assumed = Assumptions(delay_ms=scenario.delay_ms.tolist(), activation_limit=limits.tolist())
    return Schedule(best.orders, scenario.placement, scenario.microbatches, "zb-auto", assumed)


def _candidates(scenario: Scenario) -> Iterator[_Candidate]:
    """The orders of all choices, in the order in which the published program tries them."""
    for punctual, patient, greedy in product((True, False), repeat=3):
        candidate = _Candidate(scenario)
        candidate.warm_up(punctual=punctual)
        for _ in range(1, scenario.microbatches):
            candidate.next_forwards(patient=patient, greedy=greedy)
            candidate.next_backwards(greedy=greedy)
        for s in range(scenario.stages):
            candidate.run_weights(s)
        yield candidate


class _Candidate:
    """An order in the making, with its times.

    Within one kind and stage, micro-batches run in order, so counters say what has run:
    ``done[kind][s]`` operators of a kind on stage s.
    """

    def __init__(self, scenario: Scenario) -> None:
        stages, self.n = scenario.stages, scenario.microbatches
        self.last = stages - 1
        self.times: dict[Kind, list[list[float]]] = {
            kind: scenario.durations_ms(kind).tolist() for kind in _SPLIT
        }
        self.taken: dict[Kind, list[float]] = {
            "F": [1.0] * stages,
            "B": (-scenario.released("B")).tolist(),
            "W": (-scenario.released("W")).tolist(),
        }
        self.down = scenario.delay_ms[:, DOWN].tolist()
        self.up = scenario.delay_ms[:, UP].tolist()
        self.limits = (scenario.activation_limit + _ROUNDING).tolist()
        self.done = {kind: [0] * stages for kind in _SPLIT}
        self.ends: dict[Kind, list[list[float]]] = {
            kind: [[] for _ in range(stages)] for kind in _SPLIT
        }
        self.now = [0.0] * stages
        self.held = [0.0] * stages
        self.idle = [0.0] * stages  # since the first forward
        self.orders: list[list[Op]] = [[] for _ in range(stages)]

    def span(self) -> float:
        """The longest stage span."""
        return max(
            now - ends[0] + times[0]
            for now, ends, times in zip(self.now, self.ends["F"], self.times["F"], strict=True)
        )

    def warm_up(self, *, punctual: bool) -> None:
        """Run all that comes before each stage's second backward.

        Stages run forwards until the first gradient can be there, and a later stage fewer than
        the one before it. If ``punctual``, no forward makes the first backward late.
        """
        for s in range(self.last + 1):
            self.run("F", s)
        more = [0] * (self.last + 1)
        gradient = self.now[self.last] + self.times["B"][self.last][0]
        for s in range(self.last - 1, -1, -1):
            gradient += self.up[s]
            until = self.now[s]
            while 1 + more[s] < self.n and 2 + more[s] <= self.limits[s]:
                forward = self.times["F"][s][1 + more[s]]
                if until + forward > gradient if punctual else until >= gradient:
                    break
                until += forward
                more[s] += 1
            gradient = max(until, gradient) + self.times["B"][s][0]
        for s in range(1, self.last + 1):
            all_of_them = more[s - 1] == self.n - 1
            more[s] = min(more[s], max(0, more[s - 1] - (not all_of_them)))
        for s, forwards in enumerate(more):
            for _ in range(forwards):
                self.run("F", s)
        for s in range(self.last, -1, -1):
            self.run("B", s)

    def next_forwards(self, *, patient: bool, greedy: bool) -> None:
        """Run one more forward on the stages that should, which are the last ones.

        If ``patient``, a stage may put it off until after its next backward.
        """
        first = self.last + 1
        while first and self.done["F"][first - 1] < self.n:
            if patient and self._rather_waits(first - 1):
                break
            first -= 1
        for s in range(first, self.last + 1):
            while self.held[s] + 1 > self.limits[s]:
                self.run("W", s)
            self.fill(s, self.arrival("F", s), greedy)
            self.run("F", s)

    def next_backwards(self, *, greedy: bool) -> None:
        """Run one more backward on every stage.

        With its forwards run, the first stage makes up for its weights: nobody waits for it.
        """
        for s in range(self.last, -1, -1):
            self.fill(s, self.arrival("B", s), greedy)
            if s == 0 and self.done["F"][0] == self.n:
                self.run_weights(s)
            self.run("B", s)

    def _rather_waits(self, s: int) -> bool:
        """Whether a stage far ahead of the next one had better run its next backward first.

        It had if a forward, and the weights that make room for it, would end after the gradient
        is there, and waiting for that makes no stage idle for longer than one is already.
        """
        done = self.done
        if s == self.last or done["F"][s] < done["F"][s + 1] + 2:
            return False
        gradient = (
            self.now[s + 1]
            + self.times["F"][s + 1][done["F"][s + 1]]
            + self.times["B"][s + 1][done["B"][s + 1]]
            + self.up[s]
        )
        until, held = self.now[s] + self.times["F"][s][done["F"][s]], self.held[s] + 1
        for m in range(done["W"][s], done["B"][s]):
            if held <= self.limits[s]:
                break
            until += self.times["W"][s][m]
            held += self.taken["W"][s]
        return until > gradient and self._affordable(s, gradient - self.now[s])

    def fill(self, s: int, until: float, greedy: bool) -> None:
        """Run weights until a message is there.

        One that makes its operator late runs if ``greedy``, or if without it the stage became
        idle for longer than any stage is already.
        """
        while self.pending(s) and self.now[s] + self._weight(s) <= until:
            self.run("W", s)
        wait = until - self.now[s]
        if wait > 0 and self.pending(s) and (greedy or not self._affordable(s, wait)):
            self.run("W", s)

    def run_weights(self, s: int) -> None:
        """Run all weights whose backward has run."""
        while self.pending(s):
            self.run("W", s)

    def pending(self, s: int) -> bool:
        """Whether there is a weight to run."""
        return self.done["W"][s] < self.done["B"][s]

    def _weight(self, s: int) -> float:
        return self.times["W"][s][self.done["W"][s]]

    def _affordable(self, s: int, wait: float) -> bool:
        return wait <= max(self.idle) - self.idle[s]

    def arrival(self, kind: Literal["F", "B"], s: int) -> float:
        """When what the next operator of a kind needs from another stage is there."""
        m = self.done[kind][s]
        if kind == "F":
            return self.ends["F"][s - 1][m] + self.down[s - 1] if s else 0.0
        return self.ends["B"][s + 1][m] + self.up[s] if s < self.last else 0.0

    def run(self, kind: Kind, s: int) -> None:
        """Append the next operator of a kind on a stage."""
        m = self.done[kind][s]
        start = self.now[s]
        if kind == "F" or kind == "B":
            start = max(start, self.arrival(kind, s))
        if self.done["F"][s]:
            self.idle[s] += start - self.now[s]
        self.now[s] = start + self.times[kind][s][m]
        self.ends[kind][s].append(self.now[s])
        self.held[s] += self.taken[kind][s]
        self.done[kind][s] += 1
        self.orders[s].append(Op(kind, s, m))


_SPLIT: tuple[Kind, ...] = ("F", "B", "W")
