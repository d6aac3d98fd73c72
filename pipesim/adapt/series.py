"""Series of transfer times with the truth beside them, to judge detectors by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.random import default_rng

from pipesim.adapt.detectors.decision import over
from pipesim.delays import DelayTrace
from pipesim.scenario import Array

__all__ = ["CASES", "Series", "synthetic", "traced"]

HOUR = 4500
"""Iterations of 0.8 s in an hour."""
WAYS = 14
"""Links of eight stages, in both directions."""

_HEALTHY, _SLOW = 50, 50
"""Iterations before and after, and during, what most cases are about."""


@dataclass(frozen=True, eq=False)
class Series:
    """What is measured on one link in one direction, and what its delay was.

    Parameters
    ----------
    measured_ms : array, shape [iterations]
        Median transfer time of each iteration's messages; NaN where there were none.
    delay_ms : array, shape [iterations]
        What the link's messages took beyond the healthy link's.
    """

    measured_ms: Array
    delay_ms: Array


def _plain(times: list[float] | Array) -> tuple[Array, Array]:
    """Delays as multiples of a base that stays what it is, between healthy iterations."""
    delays = np.concatenate([np.zeros(_HEALTHY), times, np.zeros(_HEALTHY)])
    return np.ones(len(delays)), delays


def _step(ratio: float) -> tuple[Array, Array]:
    return _plain(np.full(_SLOW, ratio - 1.0))


def _bursts(length: int) -> tuple[Array, Array]:
    return _plain(np.tile(np.repeat([4.0, 0.0], [length, _HEALTHY]), 4))


def _levels() -> tuple[Array, Array]:
    return _plain(np.repeat([2.0, 4.0, 3.0, 7.0, 1.0, 2.0], 20))


def _ramp() -> tuple[Array, Array]:
    up = np.linspace(0.04, 2.0, _SLOW)
    return _plain(np.concatenate([up, np.full(_SLOW, 2.0), up[::-1]]))


def _drift() -> tuple[Array, Array]:
    """A base that grows by half in 2,000 iterations, and then a step to twice that."""
    base = np.concatenate([np.linspace(1.0, 1.5, 2000), np.full(_SLOW + _HEALTHY, 1.5)])
    delays = np.zeros(len(base))
    delays[2000 : 2000 + _SLOW] = 1.5
    return base, delays


CASES: Mapping[str, Callable[[], tuple[Array, Array]]] = MappingProxyType(
    {
        **{f"step to {ratio:g}×": partial(_step, ratio) for ratio in (1.2, 1.35, 1.5, 2, 5, 20)},
        **{f"bursts of {length}": partial(_bursts, length) for length in (1, 2, 5, 20)},
        "levels": _levels,
        "ramp": _ramp,
        "drift": _drift,
        "no base": partial(_step, 3.0),
        "outliers": lambda: _plain(np.zeros(900)),
        "healthy hour": lambda: _plain(np.zeros(HOUR - 2 * _HEALTHY)),
        "slow hour": lambda: _plain(np.full(HOUR, 2.0)),
    }
)
"""What happens to the link, by name: its base and its delays, as multiples of a healthy time."""

_OUTLIERS = 0.01
_OUTLIER = 3.0


def synthetic(
    case: str, *, jitter: float = 0.05, seed: int = 0, trials: int = WAYS, base_ms: float = 10.0
) -> Iterator[Series]:
    """Yield measurements of one of the :data:`CASES`, with random noise.

    Parameters
    ----------
    case : str
        Steps and bursts to 5× start and end at once; ``levels`` changes while slow, between 2×
        and 8×; the ``ramp`` takes 50 iterations each way. In ``no base``, a healthy link's messages
        take no time. In ``outliers``, one measurement in a hundred is three times as long,
        and nothing is slow. In ``slow hour``, the link stays at 3×.
    jitter : float
        Standard deviation of the logarithm of what is measured.
    seed : int
        Of the noise.
    trials : int
        How many series.
    base_ms : float
        What a message takes over the healthy link.
    """
    random = default_rng([seed, list(CASES).index(case)])
    base, delay = (base_ms * part for part in CASES[case]())
    if case == "no base":
        base = np.zeros(len(base))
    for _ in range(trials):
        measured = (base + delay) * random.lognormal(0.0, jitter, len(delay))
        if case == "outliers":
            measured[random.random(len(delay)) < _OUTLIERS] *= _OUTLIER
        yield Series(measured, delay)


def traced(
    trace: DelayTrace,
    *,
    iteration_ms: float = 800.0,
    jitter: float = 0.05,
    seed: int = 0,
    base_ms: float = 10.0,
) -> Iterator[Series]:
    """Yield what would be measured under a trace: of each link down, then up.

    Parameters
    ----------
    trace : DelayTrace
        Without an end, it goes on for ten iterations after its last change. What is sent over a
        failed link waits for its recovery, and is not measured if there is none.
    iteration_ms : float
        How long an iteration takes, for a trace by time: a delay is what it is at its start.
    jitter, seed, base_ms
        As in :func:`synthetic`.
    """
    over("iteration_ms", iteration_ms, 0)
    step = iteration_ms if trace.by == "time" else 1.0
    last = float(trace.starts.max(initial=0.0))
    points = np.arange(0.0, last + 10 * step if trace.end is None else trace.end, step)
    delay_ms, until = _recovered(trace)
    now = np.searchsorted(trace.starts, points, side="right")
    delays = delay_ms[now] + np.maximum(until[now] - points[:, None, None], 0.0)
    random = default_rng(seed)
    for link in range(trace.links):
        for way in range(2):
            delay = delays[:, link, way]
            measured = (base_ms + delay) * random.lognormal(0.0, jitter, len(delay))
            yield Series(np.where(np.isfinite(delay), measured, np.nan), delay)


def _recovered(trace: DelayTrace) -> tuple[Array, Array]:
    """Return delays before and after each change, and until when a failed link must be waited for.

    Shapes [K + 1, links, 2]; the delay of a failed link is the one that it recovers with.
    """
    delay_ms = trace.states_ms
    until = np.zeros(delay_ms.shape)
    for level in range(len(trace.starts) - 1, -1, -1):
        failed = np.isinf(delay_ms[level])
        following = np.maximum(until[level + 1], trace.starts[level])
        until[level] = np.where(failed, following, 0.0)
        delay_ms[level] = np.where(failed, delay_ms[level + 1], delay_ms[level])
    return delay_ms, until
