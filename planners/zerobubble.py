"""The zero-bubble list schedule: the backward is split into B and W, and W fills idle slots.

After Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024). It knows of no delay.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Schedule
from planners.greedy import list_schedule
from planners.registry import planner

__all__ = ["planned_without_delay", "zerobubble"]


@planner("zerobubble")
def zerobubble(scenario: Scenario) -> Schedule:
    """List scheduling for healthy links within the activation limits, for any placement."""
    return planned_without_delay(scenario, "zerobubble", limits=scenario.activation_limit.tolist())


def planned_without_delay(
    scenario: Scenario,
    name: str,
    *,
    limits: Sequence[float],
    warmup: Sequence[int] | None = None,
) -> Schedule:
    """List-schedule ``scenario`` as if its links were healthy, and say so."""
    orders, _ = list_schedule(scenario.without_delay(), limits=limits, warmup=warmup)
    assumed = Assumptions(delay_ms=0.0, activation_limit=limits, warmup=warmup)
    return Schedule(orders, scenario.placement, scenario.microbatches, name, assumed)
