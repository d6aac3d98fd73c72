"""A delay trace in words."""

from __future__ import annotations

import math

from pipesim.adapt.levels import Levels, changes, slow_levels, slowest_levels
from pipesim.cli.output import wrapped
from pipesim.delays import By, DelayTrace
from pipesim.text import counted, milliseconds, plain

__all__ = ["delay_text", "length_text", "summary"]


def length_text(points: float, by: By) -> str:
    """Return a length of a trace.

    Examples
    --------
    >>> length_text(3.6e6, "time"), length_text(90_000, "time"), length_text(40, "iteration")
    ('1 h', '1.5 min', '40 iterations')
    """
    if by == "iteration":
        return counted(points, "iteration")
    for unit, ms in (("h", 3.6e6), ("min", 60e3), ("s", 1e3)):
        if points >= ms:
            return f"{plain(points / ms, 2)} {unit}"
    return milliseconds(points)


def delay_text(delay_ms: float, digits: int = 1) -> str:
    """Return a delay without its unit, or that the link has failed.

    Examples
    --------
    >>> delay_text(13.04), delay_text(float("inf")), delay_text(float("nan"))
    ('13', 'failed', '–')
    """
    if math.isnan(delay_ms):
        return "–"
    return "failed" if math.isinf(delay_ms) else plain(delay_ms, digits)


def summary(trace: DelayTrace) -> list[str]:
    """Say how slow a trace is: of the slowest link at each moment, and of all slow links."""
    slowest = slowest_levels(trace)
    assert trace.end is not None
    head = (
        f"{counted(trace.links, 'link')}, {length_text(trace.end, trace.by)}, "
        f"{counted(sum(changes(trace)), 'change')}"
    )
    if not slowest.slow_share:
        return [f"{head}; no link is ever slow"]
    lines = [
        f"{head}; no link is slow for {100 * (1 - slowest.slow_share):.1f} % of it",
        f"Slowest link at each moment, over all of it: {_quantiles(slowest)}",
        f"All links, each while it is slow: {_quantiles(slow_levels(trace))}",
    ]
    return [wrapped(line, "  ") for line in lines]


def _quantiles(levels: Levels) -> str:
    middle, high = (_with_unit(levels.quantile(part)) for part in (0.5, 0.99))
    return f"median {middle}, P99 {high}"


def _with_unit(delay_ms: float) -> str:
    text = delay_text(delay_ms)
    return f"{text} ms" if math.isfinite(delay_ms) else text
