"""Numbers, counts and scenarios in words, for people. What machines read is JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipesim.scenario import DOWN, UP, Array, Scenario

__all__ = ["counted", "decimals", "described", "links", "listed", "milliseconds", "plain", "titled"]


def decimals(largest: float) -> int:
    """Digits behind the point that tell numbers up to ``largest`` apart: four in all.

    Examples
    --------
    >>> decimals(410.0), decimals(31.1), decimals(0.3)
    (1, 2, 4)
    """
    if largest <= 0:
        return 1
    return min(max(3 - math.floor(math.log10(largest)), 1), 9)


def plain(value: float, digits: int | None = None) -> str:
    """Return ``value`` with at most ``digits`` behind the point and no zeros at the end.

    Examples
    --------
    >>> plain(410.0), plain(61.25, 1), plain(0.3)
    ('410', '61.2', '0.3')
    """
    text = f"{value:.{decimals(abs(value)) if digits is None else digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(value_ms: float) -> str:
    """Return a time with its unit.

    Examples
    --------
    >>> milliseconds(410.0)
    '410 ms'
    """
    return f"{plain(value_ms)} ms"


def counted(count: float, noun: str) -> str:
    """Return a count and its noun.

    Examples
    --------
    >>> counted(1, "activation"), counted(0.5, "activation"), counted(12, "micro-batch")
    ('1 activation', '0.5 activations', '12 micro-batches')
    """
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{count:g} {noun if count == 1 else plural}"


def listed(parts: Sequence[object]) -> str:
    """Return an enumeration.

    Examples
    --------
    >>> listed([0, 2, 5])
    '0, 2 and 5'
    """
    words = [str(part) for part in parts]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def links(indices: Sequence[int]) -> str:
    """Return the names of some links.

    Examples
    --------
    >>> links([0]), links([0, 2])
    ('link 0', 'links 0 and 2')
    """
    return f"link{'s' if len(indices) > 1 else ''} {listed(indices)}"


def described(scenario: Scenario) -> str:
    """Say what a scenario is: shape, operator times, slow links, limits.

    Examples
    --------
    >>> described(Scenario().with_delay(20, links=[0]))
    '4 stages × 12 micro-batches · F 10, B 10, W 10 ms · link 0: 20 ms each way'
    """
    parts = [
        _shape(scenario),
        f"{_operators(scenario)} ms",
        ", ".join(_delay(scenario, link) for link in scenario.slow_links) or "no slow link",
    ]
    if np.isfinite(scenario.activation_limit).any():
        limits = scenario.activation_limit
        each = limits[:1] if (limits == limits[0]).all() else limits
        parts.append("activation limit " + " ".join(f"{n:g}" for n in each))
    return (f"{scenario.name}: " if scenario.name else "") + " · ".join(parts)


def titled(scenario: Scenario) -> str:
    """Return a title for a figure: what was run, and which links are slow.

    Examples
    --------
    >>> titled(Scenario(name="7B").with_delay(20, links=[0]))
    '7B · link 0: 20 ms each way'
    """
    slow = scenario.slow_links
    delays = ", ".join(_delay(scenario, link) for link in slow) or "no slow link"
    return f"{scenario.name or _shape(scenario)} · " + (
        delays if len(slow) <= 3 else f"{len(slow)} slow links"
    )


def _shape(scenario: Scenario) -> str:
    shape = counted(scenario.stages, "stage")
    if not scenario.is_plain:
        shape += f" on {counted(scenario.devices, 'device')}"
    return f"{shape} × {counted(scenario.microbatches, 'micro-batch')}"


def _operators(scenario: Scenario) -> str:
    """Operator times by kind; the fused backward only where it is not B + W."""
    times = {"F": scenario.forward_ms, "B": scenario.backward_ms, "W": scenario.weight_ms}
    if not np.array_equal(scenario.fused_backward_ms, scenario.backward_ms + scenario.weight_ms):
        times["BW"] = scenario.fused_backward_ms
    return ", ".join(f"{kind} {_range(values)}" for kind, values in times.items())


def _range(values: Array) -> str:
    low, high = plain(float(values.min())), plain(float(values.max()))
    return low if low == high else f"{low}–{high}"


def _delay(scenario: Scenario, link: int) -> str:
    down, up = (plain(float(scenario.delay_ms[link, way])) for way in (DOWN, UP))
    if down == up:
        return f"link {link}: {down} ms each way"
    ways = [f"{delay} ms {way}" for delay, way in ((down, "down"), (up, "up")) if delay != "0"]
    return f"link {link}: {', '.join(ways)}"
