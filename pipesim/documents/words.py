"""A scenario in words, for the head of a table or a figure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pipesim.scenario import DOWN, UP, Array, Scenario
from pipesim.text import counted, milliseconds, plain

__all__ = ["between", "described", "titled", "unblocked"]


def described(
    scenario: Scenario, message_cost_ms: ArrayLike = 0.0, *, slow: str | None = None
) -> str:
    """Say what a scenario is: shape, operator times, slow links, cost of messages, limits.

    ``slow`` says which links are slow, where that is more than the scenario's.

    Examples
    --------
    >>> described(Scenario().with_delay(20, links=[0]))
    '4 stages × 12 micro-batches · F 10, B 10, W 10 ms · link 0: 20 ms each way'
    >>> described(Scenario(), message_cost_ms=2)
    '4 stages × 12 micro-batches · F 10, B 10, W 10 ms · no slow link · messages 2 ms'
    """
    parts = [
        _shape(scenario),
        f"{_operators(scenario)} ms",
        slow or ", ".join(_delay(scenario, link) for link in scenario.slow_links) or "no slow link",
        *_messages(message_cost_ms),
    ]
    if np.isfinite(scenario.activation_limit).any():
        limits = scenario.in_micro_batches(scenario.activation_limit)
        each = limits[:1] if (limits == limits[0]).all() else limits
        parts.append("activation limit " + " ".join(f"{n:g}" for n in each))
    return (f"{scenario.name}: " if scenario.name else "") + " · ".join(parts)


def titled(
    scenario: Scenario, message_cost_ms: ArrayLike = 0.0, *, testbed: str | None = None
) -> str:
    """Return a title for a figure: what was run, which links are slow, what messages cost.

    Examples
    --------
    >>> titled(Scenario(name="7B").with_delay(20, links=[0]))
    '7B · link 0: 20 ms each way'
    """
    slow = scenario.slow_links
    delays = ", ".join(_delay(scenario, link) for link in slow) or "no slow link"
    few = delays if len(slow) <= 3 else f"{len(slow)} slow links"
    costs = _messages(message_cost_ms) if testbed is None else [f"testbed {testbed}"]
    return " · ".join([scenario.name or _shape(scenario), few, *costs])


def unblocked(message_cost_ms: ArrayLike) -> str:
    """Say when an iteration time of the transport ideal holds.

    Examples
    --------
    >>> unblocked(0.0)
    'where nothing blocks and messages cost nothing'
    >>> unblocked(2.0)
    'where nothing blocks and messages cost 2 ms'
    """
    cost = between(message_cost_ms) if np.any(message_cost_ms) else "nothing"
    return f"where nothing blocks and messages cost {cost}"


def between(times_ms: ArrayLike) -> str:
    """Return a time, or the shortest and the longest of some.

    Examples
    --------
    >>> between(2.0), between([0.5, 2.0, 1.0])
    ('2 ms', '0.5 to 2 ms')
    """
    low, high = (milliseconds(float(end)) for end in (np.min(times_ms), np.max(times_ms)))
    return low if low == high else f"{low.removesuffix(' ms')} to {high}"


def _messages(cost_ms: ArrayLike) -> list[str]:
    return [f"messages {between(cost_ms)}"] if np.any(cost_ms) else []


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
