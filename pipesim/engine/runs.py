"""A schedule over a transport, to be run under one scenario after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipesim.engine.choice import Engine, chosen
from pipesim.engine.simpy import run
from pipesim.lowering import lower, read_by_lowering
from pipesim.program import Program
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Transport, transport

if TYPE_CHECKING:
    from pipesim.engine.compiled.evaluator import CompiledProgram
    from pipesim.engine.compiled.orders import OrderEvaluator

__all__ = ["Runs"]


class Runs:
    """A schedule over a transport, to be run under many scenarios of its shape.

    What a run needs besides the scenario is made when it is first needed, and kept.

    Parameters
    ----------
    schedule : Schedule
        The order of operators.
    over : str or Transport
        How messages travel.
    lowered_for : Scenario, optional
        Run this scenario's program under all others. Default: each has its own, as
        :func:`~pipesim.engine.simulate` does; they differ where kernels queue up in an order
        that depends on operator times.
    engine : {"simpy", "compiled"}, optional
        Default: see :mod:`.choice`.

    Examples
    --------
    >>> from pipesim import Scenario, plan
    >>> scenario = Scenario()
    >>> runs = Runs(plan(scenario, "zerobubble"), "nccl")
    >>> [runs.makespan_ms(scenario.with_delay(delay, links=[0])) for delay in (0, 10, 20)]
    [390.0, 560.0, 800.0]
    """

    def __init__(
        self,
        schedule: Schedule,
        over: str | Transport = "ideal",
        *,
        lowered_for: Scenario | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.schedule = schedule
        self.transport = transport(over)
        self._lowered_for = lowered_for
        self._engine = engine
        self._programs: dict[Hashable, Program] = {}
        self._compiled: dict[Hashable, CompiledProgram] = {}

    def makespan_ms(self, scenario: Scenario) -> float:
        """Return the iteration time under a scenario.

        Raises
        ------
        ScheduleError
            The schedule does not fit it.
        DeadlockError
            The devices wait for each other for ever.
        """
        if self._chosen(1) == "simpy":
            return run(self._program(scenario), scenario).iteration_ms
        if self._by_order:
            return self._evaluator(scenario).times(self.schedule)[0]
        return self._compilation(scenario).evaluate(scenario).makespan_ms

    def makespans_ms(self, scenarios: Sequence[Scenario]) -> Array:
        """Return the iteration times under many scenarios, shape [scenarios]."""
        if self._chosen(len(scenarios)) == "simpy":
            return np.array([run(self._program(one), one).iteration_ms for one in scenarios])
        groups: dict[Hashable, list[int]] = {}
        for index, one in enumerate(scenarios):
            groups.setdefault(self._key(one), []).append(index)
        result = np.empty(len(scenarios))
        for indices in groups.values():
            group = [scenarios[index] for index in indices]
            if len(group) == 1:
                result[indices] = self.makespan_ms(group[0])
            else:
                result[indices] = self._compilation(group[0]).makespans_of(group)
        return result

    def timeline(self, scenario: Scenario) -> Timeline:
        """Return the spans of operators; those of messages only where SimPy runs."""
        if self._chosen(1) == "simpy":
            return run(self._program(scenario), scenario)
        if self._by_order:
            return self._evaluator(scenario).timeline(self.schedule)
        return self._compilation(scenario).timeline(scenario)

    def _chosen(self, scenarios: int) -> Engine:
        return chosen(self._engine, scenarios * len(self.schedule.ops))

    def _key(self, scenario: Scenario) -> Hashable:
        return read_by_lowering(self._lowered_for or scenario, self.transport)

    def _program(self, scenario: Scenario) -> Program:
        key = self._key(scenario)
        if key not in self._programs:
            made_for = self._lowered_for or scenario
            self._programs[key] = lower(self.schedule, made_for, self.transport)
        return self._programs[key]

    # -- the compiled evaluator, and with it numba -----------------------------------------

    @property
    def _by_order(self) -> bool:
        """Whether the order of operators says it all, without a program."""
        return not self.transport.queues

    def _evaluator(self, scenario: Scenario) -> OrderEvaluator:
        from pipesim.engine.compiled.orders import OrderEvaluator

        return OrderEvaluator(scenario, self.transport)

    def _compilation(self, scenario: Scenario) -> CompiledProgram:
        from pipesim.engine.compiled.evaluator import compile_program

        key = self._key(scenario)
        if key not in self._compiled:
            self._compiled[key] = compile_program(self._program(scenario))
        return self._compiled[key]
