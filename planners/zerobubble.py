"""Zero-bubble planners: the backward is split into B and W, and W fills idle slots.

After Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024). They know of no delay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Schedule
from planners.greedy import list_schedule
from planners.registry import planner

__all__ = ["planned_without_delay", "zb_h1", "zb_h2", "zerobubble"]


@planner("zb-h1")
def zb_h1(scenario: Scenario) -> Schedule:
    """ZB-H1: the warm-up of 1F1B and its peak of D activations, with W in the bubbles."""
    devices = _plain_devices(scenario, "zb-h1")
    return planned_without_delay(
        scenario,
        "zb-h1",
        limits=np.minimum(devices, scenario.activation_limit).tolist(),
        warmup=[devices - d for d in range(devices)],
    )


@planner("zb-h2")
def zb_h2(scenario: Scenario) -> Schedule:
    """ZB-H2: a warm-up of 2(D − d) − 1 forwards on device d and up to 2D − 1 activations."""
    devices = _plain_devices(scenario, "zb-h2")
    return planned_without_delay(
        scenario,
        "zb-h2",
        limits=np.minimum(2 * devices - 1, scenario.activation_limit).tolist(),
        warmup=[2 * (devices - d) - 1 for d in range(devices)],
    )


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


def _plain_devices(scenario: Scenario, name: str) -> int:
    if not scenario.is_plain:
        raise ScheduleError(f"{name} needs one stage on each device, in order")
    return scenario.devices
