"""The backends that run a program under a scenario and return a timeline.

The SimPy engine: a device is one process that walks its launch queue (:mod:`.device`). What
it meets there is either a group kernel, which needs its other ends (:mod:`.kernels`), or a
message for a path that blocks nobody (:mod:`.paths`).

The compiled evaluator (:mod:`.compiled`, :mod:`.orders`) gives the same times, for those who
need a million of them: a program becomes a list of events, each the later of two others plus
a time (:mod:`.events`, :mod:`.recurrence`, :mod:`.weights`), and numba runs down the list
(:mod:`.loops`).
"""

from __future__ import annotations

from typing import Literal

from pipesim.engine.simulator import run
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
        from pipesim.engine import compiled  # and with it numba

        return compiled.run(program, scenario)
    return run(program, scenario)
