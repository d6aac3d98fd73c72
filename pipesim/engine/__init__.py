"""The backends that run a program under a scenario: two of them, one result.

:mod:`.simpy` simulates, and its timelines hold every message; :mod:`.compiled` gives the same
times much faster.
"""

from __future__ import annotations

from typing import Literal

from pipesim.engine.simpy.simulator import run
from pipesim.lowering import lower
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Transport, transport

__all__ = ["run", "simulate"]


def simulate(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport = "ideal",
    *,
    backend: Literal["simpy", "compiled"] = "simpy",
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

    backend : {"simpy", "compiled"}
        The engine, or the compiled evaluator: the same times, no communication spans.

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
    program = lower(schedule, scenario, transport(over))
    if backend == "compiled":
        from pipesim.engine.compiled import evaluator  # and with it numba

        return evaluator.run(program, scenario)
    return run(program, scenario)
