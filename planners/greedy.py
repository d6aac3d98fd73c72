"""The greedy list scheduler that all planners with a split backward share.

Algorithms 3–4 of the PipeMorph paper: whenever a device is idle, it starts the available
operator of the highest priority, B before F before W, after its prescribed warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pipesim.errors import ScheduleError
from pipesim.scenario import DOWN, KINDS, UP, Kind, Scenario
from pipesim.schedule import Op
from pipesim.units import in_whole_units

__all__ = ["ListSchedule", "ListScheduler", "list_schedule"]

_ROUNDING = 1e-9
"""What is given back in parts may add up to a little less than was taken."""


class ListSchedule(NamedTuple):
    """What greedy dispatching did.

    Attributes
    ----------
    orders : list of lists of Op, shape [D][…]
        The operators of each device.
    makespan_ms : float
        How long that took under the delays that it was given, where nothing else blocks.
    """

    orders: list[list[Op]]
    makespan_ms: float


def list_schedule(
    scenario: Scenario,
    *,
    limits: Sequence[float],
    warmup: Sequence[int] | None = None,
) -> ListSchedule:
    """Dispatch greedily and return the order of operators on each device.

    It is the same in every unit of time: what ends at the same moment is decided in whole
    numbers (:mod:`pipesim.units`).

    Parameters
    ----------
    scenario : Scenario
        The delays to plan for; messages take no other time.
    limits : sequence of float, shape [D]
        Most activations each device may hold. Where a device has several stages, a forward
        leaves room for the later ones, so that no limit can lock the pipeline up.
    warmup : sequence of int, shape [S], optional
        Forwards that each stage runs before its first B, and no further one before it.
        Default: as many as are available.

    Raises
    ------
    ScheduleError
        A limit is below what one micro-batch needs.
    """
    whole, unit_ms = in_whole_units(scenario)
    orders, makespan = ListScheduler(whole, limits, warmup).run()
    return ListSchedule(orders, makespan * unit_ms)


class ListScheduler:
    """An event-driven simulation in which devices decide; only its order is used.

    Times are whole numbers, see :func:`list_schedule`.

    Within one kind and stage, micro-batches run in order, so counters say everything:
    ``done[kind][s]`` operators of a kind have started on stage s, and ``ready[kind][s]`` may.
    """

    def __init__(
        self, scenario: Scenario, limits: Sequence[float], warmup: Sequence[int] | None
    ) -> None:
        stages, n = scenario.stages, scenario.microbatches
        self.scenario, self.n = scenario, n
        self.placement = scenario.placement
        for device, (own, limit) in enumerate(zip(scenario.stages_of, limits, strict=True)):
            if limit < len(own):
                raise ScheduleError(
                    f"device {device} may hold {limit / len(own):g} activations; one micro-batch "
                    "needs 1 there"
                )
        # The room that a forward of each stage must leave for later stages of its device.
        self.room = [
            limits[d] - (len(own) - 1 - own.index(s))
            for s, d in enumerate(self.placement)
            for own in (scenario.stages_of[d],)
        ]
        self.warmup = [n] * stages if warmup is None else list(warmup)
        self.times = {kind: scenario.durations_ms(kind).tolist() for kind in KINDS}
        self.delays = scenario.delay_ms.tolist()
        self.forwards = [0] * stages  # started
        self.backwards = [0] * stages
        self.weights = [0] * stages
        self.activations = [0] * stages  # arrived: forwards that may start
        self.activations[0] = n
        self.gradients = [0] * stages  # arrived: backwards that may start
        self.b_ended = [0] * stages  # weights that may start
        self.held = [0.0] * scenario.devices
        self.released_by_b = scenario.released("B").tolist()
        self.released_by_w = scenario.released("W").tolist()
        self.idle = [True] * scenario.devices
        self.orders: list[list[Op]] = [[] for _ in range(scenario.devices)]
        self.priorities: tuple[tuple[Kind, list[int], int], ...] = (
            ("B", self.backwards, self._B_END),
            ("F", self.forwards, self._F_END),
            ("W", self.weights, self._W_END),
        )
        # B takes the earliest micro-batch of the deepest stage first, F and W likewise.
        self.own = [tuple(reversed(own)) for own in scenario.stages_of]

    def run(self) -> tuple[list[list[Op]], float]:
        """Return the orders of all devices and the end of the last operator."""
        now = 0.0
        events: list[tuple[float, int, int]] = []  # time, what, stage
        for device in range(self.scenario.devices):
            self.dispatch(device, 0.0, events)
        while events:
            now = events[0][0]
            touched = set()
            while events and events[0][0] == now:
                _, what, stage = heappop(events)
                self._happen(what, stage, now, events)
                touched.add(self.placement[stage])
            for device in touched:
                if self.idle[device]:
                    self.dispatch(device, now, events)
        if sum(map(len, self.orders)) < 3 * self.scenario.stages * self.n:
            raise ScheduleError("the activation limits leave no forward that could run next")
        return self.orders, now

    _ACTIVATION, _GRADIENT, _F_END, _B_END, _W_END = range(5)

    def _happen(self, what: int, s: int, now: float, events: list[tuple[float, int, int]]) -> None:
        if what == self._ACTIVATION:
            self.activations[s] += 1
            return
        if what == self._GRADIENT:
            self.gradients[s] += 1
            return
        device = self.placement[s]
        self.idle[device] = True
        if what == self._F_END:
            if s + 1 < self.scenario.stages:
                heappush(events, (now + self.delays[s][DOWN], self._ACTIVATION, s + 1))
            else:
                self.gradients[s] += 1
        elif what == self._B_END:
            self.b_ended[s] += 1
            self.held[device] -= self.released_by_b[s]
            if s:
                heappush(events, (now + self.delays[s - 1][UP], self._GRADIENT, s - 1))
        else:
            self.held[device] -= self.released_by_w[s]

    def dispatch(self, device: int, now: float, events: list[tuple[float, int, int]]) -> None:
        """Start the operator of the highest priority that may start on an idle device."""
        for kind, started, end in self.priorities:
            s = -1
            for other in self.own[device]:
                if self.may_start(kind, other) and (s < 0 or started[other] < started[s]):
                    s = other
            if s >= 0:
                m = started[s]
                started[s] += 1
                self.orders[device].append(Op(kind, s, m))
                self.idle[device] = False
                if kind == "F":
                    self.held[device] += 1
                heappush(events, (now + self.times[kind][s][m], end, s))
                return

    def may_start(self, kind: Kind, s: int) -> bool:
        """Whether the next operator of a kind may start on a stage."""
        if kind == "B":
            return self.backwards[s] < self.gradients[s]
        if kind == "W":
            return self.weights[s] < self.b_ended[s]
        if self.forwards[s] >= self.activations[s]:
            return False
        if not self.backwards[s] and self.forwards[s] >= self.warmup[s]:
            return False
        return self.held[self.placement[s]] + 1 <= self.room[s] + _ROUNDING
