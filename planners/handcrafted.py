"""ZB-H1 and ZB-H2: the two schedules that "Zero Bubble Pipeline Parallelism" draws by hand.

Qi et al., ICLR 2024, arXiv 2401.10241. Like 1F1B they are fixed by the shape and know of no
operator times: a warm-up, then a backward and a forward in turn, and W behind. Device d has a
shorter warm-up than device 0, and it may put W off until it holds as many activations as device
0 does. These late weights fill its idle time at the end.

With equal stages, W no longer than F or B, N ≥ 2D − 1 and instant messages, the longest stage span
exceeds N·(F + B + W) by (D − 1)·(F + B − W) in ZB-H1 and by (D − 1)·(F + B − 2W) in ZB-H2. The
paper's bubble rates are 1 − N·(F + B + W) / longest stage span where every message is in flight for
a time c and blocks nobody (the transport ``ideal``): this adds 4·(D − 1)·c and 2·(D − 1)·c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from planners.registry import planner

__all__ = ["zb_h1", "zb_h2"]

_ROUNDING = 1e-9
"""What is given back in parts may add up to a little less than was taken."""


@planner("zb-h1", chunks=None)
def zb_h1(scenario: Scenario) -> Schedule:
    """ZB-H1: the warm-up of 1F1B and its peak of D activations, with W in the bubbles."""
    return _handcrafted(scenario, "zb-h1", np.arange(scenario.devices, 0, -1))


@planner("zb-h2", chunks=None)
def zb_h2(scenario: Scenario) -> Schedule:
    """ZB-H2: a warm-up of 2(D − d) − 1 forwards on device d and up to 2D − 1 activations."""
    return _handcrafted(scenario, "zb-h2", np.arange(2 * scenario.devices - 1, 0, -2))


def _handcrafted(scenario: Scenario, name: str, warmup: NDArray[np.int_]) -> Schedule:
    """The schedule with this warm-up, shape [D], and weights up to ``warmup[0] - warmup`` late.

    Where a device's activation limit is lower, the warm-up shrinks to it (on later devices too:
    slackness is never negative, or they would wait for ever), and W comes as early as it must.

    Raises
    ------
    ScheduleError
        A device holds more than one stage, or has no room for one activation.
    """
    if not scenario.is_plain:
        raise ScheduleError(f"{name} needs one stage on each device, in order")
    limits = scenario.activation_limit
    for device in np.flatnonzero(limits < 1):
        raise ScheduleError(
            f"device {device} may hold {limits[device]:g} activations; one micro-batch needs 1 "
            "there"
        )
    late = (warmup[0] - warmup).tolist()
    allowed = np.minimum.accumulate(np.minimum(warmup, np.floor(limits))).astype(int).tolist()
    orders = [
        _order(scenario, device, allowed[device], late[device])
        for device in range(scenario.devices)
    ]
    assumed = Assumptions(
        delay_ms=0.0,
        activation_limit=np.minimum(warmup[0], limits).tolist(),
        warmup=allowed,
    )
    return Schedule(orders, scenario.placement, scenario.microbatches, name, assumed)


def _order(scenario: Scenario, device: int, warmup: int, late: int) -> list[Op]:
    """The order of one device: W runs once more than ``late`` of them are due, or for its room."""
    n, limit = scenario.microbatches, scenario.activation_limit[device] + _ROUNDING
    by_b, by_w = (float(scenario.released(kind)[device]) for kind in ("B", "W"))
    order: list[Op] = []
    forwards = weights = 0
    for backwards in range(n):
        while forwards < min(warmup + backwards, n):
            while forwards + 1 - by_b * backwards - by_w * weights > limit:
                order.append(Op("W", device, weights))
                weights += 1
            order.append(Op("F", device, forwards))
            forwards += 1
        order.append(Op("B", device, backwards))
        if backwards - weights >= late:
            order.append(Op("W", device, weights))
            weights += 1
    return order + [Op("W", device, m) for m in range(weights, n)]
