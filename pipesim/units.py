"""Times as whole numbers, so that sums which are equal compare equal.

Whether two operators end at the same moment decides what a scheduler does next. In milliseconds
the rounding of sums decides it: 0.1 + 0.2 ends after 0.3, 1 + 2 does not end after 3. The same
pipeline in another unit would get another plan.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from pipesim.scenario import Array, Scenario

__all__ = ["in_whole_units", "whole"]

_FINEST = 2**36
"""Most units in the longest time: sums of 131,072 times are exact in a double."""
_LARGEST_DENOMINATOR = 10**6
_ROUNDING = 16 * np.finfo(float).eps


def whole(*times: Array) -> tuple[list[Array], float]:
    """Return times as whole numbers of one unit.

    The unit is the largest of which all times are multiples, up to the rounding of doubles. Where
    there is none worth the name, times are rounded to 2⁻³⁶ of the longest. So times that differ
    by one factor become the same.

    Parameters
    ----------
    *times : arrays
        Not negative, of any shapes.

    Returns
    -------
    counts : list of arrays
        How many units each time takes, in the same shapes.
    unit : float
        The unit, in that of the times.

    Examples
    --------
    >>> counts, unit = whole(np.array([0.1, 0.2]), np.array([0.1 + 0.2]))
    >>> [each.tolist() for each in counts], round(unit, 15)
    ([[1.0, 2.0], [3.0]], 0.1)
    """
    longest = max((float(each.max()) for each in times if each.size), default=0.0)
    if not longest:
        return list(times), 1.0
    parts = [each / longest for each in times]
    units = _units({part for each in parts for part in each.ravel().tolist()})
    return [np.rint(each * units) for each in parts], longest / units


def in_whole_units(scenario: Scenario) -> tuple[Scenario, float]:
    """Return the scenario with all times of split operators and all delays as whole numbers.

    See :func:`whole`. Scenarios that differ by a factor of all times alone become the same.

    Returns
    -------
    scenario : Scenario
        Its fused backwards take B + W, and its delays are all latency.
    unit_ms : float
        The unit.

    Examples
    --------
    >>> tenths = Scenario(forward_ms=0.1, backward_ms=0.2, weight_ms=0.1 + 0.2)
    >>> counted, unit_ms = in_whole_units(tenths.with_delay(1.5, links=[0]))
    >>> [float(counted.durations_ms(kind)[0, 0]) for kind in ("F", "B", "W")]
    [1.0, 2.0, 3.0]
    >>> float(counted.delay_ms[0, 0]), unit_ms
    (15.0, 0.1)
    """
    (forward, backward, weight, delay), unit_ms = whole(
        scenario.forward_ms, scenario.backward_ms, scenario.weight_ms, scenario.delay_ms
    )
    counted = scenario.replaced(
        forward_ms=forward,
        backward_ms=backward,
        weight_ms=weight,
        fused_backward_ms=None,
        latency_ms=delay,
        occupancy_ms=0.0,
    )
    return counted, unit_ms


def _units(parts: set[float]) -> int:
    """Fewest units in the longest time, given times as parts of it."""
    units = 1
    for part in parts:
        fraction = Fraction(part).limit_denominator(_LARGEST_DENOMINATOR)
        if abs(float(fraction) - part) > _ROUNDING * part:
            return _FINEST
        units = math.lcm(units, fraction.denominator)
        if units > _FINEST:
            return _FINEST
    return units
