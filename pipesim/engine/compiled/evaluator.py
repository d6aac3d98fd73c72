"""The compiled evaluator: one program, many scenarios, the SimPy engine's times.

A program is compiled once into a list of events (:mod:`.events`, :mod:`.recurrence`); under
a scenario each takes a time from a vector (:mod:`.weights`); machine code adds them up
(:mod:`.loops`). For orders that change all the time there is :mod:`.orders`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipesim.engine.compiled import loops
from pipesim.engine.compiled.events import Events
from pipesim.engine.compiled.order_loops import given_back, peaks
from pipesim.engine.compiled.recurrence import Recurrence, recurrence
from pipesim.engine.compiled.weights import blocks, stacked, vector
from pipesim.errors import ScenarioError
from pipesim.program import Program
from pipesim.scenario import Array, Scenario
from pipesim.timeline import OpSpan, Timeline
from pipesim.transport import Nccl

__all__ = ["CompiledProgram", "Evaluation", "compile_program", "run"]

_MOST_WEIGHTS = 8_000_000
"""Times that are held at once for scenarios of a batch: 64 MB."""


@dataclass(frozen=True)
class Evaluation:
    """What a program does under one scenario.

    Attributes
    ----------
    makespan_ms : float
        From the first start to the last end on any device.
    starts_ms, ends_ms : tuple of arrays, shape [D][…]
        Of each device's operators, in the order in which they run.
    """

    makespan_ms: float
    _starts: Array = field(repr=False)
    _ends: Array = field(repr=False)
    _first: NDArray[np.int32] = field(repr=False)
    _gives: Array = field(repr=False)

    @property
    def starts_ms(self) -> tuple[Array, ...]:
        """When operators start, shape [D][…]."""
        return tuple(np.split(self._starts, self._first[1:-1]))

    @property
    def ends_ms(self) -> tuple[Array, ...]:
        """When operators end, shape [D][…]."""
        return tuple(np.split(self._ends, self._first[1:-1]))

    @cached_property
    def peak_activations(self) -> Array:
        """Most activations held for each device at once, host-held ones included, shape [D]."""
        return peaks(self._starts, self._ends, self._gives, self._first)


class CompiledProgram:
    """A program, ready to be evaluated under any scenario of its shape.

    Made by :func:`compile_program`. All methods give what :func:`pipesim.engine.run` gives,
    up to rounding.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        schedule = program.schedule
        self._runs = schedule.codes // schedule.microbatches  # kind · S + stage
        # Which messages are eager depends on their size: usually all or none ever.
        self._recurrences: dict[tuple[frozenset[int], bool], Recurrence] = {}

    @property
    def operators(self) -> int:
        """The number of operators."""
        return len(self._runs)

    def evaluate(self, scenario: Scenario) -> Evaluation:
        """Return the times of all operators under ``scenario``, and the activation peaks.

        Raises
        ------
        ScheduleError
            The program does not fit the scenario.
        DeadlockError
            The program cannot finish.
        """
        self.program.schedule.check_fits(scenario)
        events = self.events(scenario)
        return self.evaluation(
            scenario,
            events,
            loops.times(events.left, events.right, events.own, self._vector(scenario)),
        )

    def evaluation(self, scenario: Scenario, events: Recurrence, happened: Array) -> Evaluation:
        """Return what it means that ``events`` happen at these times, shape [E]."""
        at, first = events.ends, events.first
        starts = np.maximum(happened[events.left[at]], happened[events.right[at]])
        ends = happened[at]
        return Evaluation(
            makespan_ms=float(ends[first[1:] - 1].max() - starts[first[:-1]].min()),
            _starts=starts,
            _ends=ends,
            _first=first,
            _gives=given_back(scenario)[self._runs],
        )

    def timeline(self, scenario: Scenario) -> Timeline:
        """Return the operators' spans under ``scenario``; communication leaves none."""
        evaluation = self.evaluate(scenario)
        orders = self.program.schedule.orders
        spans = tuple(
            tuple(map(OpSpan, order, starts.tolist(), ends.tolist()))
            for order, starts, ends in zip(
                orders, evaluation.starts_ms, evaluation.ends_ms, strict=True
            )
        )
        return Timeline(scenario, spans)

    def makespans_ms(
        self,
        scenario: Scenario,
        *,
        forward_ms: ArrayLike | None = None,
        backward_ms: ArrayLike | None = None,
        weight_ms: ArrayLike | None = None,
        fused_backward_ms: ArrayLike | None = None,
        latency_ms: ArrayLike | None = None,
        occupancy_ms: ArrayLike | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return the makespans under a batch of B scenarios, shape [B].

        Parameters
        ----------
        scenario : Scenario
            What all of the batch have in common.
        forward_ms, backward_ms, weight_ms, fused_backward_ms : array_like, shape [B, …]
            Operator times that differ: behind the B the shape [], [S] or [S, N] that a
            scenario takes. A fused backward does not follow from the other two here.
        latency_ms, occupancy_ms : array_like, shape [B, …]
            Delays that differ, likewise [], [S−1] or [S−1, 2].
        threads : int, optional
            How many threads share the work. Default: one for each processor.

        Raises
        ------
        ScenarioError
            A value is not a time, a shape is wrong, or nothing differs.
        ScheduleError, DeadlockError
            As for :meth:`evaluate`.

        Examples
        --------
        The worked example under 0, 5, 10, 15 and 20 ms on link 0:

        >>> import numpy as np, pipesim
        >>> from pipesim.engine.compiled.evaluator import compile_program
        >>> from pipesim.lowering import lower
        >>> from pipesim.transport import Ideal
        >>> scenario = pipesim.Scenario()
        >>> plan = pipesim.plan(scenario, "zerobubble")
        >>> delays = np.zeros((5, 3, 2))
        >>> delays[:, 0] = np.arange(0, 25, 5)[:, None]
        >>> program = compile_program(lower(plan, scenario, Ideal()))
        >>> program.makespans_ms(scenario, occupancy_ms=delays).tolist()
        [390.0, 395.0, 400.0, 410.0, 440.0]
        """
        self.program.schedule.check_fits(scenario)
        fields = {
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
            "weight_ms": weight_ms,
            "fused_backward_ms": fused_backward_ms,
            "latency_ms": latency_ms,
            "occupancy_ms": occupancy_ms,
        }
        varied = stacked(scenario, fields)
        if not varied:
            raise ScenarioError(f"a batch varies one of {', '.join(fields)}")
        return _batch(
            self.events(scenario, many=True),
            *self._weights(scenario, varied),
            threads or _processors(),
        )

    def makespans_of(self, scenarios: Sequence[Scenario], *, threads: int | None = None) -> Array:
        """Return the makespans under scenarios that may differ in every time, shape [scenarios].

        Raises
        ------
        ScheduleError, DeadlockError
            As for :meth:`evaluate`.
        """
        result = np.empty(len(scenarios))
        groups: dict[frozenset[int], list[int]] = defaultdict(list)
        for index, scenario in enumerate(scenarios):
            self.program.schedule.check_fits(scenario)
            groups[self._eager_links(scenario)].append(index)
        size = max(loops.TILE, _MOST_WEIGHTS // len(self._vector(scenarios[0])))
        parts = (own[at : at + size] for own in groups.values() for at in range(0, len(own), size))
        for indices in parts:
            weights = np.stack([self._vector(scenarios[index]) for index in indices])
            varies = (weights != weights[0]).any(axis=0)
            varies[1] = True  # a batch needs one
            columns = np.where(varies, np.cumsum(varies) - 1, -1).astype(np.int32)
            events = self.events(scenarios[indices[0]], many=True)
            varying = np.ascontiguousarray(weights[:, varies])
            result[indices] = _batch(events, weights[0], varying, columns, threads or _processors())
        return result

    def _vector(self, scenario: Scenario) -> Array:
        return vector(scenario, self.program.transport)

    def events(self, scenario: Scenario, *, many: bool = False) -> Recurrence:
        """The program's events under ``scenario``, made when they are first asked for.

        ``many``: for a batch, without those that change nothing.
        """
        key = self._eager_links(scenario), many
        if key not in self._recurrences:
            self._recurrences[key] = recurrence(Events(self.program, key[0]), pare=many)
        return self._recurrences[key]

    def _eager_links(self, scenario: Scenario) -> frozenset[int]:
        transport = self.program.transport
        if not isinstance(transport, Nccl) or transport.eager_bytes == 0:
            return frozenset()
        eager = scenario.message_bytes <= transport.eager_bytes
        return frozenset(np.flatnonzero(eager).tolist())

    def _weights(
        self, scenario: Scenario, varied: Mapping[str, Array]
    ) -> tuple[Array, Array, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Weights that are fixed and that vary [B, V], and which of these each entry is."""
        size = len(next(iter(varied.values())))
        base = blocks(scenario, self.program.transport)
        fixed, varying, columns = [], [], []
        width = 0
        for one, many in zip(base, blocks(scenario, self.program.transport, varied), strict=True):
            fixed.append(one.ravel())
            if many.ndim > one.ndim:
                varying.append(many.reshape(size, one.size))
                columns.append(np.arange(width, width + one.size))
                width += one.size
            else:
                columns.append(np.full(one.size, -1))
        return (
            np.concatenate(fixed),
            np.concatenate(varying, axis=1),
            np.concatenate(columns).astype(np.int32),
        )


def compile_program(program: Program, scenario: Scenario | None = None) -> CompiledProgram:
    """Compile ``program`` for :meth:`CompiledProgram.evaluate`.

    Parameters
    ----------
    program : Program
        Under any transport.
    scenario : Scenario, optional
        One of those that it will be evaluated under, so that all work and every complaint
        comes now; else with the first evaluation.

    Raises
    ------
    ScheduleError
        The program does not fit the scenario.
    DeadlockError
        The program cannot finish; the error names each device's blocked instruction.

    Examples
    --------
    >>> import pipesim
    >>> from pipesim.lowering import lower
    >>> from pipesim.transport import Nccl
    >>> scenario = pipesim.Scenario().with_delay(20, links=[0])
    >>> program = lower(pipesim.plan(scenario, "zerobubble"), scenario, Nccl())
    >>> evaluation = compile_program(program, scenario).evaluate(scenario)
    >>> evaluation.makespan_ms == pipesim.engine.run(program, scenario).iteration_ms
    True
    >>> evaluation.peak_activations.tolist()
    [9.5, 8.5, 7.5, 6.5]
    """
    compiled = CompiledProgram(program)
    if scenario is not None:
        program.schedule.check_fits(scenario)
        compiled.events(scenario)
    return compiled


def run(program: Program, scenario: Scenario) -> Timeline:
    """Run ``program`` under ``scenario``, as :func:`pipesim.engine.run` does.

    The timeline holds the operators and no communication.
    """
    return compile_program(program).timeline(scenario)


def _batch(
    events: Recurrence,
    fixed: Array,
    weights: Array,
    columns: np.ndarray[tuple[int], np.dtype[np.int32]],
    threads: int,
) -> Array:
    lasts = events.ends[events.first[1:] - 1]
    result = np.empty(len(weights))
    shared = (events.left, events.right, fixed[events.own], columns[events.own])

    def share(part: slice) -> None:
        loops.makespans(*shared, weights[part], events.begins, lasts, result[part])

    tiles = -(-len(result) // loops.TILE)
    step = max(1, -(-tiles // threads)) * loops.TILE
    parts = [slice(at, at + step) for at in range(0, len(result), step)]
    if len(parts) <= 1:
        for part in parts:
            share(part)
        return result
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(share, parts))
    return result


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
