"""What to do about a slow link, in one plain sentence, and what that takes for granted.

Systems differ in how much they change: nothing, how messages travel (delegation), or the plan
as well. Of the systems about as fast as the fastest, the one that holds the fewest activations
is advised; of those that hold as many, the one that changes least. Host memory has to be worth
more: a plan that needs it is left out if one without is nearly as fast. On a testbed, systems that
lie within each other's error of prediction are about as fast, too.
"""

from __future__ import annotations

import math

import numpy as np

from pipesim.studies.comparison import Comparison, Row
from pipesim.text import counted, fixed, links, listed, milliseconds, percent

__all__ = ["NEGLIGIBLE", "WORTH_HOST_MEMORY", "advice", "advised"]

NEGLIGIBLE = 1e-3
"""Times that differ by at most this part are about the same: it is not worth a change."""

WORTH_HOST_MEMORY = 1e-2
"""A plan that needs host memory has to be faster than the others by more than this part."""

_ROUNDING = 1e-9
_MOST_DEVICES = 3
_AS_IS, _DELEGATED, _REPLANNED = range(3)


def advised(comparison: Comparison) -> Row | None:
    """Return the system to use; None where there is none that fits and can be run.

    Rows that nobody can run are left out: those with an ideal transport, and those that hold
    more activations than fit.

    Examples
    --------
    >>> from pipesim import Scenario, compare
    >>> [advised(compare(Scenario().with_delay(ms, links=[0]))).system.name for ms in (0, 10, 20)]
    ['zerobubble', 'pipemorph-cpu', 'pipemorph']
    """
    rows = _runnable(comparison)
    if not rows:
        return None
    best = _best(rows)
    within = [row for row in rows if not any(row.host_activations)]
    enough_ms = best.iteration_ms * (1 + WORTH_HOST_MEMORY)
    if any(best.host_activations) and any(
        row.iteration_ms <= enough_ms or _indistinct(row, best) for row in within
    ):
        return _best(within)
    return best


def advice(comparison: Comparison) -> str:
    """Say what to do, what it gains and costs in memory; then what this takes for granted.

    On a testbed also say how far off predictions of the advised system have been.

    Examples
    --------
    >>> from pipesim import Scenario, compare
    >>> print(advice(compare(Scenario().with_delay(20, links=[0]))))
    ... # doctest: +NORMALIZE_WHITESPACE
    Re-plan for link 0: PipeMorph takes 410 ms (the lower bound), 40.6 % less than 1F1B and
    6.8 % less than PipeMorph-CPU; it holds more activations than PipeMorph-CPU: 10 instead
    of 9.5 on device 0. Assumes CPU delegation and messages that take no time besides the
    delay (--message-cost).
    """
    row = advised(comparison)
    if row is None:
        return "Nothing to advise: no system here both fits and can be run."
    return _sentence(comparison, row) + _assumptions(comparison, row) + _record(comparison, row)


def _runnable(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if row.system.transport != "ideal" and row.fits]


def _best(rows: list[Row]) -> Row:
    fastest = min(rows, key=lambda row: row.iteration_ms)
    enough_ms = fastest.iteration_ms * (1 + NEGLIGIBLE)
    return min(
        (row for row in rows if row.iteration_ms <= enough_ms or _indistinct(row, fastest)),
        key=lambda row: (_memory(row), _changes(row), row.iteration_ms),
    )


def _memory(row: Row) -> tuple[float, float]:
    """What the fullest device holds, and what all of them hold."""
    return round(max(row.peak_activations), 9), round(sum(row.peak_activations), 9)


def _changes(row: Row) -> int:
    """How much a system changes of what runs today."""
    if row.replanned:
        return _REPLANNED
    return _DELEGATED if row.system.transport == "delegated" else _AS_IS


def _gain(row: Row, other: Row) -> float:
    """The part of the other's time that a system saves; below 0 if it takes longer."""
    if math.isclose(row.iteration_ms, other.iteration_ms, rel_tol=_ROUNDING):
        return 0.0
    gain = 1 - row.iteration_ms / other.iteration_ms if other.iteration_ms else -math.inf
    return min(max(gain, -NEGLIGIBLE), NEGLIGIBLE) if _indistinct(row, other) else gain


def _indistinct(row: Row, other: Row) -> bool:
    """Whether each of two times lies where measurements of the other may be."""
    if row.interval_ms is None or other.interval_ms is None:
        return False
    here, there = row.iteration_ms, other.iteration_ms
    return all(
        min(low, own) <= their <= max(high, own)
        for (low, high), own, their in (
            (row.interval_ms, here, there),
            (other.interval_ms, there, here),
        )
    )


# -- the sentence ------------------------------------------------------------------------


def _sentence(comparison: Comparison, row: Row) -> str:
    others = [other for other in _runnable(comparison) if other is not row]
    if not others:
        return _alone(row)
    slow, changes = comparison.scenario.slow_links, _changes(row)
    # What is faster, and not advised, needs host memory.
    hosted = [other for other in others if _gain(other, row) > NEGLIGIBLE]
    others = [other for other in others if _gain(other, row) <= NEGLIGIBLE]
    but, fitting = _but(row, hosted), " within the limits" if hosted else ""
    if not slow and changes == _AS_IS:
        return f"No link is slow: {_takes(row)}, and {_none_faster(row, others)}{fitting}{but}."
    if changes == _AS_IS:
        bound = ", the lower bound" if _is_bound(row) else ""
        time = f"{milliseconds(row.iteration_ms)}{bound}"
        return f"Keep {row.system.title} ({time}): {_in_vain(row, others)}{fitting}{but}."
    lesser = [
        min(
            (other for other in others if _changes(other) == change),
            # Among equally fast ones, take the one that differs only in the change.
            key=lambda other: (other.iteration_ms, other.system.planner != row.system.planner),
        )
        for change in range(changes)
        if any(_changes(other) == change for other in others)
    ]
    start = f"Re-plan for {links(slow)}" if slow else "No link is slow"
    if slow and changes == _DELEGATED:
        kept = lesser and lesser[-1].system.planner == row.system.planner
        plan = "keep the plan" if kept else f"plan with {row.system.planner}"
        start = f"Delegate communication to the CPU and {plan}"
    sentence = f"{start}: {_takes(row)}{_gains(row, [*lesser, *_rival(row, others)])}"
    replanned = [other for other in others if _changes(other) > changes]
    if replanned:
        sentence += f"; re-planning {_gaining(row, replanned)} on top{fitting}"
    return f"{sentence}{_difference(row, lesser)}{but}."


def _takes(row: Row) -> str:
    bound = " (the lower bound)" if _is_bound(row) else ""
    return f"{row.system.title} takes {milliseconds(row.iteration_ms)}{bound}"


def _is_bound(row: Row) -> bool:
    return row.iteration_ms <= row.lower_bound_ms * (1 + _ROUNDING)


def _alone(row: Row) -> str:
    if _is_bound(row):
        return f"{_takes(row)}."
    above = milliseconds(row.iteration_ms - row.lower_bound_ms)
    return f"{_takes(row)}, {above} above the lower bound."


def _none_faster(row: Row, others: list[Row]) -> str:
    if _hidden(row, others):
        return f"no other system here is faster {_BEYOND}"
    some = any(_gain(other, row) > 0 for other in others)
    more = f"more than {percent(NEGLIGIBLE)} " if some else ""
    return f"no other system here is {more}faster"


_BEYOND = "beyond the error of predictions"


def _hidden(row: Row, others: list[Row]) -> bool:
    """Whether some are predicted to be faster, by less than the error of predictions."""
    enough_ms = row.iteration_ms * (1 - NEGLIGIBLE)
    return any(other.iteration_ms < enough_ms and _indistinct(row, other) for other in others)


def _in_vain(row: Row, others: list[Row]) -> str:
    """What was tried and does not help."""
    names = {_DELEGATED: "delegation", _REPLANNED: "re-planning"}
    tried = [other for other in others if _changes(other) in names]
    if not tried:
        return _none_faster(row, others)
    vain = [name for change, name in names.items() if change in map(_changes, tried)]
    gains = _gaining(row, tried)
    return f"{listed(vain)} {gains.replace('gains', 'gain') if len(vain) > 1 else gains}"


def _gaining(row: Row, others: list[Row]) -> str:
    """That others gain nothing on a system, or next to nothing."""
    if _hidden(row, others):
        return f"gains nothing {_BEYOND}"
    some = any(_gain(other, row) > 0 for other in others)
    return f"gains nothing{' worth a change' if some else ''}"


def _but(row: Row, hosted: list[Row]) -> str:
    """What would be faster, but needs host memory."""
    if not hosted:
        return ""
    fastest = min(hosted, key=lambda other: other.iteration_ms)
    saved = percent(_gain(fastest, row))
    return f"; with host memory, {fastest.system.title} would take {saved} less"


def _rival(row: Row, others: list[Row]) -> list[Row]:
    """The fastest other system with as many changes, if it is slower."""
    same = [other for other in others if _changes(other) == _changes(row)]
    rivals = [other for other in same if _gain(row, other) > NEGLIGIBLE]
    return (
        [min(rivals, key=lambda other: other.iteration_ms)] if len(rivals) == len(same) > 0 else []
    )


def _gains(row: Row, lesser: list[Row]) -> str:
    """How much less time than others."""
    gains = [
        _less_than(other, _gain(row, other)) for other in lesser if not _indistinct(row, other)
    ]
    same = [other.system.title for other in lesser if _indistinct(row, other)]
    if same:
        gains.append(f"as long as {listed(same)} within the error of predictions")
    return f", {listed(gains)}" if gains else ""


def _less_than(other: Row, gain: float) -> str:
    if gain > NEGLIGIBLE:
        return f"{percent(gain)} less than {other.system.title}"
    return f"{'about ' if gain else ''}as long as {other.system.title}"


def _difference(row: Row, lesser: list[Row]) -> str:
    """What it holds more or less than the system with the next lesser change, and where."""
    if not lesser or len(lesser[-1].peak_activations) != len(row.peak_activations):
        return ""
    other = lesser[-1]
    new, old = np.array(row.peak_activations), np.array(other.peak_activations)
    fewer = _memory(row) < _memory(other)
    growth = np.round(old - new if fewer else new - old, 9)
    changed = [d for d in np.argsort(-growth, kind="stable").tolist() if growth[d] > 0]
    if not changed:
        return "; it holds no more activations" if _changes(row) == _REPLANNED else ""
    shown = changed if len(changed) <= _MOST_DEVICES else changed[:1]
    word = "fewer" if fewer else "more"
    named = [f"{new[d]:g} instead of {old[d]:g} on device {d}" for d in shown]
    if len(shown) < len(changed):
        named.append(f"{word} on {counted(len(changed) - len(shown), 'other device')}")
    return f"; it holds {word} activations than {other.system.title}: {listed(named)}{_where(row)}"


def _where(row: Row) -> str:
    """Whether the memory limits hold, and what goes to host memory to hold them."""
    devices = _hosted(row)
    if devices:
        where = f"device{'s' if len(devices) > 1 else ''} {listed(devices)}"
        most = max(row.host_activations)
        return f", of which up to {most:g} wait in host memory because of the limit of {where}"
    return ", within the limit" if np.isfinite(row.scenario.activation_limit).any() else ""


def _hosted(row: Row) -> list[int]:
    """The devices whose activations do not all fit."""
    return np.flatnonzero(row.host_activations).tolist()


# -- what it takes for granted -----------------------------------------------------------


def _assumptions(comparison: Comparison, row: Row) -> str:
    """What there has to be so that the advised system runs and takes that time."""
    assumed = [comparison.runtime.title] if comparison.runtime else []
    if row.system.transport == "delegated":
        assumed.append("CPU delegation")
    if devices := _hosted(row):
        most = counted(max(row.host_activations), "activation")
        several = len(devices) > 1
        assumed.append(f"host memory for {f'up to {most} per device' if several else most}")
    sizes, several = row.scenario.message_bytes, comparison.scenario.devices > 1
    costs = np.array([row.over.transfer_ms(sizes), row.over.copy_ms(sizes)])
    if comparison.cluster and several:
        assumed.append(f"messages that cost what they do on {comparison.cluster.name}")
    elif not costs.any() and several:
        besides = " besides the delay" if comparison.scenario.slow_links else ""
        assumed.append(f"messages that take no time{besides} (--message-cost)")
    return f" Assumes {listed(assumed)}." if assumed else ""


# -- how far off predictions have been ---------------------------------------------------


def _record(comparison: Comparison, row: Row) -> str:
    """How far off predictions of a system were on the testbed; empty if there is no testbed."""
    if comparison.cluster is None:
        return ""
    more_ms = comparison.cluster.testbed["replanned_ms"] if row.replanned else 0.0
    after = (
        f" Re-planned iterations on {comparison.cluster.name} ended {milliseconds(more_ms)} later, "
        "which nothing explains and which is not included."
        if more_ms
        else ""
    )
    what = f"redictions of {row.system.title} on {comparison.cluster.name}"
    errors = comparison.cluster.errors(row.system)
    spread = comparison.cluster.spread(row.system)
    if not errors:
        return f"{after} How far off p{what} are is not known."
    mean = percent(float(np.mean(np.abs(errors))))
    text = f"{after} P{what} were {mean} off on average over {counted(len(errors), 'run')}"
    if spread is not None:
        text += f", and 90 % of those of all systems there within ±{fixed(100 * spread, 1)} %"
    return f"{text}; each run was predicted from a fit without its setting."
