"""What to do about a slow link, in one plain sentence.

Systems differ in how much they change: nothing, how messages travel (delegation), or the plan
as well. Of the systems about as fast as the fastest, the one that changes least is advised.
"""

from __future__ import annotations

import numpy as np

from pipesim.studies.comparison import Comparison, Row
from pipesim.text import counted, links, listed, milliseconds, plain

__all__ = ["NEGLIGIBLE", "advice"]

NEGLIGIBLE = 1e-3
"""A gain of at most this part of the iteration time is not worth a change."""

_MOST_DEVICES = 3
_AS_IS, _DELEGATED, _REPLANNED = range(3)


def advice(comparison: Comparison) -> str:
    """Return one sentence: what to do, what it gains, and what it costs in memory.

    Rows that nobody can run are left out: those with an ideal transport, and those that hold
    more activations than fit.

    Examples
    --------
    >>> from pipesim import Scenario, compare
    >>> print(advice(compare(Scenario().with_delay(20, links=[0]))))
    ... # doctest: +NORMALIZE_WHITESPACE
    Re-plan for link 0: PipeMorph takes 410 ms (the lower bound), 40.6 % less than 1F1B and
    6.8 % less than PipeMorph-CPU; it holds more activations than PipeMorph-CPU: 10 instead
    of 9.5 on device 0.
    """
    rows = [row for row in comparison.rows if row.system.transport != "ideal" and row.fits]
    if not rows:
        return "Nothing to advise: no system here both fits and can be run."
    advised = _advised(rows)
    if len(rows) == 1:
        return _alone(advised)
    if not comparison.scenario.slow_links:
        return f"No link is slow: {_takes(advised)}, and no other system here is faster."
    if _changes(advised) == _AS_IS:
        time = milliseconds(advised.iteration_ms) + (
            ", the lower bound" if _is_bound(advised) else ""
        )
        return f"Keep {advised.system.title} ({time}): {_in_vain(rows)}."
    lesser = [
        min(
            (row for row in rows if _changes(row) == changes),
            # Among equally fast ones, take the one that differs only in the change.
            key=lambda row: (row.iteration_ms, row.system.planner != advised.system.planner),
        )
        for changes in range(_changes(advised))
        if any(_changes(row) == changes for row in rows)
    ]
    start = f"Re-plan for {links(comparison.scenario.slow_links)}"
    if _changes(advised) == _DELEGATED:
        kept = lesser and lesser[-1].system.planner == advised.system.planner
        plan = "keep the plan" if kept else f"plan with {advised.system.planner}"
        start = f"Delegate communication to the CPU and {plan}"
    sentence = f"{start}: {_takes(advised)}{_gains(advised, lesser)}"
    if _changes(advised) == _DELEGATED and any(_changes(row) == _REPLANNED for row in rows):
        sentence += "; re-planning gains nothing on top"
    return f"{sentence}{_memory(advised, lesser)}."


def _changes(row: Row) -> int:
    """How much a system changes of what runs today."""
    if row.schedule.assumed.slow_links:
        return _REPLANNED
    return _DELEGATED if row.system.transport == "delegated" else _AS_IS


def _advised(rows: list[Row]) -> Row:
    enough_ms = min(row.iteration_ms for row in rows) * (1 + NEGLIGIBLE)
    return min(
        (row for row in rows if row.iteration_ms <= enough_ms),
        key=lambda row: (_changes(row), row.iteration_ms),
    )


def _takes(row: Row) -> str:
    bound = " (the lower bound)" if _is_bound(row) else ""
    return f"{row.system.title} takes {milliseconds(row.iteration_ms)}{bound}"


def _is_bound(row: Row) -> bool:
    return row.iteration_ms <= row.lower_bound_ms * (1 + 1e-9)


def _alone(row: Row) -> str:
    if _is_bound(row):
        return f"{_takes(row)}."
    above = milliseconds(row.iteration_ms - row.lower_bound_ms)
    return f"{_takes(row)}, {above} above the lower bound."


def _in_vain(rows: list[Row]) -> str:
    """What was tried and does not help."""
    tried = {_changes(row) for row in rows}
    names = {_DELEGATED: "delegation", _REPLANNED: "re-planning"}
    vain = [name for change, name in names.items() if change in tried]
    if not vain:
        return "no other system here is faster"
    return f"{listed(vain)} {'gain' if len(vain) > 1 else 'gains'} nothing"


def _gains(advised: Row, lesser: list[Row]) -> str:
    """How much less time than the fastest of each lesser change."""
    gains = [
        f"{plain(100 * (1 - advised.iteration_ms / row.iteration_ms), 1)} % less than "
        f"{row.system.title}"
        for row in lesser
    ]
    return f", {listed(gains)}" if gains else ""


def _memory(advised: Row, lesser: list[Row]) -> str:
    """What it holds more than the system with the next lesser change, and where."""
    if not lesser or len(lesser[-1].peak_activations) != len(advised.peak_activations):
        return ""
    new, old = np.array(advised.peak_activations), np.array(lesser[-1].peak_activations)
    by_growth = np.argsort(old - new, kind="stable").tolist()
    more = [device for device in by_growth if new[device] > old[device]]
    if not more:
        return "; it holds no more activations" if _changes(advised) == _REPLANNED else ""
    shown = more if len(more) <= _MOST_DEVICES else more[:1]
    named = [f"{new[d]:g} instead of {old[d]:g} on device {d}" for d in shown]
    if len(shown) < len(more):
        named.append(f"more on {counted(len(more) - len(shown), 'other device')}")
    return (
        f"; it holds more activations than {lesser[-1].system.title}: "
        f"{listed(named)}{_on_hosts(advised)}"
    )


def _on_hosts(row: Row) -> str:
    """Whether the memory limits hold, and what goes to host memory to hold them."""
    hosted = np.array(row.host_activations)
    if hosted.any():
        devices = [int(device) for device in np.flatnonzero(hosted)]
        where = f"device{'s' if len(devices) > 1 else ''} {listed(devices)}"
        return (
            f", of which up to {hosted.max():g} wait in host memory because of the limit of {where}"
        )
    return ", within the limit" if np.isfinite(row.scenario.activation_limit).any() else ""
