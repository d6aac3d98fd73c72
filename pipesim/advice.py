"""What to do about a slow link, in one plain sentence.

Systems differ in how much they change: nothing, how messages travel (delegation), or the
plan too. Of those about as fast as the fastest, the one that changes least is advised.
"""

from __future__ import annotations

import numpy as np

from pipesim.comparison import Comparison, Row
from pipesim.wording import counted, links, listed, milliseconds, plain

__all__ = ["NEGLIGIBLE", "advice"]

NEGLIGIBLE = 1e-3
"""A gain of up to this part of the iteration time is not worth a change."""

_AS_IS, _DELEGATED, _REPLANNED = range(3)


def advice(comparison: Comparison) -> str:
    """Return one sentence: what to do, what it gains, and what it costs in memory.

    Rows with an ideal transport are left out: nobody can run them.

    Examples
    --------
    >>> from pipesim import Scenario, compare
    >>> print(advice(compare(Scenario().with_delay(20, links=[0]))))
    Re-plan for link 0: PipeMorph takes 410 ms, 40.6 % less than 1F1B and 6.8 % less than
    PipeMorph-CPU, and no schedule can be faster; it holds 10 instead of 9.5 activations on
    device 0.
    """
    rows = [row for row in comparison.rows if row.system.transport != "ideal"]
    if not rows:
        return "Nothing to advise: an ideal transport tells a limit, not what can be run."
    advised = _advised(rows)
    if len(rows) == 1:
        return _alone(advised)
    if not comparison.scenario.slow_links:
        return f"No link is slow: {_takes(advised)}, and no other system here is faster."
    kept = [row for row in rows if _changes(row) < _changes(advised)]
    if _changes(advised) == _AS_IS:
        return f"Keep {_takes(advised)}, and {_in_vain(rows)}{_no_better(advised)}."
    start = {
        _DELEGATED: "Delegate communication to the CPU and keep the plan",
        _REPLANNED: f"Re-plan for {links(comparison.scenario.slow_links)}",
    }[_changes(advised)]
    sentence = f"{start}: {_takes(advised)}{_gains(advised, kept)}{_no_better(advised)}"
    if _changes(advised) == _DELEGATED and any(_changes(row) == _REPLANNED for row in rows):
        sentence += "; re-planning gains nothing on top"
    return f"{sentence}{_memory(advised, kept)}."


def _changes(row: Row) -> int:
    """How much a system changes of what runs today."""
    if np.any(np.asarray(row.schedule.assumed.get("delay_ms", 0.0), dtype=np.float64)):
        return _REPLANNED
    return _DELEGATED if row.system.transport == "delegated" else _AS_IS


def _advised(rows: list[Row]) -> Row:
    enough_ms = min(row.iteration_ms for row in rows) * (1 + NEGLIGIBLE)
    return min(
        (row for row in rows if row.iteration_ms <= enough_ms),
        key=lambda row: (_changes(row), row.iteration_ms),
    )


def _takes(row: Row) -> str:
    return f"{row.system.title} takes {milliseconds(row.iteration_ms)}"


def _alone(row: Row) -> str:
    above_ms = row.iteration_ms - row.lower_bound_ms
    if above_ms <= NEGLIGIBLE * row.iteration_ms:
        return f"{_takes(row)}, and no schedule can be faster."
    return f"{_takes(row)}, {milliseconds(above_ms)} above the lower bound."


def _no_better(row: Row) -> str:
    if row.iteration_ms <= row.lower_bound_ms * (1 + 1e-9):
        return ", and no schedule can be faster"
    return ""


def _in_vain(rows: list[Row]) -> str:
    """What was tried and does not help."""
    tried = {_changes(row) for row in rows}
    names = {_DELEGATED: "delegation", _REPLANNED: "re-planning"}
    vain = [name for change, name in names.items() if change in tried]
    return f"{listed(vain)} gains nothing" if vain else "no other system here is faster"


def _gains(advised: Row, kept: list[Row]) -> str:
    """How much less time than the fastest of each lesser change."""
    fastest = [
        min(group, key=lambda row: row.iteration_ms)
        for change in (_AS_IS, _DELEGATED)
        if (group := [row for row in kept if _changes(row) == change])
    ]
    gains = [
        f"{plain(100 * (1 - advised.iteration_ms / row.iteration_ms), 1)} % less than "
        f"{row.system.title}"
        for row in fastest
    ]
    return f", {listed(gains)}" if gains else ""


def _memory(advised: Row, kept: list[Row]) -> str:
    """What the plan holds more than the fastest plan made for healthy links, and where."""
    before = min(
        (row for row in kept if len(row.peak_activations) == len(advised.peak_activations)),
        key=lambda row: row.iteration_ms,
        default=None,
    )
    if _changes(advised) != _REPLANNED or before is None:
        return ""
    new, old = np.array(advised.peak_activations), np.array(before.peak_activations)
    more = [int(device) for device in np.argsort(old - new, kind="stable") if new[device] > old[device]]
    if not more:
        return ", with no more activations on any device"
    named = [f"{new[d]:g} instead of {old[d]:g} activations on device {d}" for d in more[:1]]
    named += [f"{new[d]:g} instead of {old[d]:g} on device {d}" for d in more[1:3]]
    if len(more) > 3:
        named = [*named[:1], f"more on {counted(len(more) - 1, 'other device')}"]
    return f"; it holds {listed(named)}{_on_hosts(advised)}"


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
