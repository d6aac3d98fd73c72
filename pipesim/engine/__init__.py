"""The SimPy engine: it runs a program under a scenario and returns a timeline.

A device is one SimPy process that walks its launch queue (:mod:`.device`). What it meets
there is either a group kernel, which needs its other ends (:mod:`.kernels`), or a message
for a path that blocks nobody (:mod:`.paths`).
"""

from __future__ import annotations

from pipesim.engine.simulator import run
from pipesim.lowering import lower
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Transport, transport

__all__ = ["run", "simulate"]


def simulate(scenario: Scenario, schedule: Schedule, over: str | Transport = "ideal") -> Timeline:
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
    return run(lower(schedule, scenario, transport(over)), scenario)
