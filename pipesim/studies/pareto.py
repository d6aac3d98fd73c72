"""The trade-off between iteration time and memory: what each further activation buys.

For every number of activations that devices may hold, the search planner plans under the
delays; a plan is kept if no other is as fast with less memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipesim import analysis
from pipesim.engine import Engine, Runs
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Ideal, Transport, transport
from planners.search import search

__all__ = ["Point", "pareto"]

_SAME = 1e-9


@dataclass(frozen=True)
class Point:
    """One plan that no other beats in both time and memory.

    Attributes
    ----------
    iteration_ms : float
        Over the transport that was given.
    peak : float
        Most activations that any device holds at once, its host's part included. 1 is a
        micro-batch through all stages of the device, here and below.
    host : float
        Most of them beyond a device's own limit: what has to go to host memory.
    warmup : tuple of int
        x_i of each stage.
    peak_activations : tuple of float
        The peak of each device.
    """

    iteration_ms: float
    peak: float
    host: float
    warmup: tuple[int, ...]
    peak_activations: tuple[float, ...]
    schedule: Schedule

    def as_dict(self) -> dict[str, object]:
        """The point in JSON types."""
        return {
            "peak": self.peak,
            "host": self.host,
            "iteration_ms": self.iteration_ms,
            "warmup": list(self.warmup),
            "peak_activations": list(self.peak_activations),
        }


def pareto(
    scenario: Scenario,
    over: str | Transport = "ideal",
    *,
    moves: int | None = None,
    engine: Engine | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Point]:
    """Return the plans that trade memory for time, from the least memory to the fastest.

    Parameters
    ----------
    scenario : Scenario
        Its delays are planned for. Its activation limits do not bind here: what a plan holds
        beyond them is counted as host memory.
    over : str or Transport
        How messages travel, and what they cost besides delays. Both are planned for.
    moves : int, optional
        Moves of the search for each plan.
    engine : {"simpy", "compiled"}, optional
        Default: the compiled evaluator, which the search has loaded already.
    progress : callable
        Called with what is being planned.

    Examples
    --------
    >>> points = pareto(Scenario(microbatches=6).with_delay(20, links=[0]), moves=500)
    >>> points[0].peak < points[-1].peak, points[0].iteration_ms > points[-1].iteration_ms
    (True, True)
    """
    route = transport(over)
    told = scenario.with_message_cost(route.costs_ms(scenario))
    if not route.blocks:
        scenario, route = told, Ideal()
    each = np.array(list(map(len, scenario.stages_of)))
    least = int(each.max())
    most = least * scenario.microbatches
    bound_ms = analysis.lower_bound_ms(told) * (1 + _SAME)
    points: list[Point] = []
    for limit in range(least, most + 1):
        progress(f"planning for {limit / least:g} activations")
        capped = scenario.replaced(activation_limit=limit / least * each)
        point = _point(scenario, search(capped, over=route, moves=moves), route, engine)
        if not points or point.iteration_ms < points[-1].iteration_ms * (1 - _SAME):
            points.append(point)
        if point.iteration_ms <= bound_ms or point.peak * least < limit - 1:
            break  # nothing faster is left, or more room is not used
    return points


def _point(scenario: Scenario, schedule: Schedule, over: Transport, engine: Engine | None) -> Point:
    timeline = Runs(schedule, over, engine=engine).timeline(scenario)
    peaks = scenario.in_micro_batches(timeline.peak_activations)
    return Point(
        iteration_ms=timeline.iteration_ms,
        peak=float(peaks.max()),
        host=float(scenario.in_micro_batches(timeline.peak_host_activations).max()),
        warmup=analysis.warmup(schedule),
        peak_activations=tuple(peaks.tolist()),
        schedule=schedule,
    )
