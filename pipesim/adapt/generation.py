"""Delay traces like those of production clusters: links that are slow in bursts.

At first all links are healthy, so that a job has seen them so. From then on each link is a
Markov-modulated process. It alternates between calm, without delay, and bursts; both last for
exponential times. A burst has a severity, about which its delay jumps now and then, so that delays
are lognormal. Links are independent, and often several are slow at once.

The trace as a whole is then made to have given quantiles. The delay of the *slowest* link at each
moment, over all the time, has exactly this median and this 99th percentile: logarithms of delays
are stretched and shifted, which changes neither their order nor when they change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pipesim.adapt.levels import Levels
from pipesim.delays import DelayTrace
from pipesim.errors import ScenarioError
from pipesim.scenario import LARGEST, Array

__all__ = ["HOUR_MS", "generate"]

HOUR_MS = 3_600_000.0

TICK_MS, STEP_MS = 100.0, 0.1
"""Times are multiples of the one, delays of the other."""

CALM_SHARE = 0.17
"""Part of the time in which no link is slow, on average."""
CALM_BETWEEN = (0.10, 0.25)
"""And what it may be in one trace."""

QUIET_MS, QUIET_SHARE = 30_000.0, 0.05
"""How long all links are calm at first, at most: so long, and this part of the trace."""

SEVERITY = 0.8
"""Standard deviation of the mean log-delay of bursts; that of all log-delays is 1."""

TRIES = 1000
MOST_CHANGES = 1e7


def generate(
    links: int = 7,
    *,
    duration_ms: float = HOUR_MS,
    median_ms: float = 13.0,
    p99_ms: float = 79.3,
    burst_ms: float = 60_000.0,
    level_ms: float = 40_000.0,
    seed: int = 0,
) -> DelayTrace:
    """Generate a trace over time.

    The defaults are the production hour of "Attack of the Bubbles" (NSDI 2026), of which the paper
    says that delays are bursty and have these two quantiles; all else is assumed.

    Parameters
    ----------
    links : int
        Number of links.
    duration_ms : float
        Length of the trace: its end. Rounded to 0.1 s.
    median_ms, p99_ms : float
        Quantiles of the slowest link's delay over all the time, calm included. Rounded to 0.1 ms.
    burst_ms : float
        Mean length of a burst.
    level_ms : float
        Mean time for which a delay stays as it is within a burst.
    seed : int
        The same seed gives the same trace.

    Raises
    ------
    ScenarioError
        Values that cannot be, or a trace too short to have such quantiles.

    Examples
    --------
    >>> from pipesim.adapt.levels import slowest_levels
    >>> levels = slowest_levels(generate(seed=1))
    >>> levels.quantile(0.5), levels.quantile(0.99), 0.10 < 1 - levels.slow_share < 0.25
    (13.0, 79.3, True)
    """
    if links < 1 or seed < 0:
        raise ScenarioError("a trace has at least one link, and a seed is at least 0")
    if not STEP_MS <= median_ms < p99_ms:
        raise ScenarioError("the median must be at least 0.1 ms, and below the 99th percentile")
    if not (burst_ms >= TICK_MS and level_ms >= TICK_MS):
        raise ScenarioError("bursts, and levels in them, must last at least 100 ms on average")
    if not links * duration_ms <= MOST_CHANGES * min(burst_ms, level_ms):
        raise ScenarioError(f"a trace of {duration_ms:g} ms would have too many changes")
    end = round(duration_ms / TICK_MS)
    chance = np.random.default_rng(seed)
    for _ in range(TRIES if end else 0):
        ticks, heights = _hour(chance, links, end, burst_ms / TICK_MS, level_ms / TICK_MS)
        slowest = Levels.of(heights.max(axis=1), np.diff(ticks, append=end))
        calm = float(slowest.share[slowest.delay_ms == -np.inf].sum())
        middle, high = slowest.quantile(0.5), slowest.quantile(0.99)
        if CALM_BETWEEN[0] <= calm <= CALM_BETWEEN[1] and middle < high:
            break
    else:
        raise ScenarioError(
            f"{duration_ms:g} ms are too short for bursts of {burst_ms:g} ms: make the trace longer"
        )
    stretch = math.log(p99_ms / median_ms) / (high - middle)
    if not stretch * (heights.max() - middle) < math.log(LARGEST / median_ms):
        raise ScenarioError(f"a 99th percentile of {p99_ms:g} ms makes longer delays too long")
    delays = median_ms * np.exp(stretch * (heights - middle))
    rounded = np.round(np.maximum(np.round(delays / STEP_MS), 1) * STEP_MS, 1)
    delay_ms = np.where(np.isfinite(heights), rounded, 0.0)
    changed = np.append(True, (delay_ms[1:] != delay_ms[:-1]).any(axis=1))
    return DelayTrace(ticks[changed] * TICK_MS, delay_ms[changed], end=end * TICK_MS)


def _hour(
    chance: np.random.Generator, links: int, end: int, burst: float, level: float
) -> tuple[Array, Array]:
    """Return when anything changes, [K], and the log-delays from then on, [K, links].

    Times are in ticks. The logarithms of delays have mean 0 and deviation 1, in no unit yet; minus
    infinity is no delay.
    """
    calm_share = CALM_SHARE ** (1 / links)
    calm = burst * calm_share / (1 - calm_share)
    histories = [dict(_history(chance, end, calm, calm_share, burst, level)) for _ in range(links)]
    ticks = np.unique([tick for history in histories for tick in history])
    columns = []
    for history in histories:
        own = np.array(list(history))
        heights = np.array(list(history.values()))
        columns.append(heights[np.searchsorted(own, ticks, side="right") - 1])
    return ticks, np.stack(columns, axis=1)


def _history(
    chance: np.random.Generator,
    end: int,
    calm: float,
    calm_share: float,
    burst: float,
    level: float,
) -> Iterator[tuple[int, float]]:
    """Yield when one link's log-delay changes, and to what; of one tick, the last counts."""
    now, is_calm = min(QUIET_MS / TICK_MS, QUIET_SHARE * end), chance.random() < calm_share
    yield 0, -math.inf
    while round(now) < end:
        if is_calm:
            yield round(now), -math.inf
            now += chance.exponential(calm)
        else:
            severity, over = chance.normal(0, SEVERITY), now + chance.exponential(burst)
            while now < over and round(now) < end:
                yield round(now), chance.normal(severity, math.sqrt(1 - SEVERITY**2))
                now += chance.exponential(level)
            now = over
        is_calm = not is_calm
