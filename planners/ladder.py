"""A fixed ladder of longer and longer delays, to plan for instead of the delays themselves.

Plans for delays that hardly differ may differ by luck: then the shorter delay gets the longer
iteration. If both are planned for the same rungs, and plans are compared under the delays
themselves, they have the same plans to choose from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pipesim.scenario import Scenario

__all__ = ["rungs"]

_ROUNDING = 1e-9


def rungs(scenario: Scenario, *, per_doubling: int) -> Iterator[Scenario]:
    """Yield the scenario with its delays stretched to each rung that is not below them.

    All delays are stretched alike. The longest is a power of 2^(1/``per_doubling``) times the
    mean operator time; it ends where it outlasts all forwards and backwards of a stage, or at
    the first rung. Nothing is yielded where no link is slow or no operator takes time.

    Examples
    --------
    >>> scenario = Scenario(microbatches=2).with_delay(15, links=[0])
    >>> [float(rung.delay_ms.max()) for rung in rungs(scenario, per_doubling=1)]
    [20.0, 40.0]
    """
    delay_ms = scenario.delay_ms
    longest = float(delay_ms.max(initial=0.0))
    kinds = (scenario.forward_ms, scenario.backward_ms, scenario.weight_ms)
    mean = float(np.mean([kind.mean() for kind in kinds]))
    if not mean or not longest / mean:  # a delay of next to nothing, too
        return
    first = math.ceil(per_doubling * math.log2(longest / mean) - _ROUNDING)
    last = math.ceil(per_doubling * math.log2(2 * scenario.microbatches) - _ROUNDING)
    for rung in range(first, max(first, last) + 1):
        stretched = delay_ms / longest * (mean * 2.0 ** (rung / per_doubling))
        yield scenario.replaced(latency_ms=stretched, occupancy_ms=0.0)
