"""Lower bounds on the iteration time that certify plans without a solver.

:func:`lower_bound_ms` is a closed form. :func:`horizon_bound_ms`
asks, for one horizon after the other, whether a schedule could be that short, device by
device (:mod:`pipesim.analysis.windows`), and so it sees the activation limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

import numpy as np

from pipesim.analysis.over import Over, never
from pipesim.analysis.windows import TOLERANCE, find_windows, searchable
from pipesim.scenario import DOWN, UP, Array, Scenario

__all__ = [
    "fits_limits",
    "grain",
    "grain_ms",
    "horizon_bound_ms",
    "lower_bound_ms",
    "serial_ms",
    "shortest_horizon_ms",
]

_FINEST = 1e-6
"""Where times have no grain, the step between horizons as a part of the longest."""


def lower_bound_ms(scenario: Scenario) -> float:
    """A time that no schedule of ``scenario`` can beat, under any transport.

    The largest of, over devices and micro-batches m:

    - the chain of m: every F and B with the delays between them, and its last W;
    - head + work: before its first operator, a device waits for the forwards above it; then
      all its operators run;
    - head + forwards + backwards + tail: the last of them is a B (or BW), whose gradient
      still has to go up to stage 0, where a W follows;
    - the earliest first backward + all backward work.

    Examples
    --------
    >>> lower_bound_ms(Scenario()), lower_bound_ms(Scenario().with_delay(20, links=[0]))
    (390.0, 410.0)
    """
    forward, weight = scenario.forward_ms, scenario.weight_ms
    backward = np.minimum(scenario.backward_ms, scenario.fused_backward_ms)
    whole = np.minimum(scenario.backward_ms + weight, scenario.fused_backward_ms)
    delay = scenario.delay_ms
    # Earliest end of F, and shortest time from the start of B to the end of W_0, for [s, m].
    down = np.cumsum(forward, axis=0) + _cumulative(delay[:, DOWN])[:, None]
    up_and_out = np.cumsum(backward, axis=0) + _cumulative(delay[:, UP])[:, None]
    up_and_out += (whole - backward)[0]
    tail = np.maximum(up_and_out, whole)  # from the start of a stage's B, its own W included
    # Earliest start of B.
    first_backward = down[-1] + (up_and_out[-1] - up_and_out)
    bounds = [float((first_backward + tail).max())]
    for stages in scenario.stages_of:
        own = list(stages)
        head = float((down - forward)[own].min())
        backward_head = float(first_backward[own].min())
        rest = float((tail - backward)[own].min())
        split = float((forward + backward)[own].sum())
        bounds += [
            head + float((forward + whole)[own].sum()),
            head + split + rest,
            backward_head + float(whole[own].sum()),
            backward_head + float(backward[own].sum()) + rest,
        ]
    return max(bounds)


def horizon_bound_ms(
    scenario: Scenario,
    *,
    within_limits: bool = True,
    incumbent_ms: float = math.inf,
    over: Over = never,
) -> float:
    """A time that no schedule of ``scenario`` can beat, under any transport.

    Every horizon below it was found impossible, or it is
    :func:`lower_bound_ms`. Operators may be split or fused, and their
    micro-batches in any order: where the times of a stage differ between micro-batches, the
    shortest of each kind count.

    Parameters
    ----------
    scenario : Scenario
        Large ones (over :data:`~pipesim.analysis.windows.MOST_STATES` states) get the simple bound.
    within_limits : bool
        Only schedules whose activations fit the devices' own limits count. False for plans
        that move activations to the host.
    incumbent_ms : float
        Iteration time of a known schedule: no need to look above it. It is returned where
        it cannot be improved.
    over : callable
        Asked again and again whether to return what is proven so far.

    Returns
    -------
    float
        ``inf`` where no schedule fits the limits.

    Examples
    --------
    >>> scenario = Scenario(activation_limit=4).with_delay(20, links=[1])
    >>> horizon_bound_ms(scenario), horizon_bound_ms(scenario, within_limits=False)
    (480.0, 410.0)
    """
    if within_limits and not fits_limits(scenario):
        return math.inf
    simple = lower_bound_ms(scenario)
    if simple >= incumbent_ms * (1 - TOLERANCE):
        return min(simple, incumbent_ms)
    # Times of a coarser grain: what lies between two of its multiples is no bound to start from.
    relaxed = _relaxed(scenario, within_limits)
    bound, _ = shortest_horizon_ms(relaxed, lower_bound_ms(relaxed), incumbent_ms, over)
    return min(max(simple, bound), incumbent_ms)


def shortest_horizon_ms(
    scenario: Scenario,
    low_ms: float = 0.0,
    high_ms: float = math.inf,
    over: Over = never,
) -> tuple[float, float]:
    """Shortest horizon that :func:`~.windows.find_windows` does not find impossible.

    Operators are split, and those of one kind run in the order of their micro-batches.

    Parameters
    ----------
    scenario : Scenario
        With limits that fit one micro-batch.
    low_ms, high_ms : float
        A lower bound to start from, of this scenario's own, and a schedule's iteration time to
        stop at.
    over : callable
        Asked again and again whether to return what is proven so far.

    Returns
    -------
    bound_ms, horizon_ms : float
        No schedule of split operators in order is shorter than the bound. The horizon is the
        same where the times have a grain; else it is up to a millionth longer.

    Examples
    --------
    >>> shortest_horizon_ms(Scenario())
    (390.0, 390.0)
    """
    high_ms = min(high_ms, serial_ms(scenario))
    if low_ms >= high_ms:
        return high_ms, high_ms
    if not searchable(scenario):
        return low_ms, low_ms
    step = grain_ms(scenario)
    grainy = step * 1e-3 > TOLERANCE * high_ms
    if grainy:  # every iteration time is a whole number of grains
        low_ms = step * math.ceil(low_ms / step - 1e-6)
    else:
        step = _FINEST * high_ms
    if not step:  # all times together are next to nothing
        return low_ms, low_ms
    steps = _fewest_steps(scenario, low_ms, high_ms, step, over)
    horizon = min(low_ms + steps * step, high_ms)
    return horizon if grainy else min(low_ms + max(steps - 1, 0) * step, high_ms), horizon


def _fewest_steps(scenario: Scenario, low: float, high: float, step: float, over: Over) -> int:
    """Return how many steps above ``low`` is the first horizon not found impossible."""

    def possible(steps: int) -> bool:
        return find_windows(scenario, low + steps * step, over=over) is not None

    last = max(0, math.ceil((high - low) / step - 1e-6))
    if last and not possible(last - 1):  # as for an incumbent that is optimal
        return last
    # Fewer than ``impossible`` steps are; double the distance, then halve.
    impossible, known, reach = 0, max(last - 1, 0), 1
    while impossible < known and not over():
        middle = min(impossible + reach - 1, (impossible + known) // 2)
        if possible(middle):
            known = middle
        else:
            impossible, reach = middle + 1, 2 * reach
    return impossible


def fits_limits(scenario: Scenario) -> bool:
    """Whether one micro-batch fits every device: one activation for each of its stages.

    Examples
    --------
    >>> fits_limits(Scenario(activation_limit=1)), fits_limits(Scenario(activation_limit=0.5))
    (True, False)
    """
    needed = np.array([len(stages) for stages in scenario.stages_of])
    return bool((np.asarray(scenario.activation_limit) + TOLERANCE >= needed).all())


def serial_ms(scenario: Scenario) -> float:
    """Time of one micro-batch after the other, which fits every limit that any order fits.

    Examples
    --------
    >>> serial_ms(Scenario(stages=2, microbatches=3))
    180.0
    """
    work = float((scenario.forward_ms + scenario.backward_ms + scenario.weight_ms).sum())
    return work + scenario.microbatches * float(scenario.delay_ms.sum())


def grain_ms(scenario: Scenario) -> float:
    """Largest time of which all delays and times of split operators are multiples.

    Numbers are read as decimals or simple fractions, to 12 digits: 0.1 + 0.2 is 0.3. Every ideal
    iteration time without fused backwards is a sum of them, so a schedule that is shorter at
    all is shorter by the grain.

    Returns
    -------
    float
        0 where the times have none worth the name: less than 10⁻⁹ of the largest.

    Examples
    --------
    >>> [grain_ms(Scenario(forward_ms=time)) for time in (10, 12.5, 9.7, 0.1 + 0.2, 10 / 3)]
    [10.0, 2.5, 0.1, 0.1, 3.3333333333333335]
    """
    return float(grain(scenario))


def grain(scenario: Scenario, more: Sequence[float] = ()) -> Fraction:
    """:func:`grain_ms` as an exact fraction; of ``more`` times, too."""
    kinds = (scenario.forward_ms, scenario.backward_ms, scenario.weight_ms, more)
    delays = (scenario.latency_ms, scenario.occupancy_ms)
    values = np.unique(np.concatenate([np.ravel(a) for a in (*kinds, *delays)]))
    fractions = [_plain(value) for value in values if value]
    if not fractions:
        return Fraction(0)
    divisor = reduce(_common, fractions)
    return divisor if divisor * 10**9 >= max(fractions) else Fraction(0)


def _plain(value: float) -> Fraction:
    """Return a number as a simple fraction, such as 1/3, or else as a decimal."""
    simple = Fraction(value).limit_denominator(1000)
    return simple if math.isclose(simple, value, rel_tol=1e-12) else Fraction(f"{value:.12g}")


def _common(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(
        math.gcd(a.numerator * b.denominator, b.numerator * a.denominator),
        a.denominator * b.denominator,
    )


def _relaxed(scenario: Scenario, within_limits: bool) -> Scenario:
    """Return a scenario of split operators with one time a stage and kind, none longer."""
    backward = np.minimum(scenario.backward_ms, scenario.fused_backward_ms)
    whole = np.minimum(scenario.backward_ms + scenario.weight_ms, scenario.fused_backward_ms)
    # Where BW is B + W the difference may round to another number than W.
    fuses = np.isclose(whole, scenario.backward_ms + scenario.weight_ms, rtol=1e-12, atol=0)
    weight = np.where(fuses, scenario.weight_ms, whole - backward)

    def shortest(times: Array) -> Array:
        smallest: Array = times.min(axis=1, keepdims=True)
        return np.broadcast_to(smallest, times.shape)

    return scenario.replaced(
        forward_ms=shortest(scenario.forward_ms),
        backward_ms=shortest(backward),
        weight_ms=shortest(weight),
        fused_backward_ms=None,
        activation_limit=scenario.activation_limit if within_limits else np.inf,
    )


def _cumulative(delays: Array) -> Array:
    """Delay between stage 0 and each stage, shape [S]."""
    return np.concatenate([[0.0], np.cumsum(delays)])
