"""What it costs to run a plan in a runtime that it was not made for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipesim.engine import Runs, deadlocked, evaluate
from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.target import Target
from pipesim.transport import Transport
from planners import names, plan

__all__ = ["Retargeted", "assumed_delays", "retargeted"]


@dataclass(frozen=True)
class Retargeted:
    """A plan in another runtime than its own. Times in milliseconds, on the engine.

    Attributes
    ----------
    meant_ms : float
        Where operators do what the plan was made for.
    there_ms : float
        In the runtime.
    meant_peak, there_peak : float
        Most activations of the first stage's device, in micro-batches: as meant, and there.
    planned : Schedule
        What a planner makes for the runtime: the plan's own one, or else pipemorph.
    planned_ms : float
        How long that takes there.
    over : Transport
        How messages travel.
    """

    meant_ms: float
    there_ms: float
    meant_peak: float
    there_peak: float
    planned: Schedule
    planned_ms: float
    over: Transport


def assumed_delays(schedule: Schedule, scenario: Scenario) -> Scenario:
    """Return a scenario with the delays that a plan was made for, by occupancy between devices."""
    delay_ms = np.broadcast_to(schedule.assumed.delay_ms or 0.0, scenario.delay_ms.shape)
    between = np.array([scenario.crosses(link) for link in range(scenario.stages - 1)], dtype=bool)
    return scenario.without_delay().replaced(occupancy_ms=delay_ms * between[:, None])


def retargeted(
    scenario: Scenario, schedule: Schedule, runtime: Target, over: Transport
) -> Retargeted | None:
    """Run a plan in a runtime, and one that is made for it.

    Parameters
    ----------
    scenario : Scenario
        What operators take where they do what they are called.
    schedule : Schedule
        The plan.
    runtime : Target
        What is to run it.
    over : Transport
        How messages travel. Where the plan hangs in its own order of sends and receives, because
        they wait for each other there, times hold where nothing blocks.

    Returns
    -------
    Retargeted, optional
        None where the runtime does what the plan was made for.
    """
    if runtime.runs_as_planned(schedule):
        return None
    there = runtime.adapted(scenario)
    if schedule.communicates and deadlocked(schedule, over):
        over = over.unblocked
    runs = Runs(schedule, over)
    known = schedule.planner if schedule.planner in names() else "pipemorph"
    try:
        planned = plan(scenario, known, over=over, runtime=runtime)
    except ScheduleError:  # it is not for this placement, or has no plan for these limits
        planned = plan(scenario, "pipemorph", over=over, runtime=runtime)
    meant, run = runs.timeline(scenario), runs.timeline(there)
    device = scenario.placement[0]
    return Retargeted(
        meant_ms=meant.iteration_ms,
        there_ms=run.iteration_ms,
        meant_peak=float(scenario.in_micro_batches(meant.peak_activations)[device]),
        there_peak=float(scenario.in_micro_batches(run.peak_activations)[device]),
        planned=planned,
        planned_ms=evaluate(there, planned, over),
        over=over,
    )
