"""Orders of operators as integers, timed without a schedule or a program in between.

This is for planners that try thousands of orders. An operator is one integer,

    code = (kind · S + stage) · N + micro-batch,    kind 0 F, 1 B, 2 W, 3 BW,

and the orders of all devices are one array of codes, device after device. Only transports
that take messages off a device's hands can be timed like this: ideal, isolated and
delegated, with delegates and copies. Where kernels queue up, lowering decides what is sent
when: use :mod:`.evaluator`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipesim.engine.compiled.order_loops import (
    COMPLETE,
    MISSING,
    Constants,
    given_back,
    scratch,
    time_orders,
    walk,
)
from pipesim.engine.compiled.weights import blocks, stacked
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.scenario import KINDS, Array, Scenario
from pipesim.schedule import Op, Schedule
from pipesim.timeline import OpSpan, Timeline
from pipesim.transport import Delegated, Transport, transport

__all__ = ["OrderEvaluator", "OrderTimes", "Orders"]

Indices = NDArray[np.int32]


class Orders(NamedTuple):
    """The orders of all devices: ``codes[first[d]:first[d + 1]]`` is that of device d."""

    codes: Indices
    first: Indices


class OrderTimes(NamedTuple):
    """What orders do; all infinite if the devices would wait for each other for ever.

    Attributes
    ----------
    makespan_ms : float
        From the first start to the last end on any device.
    peak_activations : array, shape [D]
        Most activations held for each device at once.
    starts_ms : array, shape of the codes
        When each operator starts.
    """

    makespan_ms: float
    peak_activations: Array
    starts_ms: Array


class OrderEvaluator:
    """Times integer-coded orders under one scenario and transport.

    Parameters
    ----------
    scenario : Scenario
        Operator times, delays and sizes.
    over : str or Transport
        ``ideal``, ``isolated`` or ``delegated``, with any options but ``only_slow``.

    Attributes
    ----------
    constants : Constants
        What :mod:`.order_loops` takes besides the orders, for planners that search there.

    Raises
    ------
    ScenarioError
        The transport queues kernels on the device.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario()
    >>> evaluator = OrderEvaluator(scenario)
    >>> codes, first = evaluator.encode(pipesim.plan(scenario, "zerobubble"))
    >>> times = evaluator.evaluate(codes, first)
    >>> times.makespan_ms, times.peak_activations.tolist()
    (390.0, [9.5, 8.5, 7.5, 6.5])

    Device 0 cannot begin with its last operator:

    >>> codes[[0, 35]] = codes[[35, 0]]
    >>> evaluator.evaluate(codes, first).makespan_ms
    inf
    """

    def __init__(self, scenario: Scenario, over: str | Transport = "ideal") -> None:
        route = transport(over)
        if route.queues:
            raise ScenarioError(
                f"orders alone do not say what {route} does: it needs a compiled program"
            )
        self.scenario = scenario
        self.transport = route
        n = scenario.microbatches
        weights = list(blocks(scenario, route))
        kinds = np.stack(weights[1:5])
        copy, flight = weights[6], weights[7]
        most = scenario.stages * n
        self.constants = Constants(
            kinds.ravel(),
            np.repeat(np.arange(scenario.stages, dtype=np.int32), n),
            np.array(scenario.placement, dtype=np.int32),
            flight,
            copy,
            min(route.delegates or 0, most) if isinstance(route, Delegated) else 0,
            isinstance(route, Delegated) and route.copy_on_demand,
            given_back(scenario),
        )

    def encode(self, schedule: Schedule) -> Orders:
        """Return the codes of a schedule.

        Raises
        ------
        ScheduleError
            It does not fit the scenario.
        """
        schedule.check_fits(self.scenario)
        return Orders(schedule.codes.copy(), np.array(schedule.first, dtype=np.int32))

    def decode(self, codes: ArrayLike, first: ArrayLike) -> Schedule:
        """Return the schedule that codes stand for.

        Raises
        ------
        ScheduleError
            There is none: see :class:`~pipesim.schedule.Schedule`.
        """
        ops = [self.op(code) for code in np.asarray(codes).tolist()]
        cuts = np.asarray(first).tolist()
        orders = [ops[a:b] for a, b in pairwise(cuts)]
        return Schedule(orders, self.scenario.placement, self.scenario.microbatches)

    def times(self, schedule: Schedule) -> tuple[float, Array]:
        """Return the makespan of a schedule, and when each of its operators starts."""
        codes, first = self.encode(schedule)
        starts = np.empty(len(codes))
        return self._walk(codes, first, starts), starts

    def stage_ends_ms(self, schedule: Schedule, **times: ArrayLike) -> Array:
        """Return when each stage has run its last operator, for many times at once.

        Parameters
        ----------
        schedule : Schedule
            The order of operators.
        **times : array_like, shape [B, …]
            The scenario's ``forward_ms``, ``backward_ms``, ``weight_ms``, ``fused_backward_ms``,
            ``latency_ms`` or ``occupancy_ms``, one for each run; at least one of them.

        Returns
        -------
        array, shape [B, S]

        Raises
        ------
        ScenarioError
            A value is not a time, or a shape is wrong.
        ScheduleError
            The schedule does not fit the scenario.

        Examples
        --------
        >>> import pipesim
        >>> scenario = pipesim.Scenario(stages=2, microbatches=1)
        >>> schedule = pipesim.plan(scenario, "1f1b")
        >>> OrderEvaluator(scenario).stage_ends_ms(schedule, forward_ms=[10, 15]).tolist()
        [[60.0, 40.0], [70.0, 50.0]]
        """
        codes, first = self.encode(schedule)
        stages, n = self.scenario.stages, self.scenario.microbatches
        varied = stacked(self.scenario, times)
        count = len(next(iter(varied.values())))
        weights = list(blocks(self.scenario, self.transport, varied))
        durations = np.stack(
            [np.broadcast_to(own, (count, stages, n)) for own in weights[1:5]], axis=1
        ).reshape(count, -1)
        flight = np.ascontiguousarray(np.broadcast_to(weights[7], (count, stages - 1, 2)))
        last = np.zeros(stages, dtype=np.int64)
        np.maximum.at(last, codes // n % stages, np.arange(len(codes)))
        result, memory = np.empty((count, stages)), scratch(self.constants)
        starts, ends = np.empty((2, len(codes)))
        for run in range(count):
            constants = self.constants._replace(durations_ms=durations[run], flight_ms=flight[run])
            walk(codes, first, constants, starts, ends, memory)
            result[run] = ends[last]  # a device runs its operators one after the other
        return result

    def makespan_ms(self, codes: Indices, first: Indices) -> float:
        """Return the makespan of orders that are complete; infinite on a deadlock."""
        return self._walk(codes, first, np.empty(len(codes)))

    def _walk(self, codes: Indices, first: Indices, starts: Array) -> float:
        ends, memory = np.empty_like(starts), scratch(self.constants)
        makespan, _ = walk(codes, first, self.constants, starts, ends, memory)
        return float(makespan)

    def timeline(self, schedule: Schedule) -> Timeline:
        """Return the spans of a schedule's operators; messages leave none."""
        _, starts = self.times(schedule)
        durations = self.constants.durations_ms[schedule.codes]
        spans = list(map(OpSpan, schedule.ops, starts.tolist(), (starts + durations).tolist()))
        devices = (tuple(spans[a:b]) for a, b in pairwise(schedule.first))
        return Timeline(self.scenario, tuple(devices))

    def code(self, op: Op) -> int:
        """The code of one operator."""
        return op.code(self.scenario.stages, self.scenario.microbatches)

    def op(self, code: int) -> Op:
        """The operator of one code."""
        row, microbatch = divmod(code, self.scenario.microbatches)
        kind, stage = divmod(row, self.scenario.stages)
        if not 0 <= kind < len(KINDS):
            raise ScheduleError(f"{code} is no operator's code")
        return Op(KINDS[kind], stage, microbatch)

    def evaluate(self, codes: ArrayLike, first: ArrayLike) -> OrderTimes:
        """Return the times of ``codes``, int [operators], whose devices begin at ``first``.

        Raises
        ------
        ScheduleError
            An operator is missing, comes twice or is on the wrong device.
        """
        codes = np.ascontiguousarray(codes, dtype=np.int32)
        first = np.ascontiguousarray(first, dtype=np.int32)
        if first.shape != (self.scenario.devices + 1,) or codes.ndim != 1:
            raise ScheduleError(
                f"orders of {self.scenario.devices} devices are one array of codes and one of "
                f"{self.scenario.devices + 1} places in it"
            )
        starts = np.empty(len(codes))
        held = np.empty(self.scenario.devices)
        makespan, wrong = time_orders(
            codes, first, self.constants, scratch(self.constants), starts, held
        )
        if wrong != COMPLETE:
            raise ScheduleError(self._complaint(codes, first, wrong))
        return OrderTimes(makespan, held, starts)

    def _complaint(self, codes: Indices, first: Indices, wrong: int) -> str:
        if wrong >= 0:
            device = int(np.searchsorted(first, wrong, side="right")) - 1
            op = self.op(int(codes[wrong]))
            return f"{op} is not an operator of device {device}, or comes twice"
        if wrong == MISSING:
            return "every stage and micro-batch needs F, and B and W or BW"
        return f"the places {first.tolist()} do not divide {len(codes)} codes"
