"""How long messages of a replay took beyond injected delays, and a prediction with that.

In the engine a message takes what the transport and the link say, mostly nothing. Between
processes it takes a fraction of a millisecond, more on a busy machine, and an iteration has long
chains of messages.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace

from pipesim.engine import simulate
from pipesim.program import Message
from pipesim.replay.run.run import Run
from pipesim.scenario import DOWN, UP
from pipesim.timeline import CommSpan, PathKind, Timeline
from pipesim.transport import Delegated, Exchange, Nccl

__all__ = ["base_ms", "predicted_with"]


def base_ms(run: Run, measured: Timeline) -> float:
    """Return how long a message takes beyond its stated time.

    Of a group it is the time from when both ends of all its messages may run to its end, on
    average, as times in a chain add up. Of delegation it is the time from the sender's copy to
    the receiver's over links without delay, in the median, as some wait for their turn; an
    injected delay includes what delegates take. 0 if there was no such message, as with
    ``Delegated(only_slow=True)``.
    """
    posted = isinstance(run.transport, Delegated)
    times = _delegated(run, measured) if posted else _groups(run, measured)
    typical = statistics.median if posted else statistics.fmean
    return max(0.0, typical(times)) if times else 0.0


def predicted_with(run: Run, timeline: Timeline, base: float) -> Timeline:
    """Return the engine's timeline with longer messages; if delegated, only on healthy links.

    Parameters
    ----------
    run : Run
        What was run.
    timeline : Timeline
        The prediction without, whose scenario is used.
    base : float
        How much longer, in milliseconds.
    """
    scenario, transport = timeline.scenario, run.transport
    if isinstance(transport, Nccl | Exchange):
        return simulate(
            scenario, run.schedule, replace(transport, base_ms=transport.base_ms + base)
        )
    healthy = [
        link
        for link in range(scenario.stages - 1)
        if scenario.crosses(link) and not scenario.delay_ms[link, [DOWN, UP]].any()
    ]
    return simulate(scenario.with_delay(base, healthy), run.schedule, transport)


def _groups(run: Run, measured: Timeline) -> list[float]:
    groups: dict[tuple[int, float], list[CommSpan]] = defaultdict(list)
    busy: dict[tuple[int, Message], float] = {}
    for span in measured.comm:
        if span.path == "kernel":
            groups[span.device, span.start_ms].append(span)
        elif span.path == "busy":  # directly before its group
            busy[span.device, span.message] = span.end_ms
    starts: dict[Message, float] = defaultdict(float)
    for (device, start), group in groups.items():
        before = [busy[device, span.message] for span in group if (device, span.message) in busy]
        ready = max(before, default=start)
        for span in group:
            starts[span.message] = max(starts[span.message], ready)
    return [
        group[0].end_ms
        - max(starts[span.message] for span in group)
        - max(run.transfer_ms(span.message) for span in group)
        for group in groups.values()
    ]


def _delegated(run: Run, measured: Timeline) -> list[float]:
    steps: dict[Message, dict[PathKind, CommSpan]] = defaultdict(dict)
    for span in measured.comm:
        steps[span.message][span.path] = span
    return [
        way["copy-in"].end_ms
        - way["copy-out"].start_ms
        - 2 * run.copy_ms(message)
        - run.delegate_ms(message)
        for message, way in steps.items()
        if {"copy-out", "copy-in"} <= way.keys()
        and not run.scenario.delay_ms[message.link, message.direction]
    ]
