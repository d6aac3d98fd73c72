"""The two engines that run a program under a scenario, with one result.

:mod:`.simpy` simulates, and its timelines hold every message; :mod:`.compiled` gives the same
times much faster. Delays may change during a run (:mod:`.injection`), and from one iteration of
a job to the next (:mod:`.iterations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pipesim.engine.choice import ENGINES, Engine
from pipesim.engine.deadlocks import deadlocked
from pipesim.engine.injection import Injection
from pipesim.engine.iterations import Iterated, Iterations
from pipesim.engine.runs import Runs
from pipesim.engine.simpy import run
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Transport

__all__ = [
    "ENGINES",
    "Engine",
    "Injection",
    "Iterated",
    "Iterations",
    "Runs",
    "deadlocked",
    "evaluate",
    "run",
    "simulate",
]


def simulate(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport = "ideal",
    *,
    engine: Engine = "simpy",
) -> Timeline:
    """Lower ``schedule`` to a program over a transport and run it under ``scenario``.

    Parameters
    ----------
    scenario : Scenario
        Operator times, delays and memory.
    schedule : Schedule
        The order of operators, for the scenario's shape.
    over : str or Transport
        ``ideal``, ``nccl``, ``exchange``, ``delegated``, ``isolated``, or one of the
        classes of :mod:`pipesim.transport` with its options.
    engine : {"simpy", "compiled"}
        SimPy, or the compiled evaluator: the same times, but no spans of messages.

    Returns
    -------
    Timeline
        All times in milliseconds.

    Raises
    ------
    ScheduleError
        The schedule does not fit the scenario.
    DeadlockError
        The devices wait for each other for ever.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario()
    >>> pipesim.simulate(scenario, pipesim.plan(scenario, "1f1b"), "exchange").iteration_ms
    450.0
    """
    return Runs(schedule, over, engine=engine).timeline(scenario)


@overload
def evaluate(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport = "ideal",
    *,
    engine: Engine | None = None,
) -> float: ...


@overload
def evaluate(
    scenario: Sequence[Scenario],
    schedule: Schedule,
    over: str | Transport = "ideal",
    *,
    engine: Engine | None = None,
) -> Array: ...


def evaluate(
    scenario: Scenario | Sequence[Scenario],
    schedule: Schedule,
    over: str | Transport = "ideal",
    *,
    engine: Engine | None = None,
) -> float | Array:
    """Return the iteration time of a schedule, under one scenario or under many at once.

    It is the same as that of :func:`simulate`, up to rounding, but comes without a timeline and
    much faster.

    Parameters
    ----------
    scenario : Scenario or sequence of Scenario
        All of the schedule's shape; everything else may differ.
    schedule, over
        As for :func:`simulate`.
    engine : {"simpy", "compiled"}, optional
        Default: SimPy while there is little to do, see :mod:`pipesim.engine.choice`.

    Returns
    -------
    float, or array of shape [scenarios]
        Makespans in milliseconds.

    Raises
    ------
    ScenarioError, ScheduleError, DeadlockError
        As for :func:`simulate`, or there is no such engine.

    Examples
    --------
    The worked example under 0, 5, 10, 15 and 20 ms on link 0:

    >>> import pipesim
    >>> scenario = pipesim.Scenario()
    >>> schedule = pipesim.plan(scenario, "zerobubble")
    >>> slow = [scenario.with_delay(delay, links=[0]) for delay in range(0, 25, 5)]
    >>> pipesim.evaluate(slow, schedule).tolist()
    [390.0, 395.0, 400.0, 410.0, 440.0]
    >>> pipesim.evaluate(slow[4], schedule, "nccl")
    800.0
    """
    runs = Runs(schedule, over, engine=engine)
    if isinstance(scenario, Scenario):
        return runs.makespan_ms(scenario)
    return runs.makespans_ms(list(scenario))
