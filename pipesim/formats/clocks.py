"""Measured spans of several devices, put on one time axis if their clocks allow it.

Clocks contradict each other if two operators run at once on one device, or one starts
before the operator that it needs has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.timeline import OpSpan, Timeline

__all__ = ["CLOCK_ERROR_MS", "UnusableError", "contradiction", "measured_timeline"]

CLOCK_ERROR_MS = 1.0
"""Clocks of ranks agree to about 0.1 ms where they are kept in step; more is a jump."""


class UnusableError(Exception):
    """Why an iteration cannot be used."""


def measured_timeline(scenario: Scenario, spans: Sequence[Sequence[OpSpan]]) -> Timeline:
    """Return the timeline of measured spans, the first of which starts at 0 ms.

    Parameters
    ----------
    scenario : Scenario
        Of the timeline.
    spans : sequence of sequence of OpSpan, shape [D][…]
        Every operator once, in any order, on one clock.

    Raises
    ------
    UnusableError
        The clocks contradict each other by over 1 ms.

    Examples
    --------
    >>> from pipesim.schedule import Op
    >>> spans = [[OpSpan(Op("F", 0, 0), 5.0, 9.0), OpSpan(Op("BW", 0, 0), 9.0, 15.0)]]
    >>> measured_timeline(Scenario(stages=1, microbatches=1), spans).spans[Op("F", 0, 0)].end_ms
    4.0
    """
    origin = min(span.start_ms for device in spans for span in device)
    timeline = Timeline(
        scenario, tuple(_in_turn(device, origin, number) for number, device in enumerate(spans))
    )
    if timeline.iteration_ms == 0:
        raise UnusableError("its operators take no time")
    orders = [[span.op for span in device] for device in timeline.compute]
    try:
        schedule = Schedule(orders, scenario.placement, scenario.microbatches)
    except ScheduleError as error:
        raise UnusableError(f"the clocks contradict each other: {error}") from None
    reason = contradiction(schedule, timeline.spans, lambda span: CLOCK_ERROR_MS)
    if reason:
        raise UnusableError(f"the clocks contradict each other: {reason}")
    return timeline


def contradiction(
    schedule: Schedule, spans: Mapping[Op, OpSpan], allowed_ms: Callable[[OpSpan], float]
) -> str:
    """Say which operator starts too long before one that it needs has ended, if any does.

    Parameters
    ----------
    schedule : Schedule
        Of the operators.
    spans : mapping of Op to OpSpan
        When they ran, on one clock.
    allowed_ms : callable
        How much too early an operator may start.
    """
    for op, span in spans.items():
        for need in schedule.needs(op):
            early_ms = spans[need].end_ms - span.start_ms
            if early_ms > allowed_ms(span):
                return f"{op} starts {early_ms:.1f} ms before {need} ends"
    return ""


def _in_turn(spans: Sequence[OpSpan], origin: float, device: int) -> tuple[OpSpan, ...]:
    """Sort the spans of one device; start and end are rounded apart, so they may touch."""
    result: list[OpSpan] = []
    for op, start, end in sorted(spans, key=lambda span: (span.start_ms, span.end_ms)):
        begin, done = start - origin, end - origin
        if result:
            before = result[-1]
            if before.end_ms - begin > CLOCK_ERROR_MS:
                raise UnusableError(
                    f"the clock of device {device} jumps: {before.op} and {op} run at once"
                )
            begin = max(begin, before.end_ms)
        result.append(OpSpan(op, begin, max(begin, done)))
    return tuple(result)
