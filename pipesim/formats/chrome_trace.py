"""Timelines as Chrome Trace Event JSON, for chrome://tracing and Perfetto.

A process is a device of a system. Its threads are its compute stream and as many send and
receive lanes as messages overlap, because complete events of one thread must not overlap
in part. An arrow leads from a message's first step to the operator that needs it. Times
are in microseconds, to the nanosecond, which is as fine as these viewers keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipesim.files import StrPath, write_text
from pipesim.program import Message
from pipesim.timeline import CommSpan, OpSpan, Timeline

__all__ = ["chrome_trace", "save_chrome_trace"]

Event = dict[str, object]


def chrome_trace(timelines: Mapping[str, Timeline]) -> dict[str, object]:
    """Return the trace of some timelines, in JSON types.

    Parameters
    ----------
    timelines : mapping of str to Timeline
        Each with the name of its system.

    Examples
    --------
    >>> from pipesim.scenario import Scenario
    >>> from pipesim.schedule import Op
    >>> span = OpSpan(Op("F", 0, 0), 1.5, 11.5)
    >>> trace = chrome_trace({"1f1b": Timeline(Scenario(stages=1), [[span]])})
    >>> event = trace["traceEvents"][-1]
    >>> event["name"], event["ph"], event["ts"], event["dur"]
    ('0F0', 'X', 1500, 10000)
    """
    processes = [
        (name, timeline, device)
        for name, timeline in timelines.items()
        for device in range(len(timeline.compute))
    ]
    events: list[Event] = []
    pids: dict[tuple[str, int], int] = {}
    slices: dict[tuple[str, OpSpan | CommSpan], Event] = {}
    for pid, (name, timeline, device) in enumerate(processes):
        pids[name, device] = pid
        title = f"{name} device {device}".strip()
        events += _names(pid, "process", title, pid)
        for tid, (lane, spans) in enumerate(_threads(timeline, device)):
            events += _names(pid, "thread", lane, tid, tid)
            for span in spans:
                event = slices[name, span] = _slice(span) | {"pid": pid, "tid": tid}
                events.append(event)
    arrows = (
        (slices[name, first], slices[name, timeline.spans[message.consumer]])
        for name, timeline in timelines.items()
        for message, first in _first_steps(timeline).items()
    )
    for number, (begin, end) in enumerate(arrows):
        events += _arrow(number, begin, end)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_chrome_trace(timelines: Mapping[str, Timeline], path: StrPath) -> None:
    """Write :func:`chrome_trace` to a file, one event a line.

    Raises
    ------
    FormatError
        The file cannot be written.
    """
    trace = chrome_trace(timelines)
    events = trace.pop("traceEvents")
    assert isinstance(events, list)
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in events)
    rest = json.dumps(trace)[1:]
    write_text(path, f'{{"traceEvents": [\n{lines}\n], {rest}\n')


# -- threads -----------------------------------------------------------------------------


class _Times(NamedTuple):
    """Start and end in whole nanoseconds, in which lanes are exactly free or not."""

    start: int
    end: int


def _nanoseconds(span: OpSpan | CommSpan) -> _Times:
    return _Times(round(span.start_ms * 1e6), round(span.end_ms * 1e6))


def _threads(timeline: Timeline, device: int) -> Iterator[tuple[str, Sequence[OpSpan | CommSpan]]]:
    """Yield the name and the spans of each thread of a device."""
    placement = timeline.scenario.placement
    here = [span for span in timeline.comm if span.device == device]
    sends = [s for s in here if placement[s.message.producer.stage] == device]
    receives = [s for s in here if placement[s.message.producer.stage] != device]
    for name, spans in (
        ("compute", timeline.compute[device]),
        ("send", sends),
        ("receive", receives),
    ):
        for number, lane in enumerate(_lanes(spans), start=1):
            yield (name if number == 1 else f"{name} {number}"), lane


def _lanes(spans: Sequence[OpSpan | CommSpan]) -> list[list[OpSpan | CommSpan]]:
    """Spread spans over as few lanes as it takes that none of a lane overlap."""
    lanes: list[list[OpSpan | CommSpan]] = []
    free: list[int] = []
    for span in sorted(spans, key=_nanoseconds):
        start, end = _nanoseconds(span)
        lane = next((lane for lane, at in enumerate(free) if at <= start), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            free.append(end)
        lanes[lane].append(span)
        free[lane] = end
    return lanes


def _first_steps(timeline: Timeline) -> dict[Message, CommSpan]:
    """Return where each message's way begins, on its sender."""
    first: dict[Message, CommSpan] = {}
    for span in sorted(timeline.comm, key=lambda span: span.start_ms):
        if timeline.scenario.placement[span.message.producer.stage] == span.device:
            first.setdefault(span.message, span)
    return first


# -- events ------------------------------------------------------------------------------


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000 if nanoseconds % 1000 else nanoseconds // 1000


def _slice(span: OpSpan | CommSpan) -> Event:
    start, end = _nanoseconds(span)
    if isinstance(span, OpSpan):
        name, category = str(span.op), "compute"
        details: Event = {
            "stage": span.op.stage,
            "op": span.op.kind,
            "microbatch": span.op.microbatch,
        }
    else:
        name, category = f"{span.path} {span.message}", "communication"
        details = {
            "path": span.path,
            "link": span.message.link,
            "microbatch": span.message.producer.microbatch,
        }
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": _microseconds(start),
        "dur": _microseconds(end - start),
        "args": details,
    }


def _names(pid: int, kind: str, name: str, index: int, tid: int = 0) -> Iterator[Event]:
    for what, value in (("name", {"name": name}), ("sort_index", {"sort_index": index})):
        yield {"name": f"{kind}_{what}", "ph": "M", "pid": pid, "tid": tid, "args": value}


def _arrow(number: int, begin: Event, end: Event) -> Iterator[Event]:
    shared = {"name": "message", "cat": "message", "id": number}
    for phase, event in (("s", begin), ("f", end)):
        place = {key: event[key] for key in ("pid", "tid", "ts")}
        yield shared | {"ph": phase} | place | ({"bp": "e"} if phase == "f" else {})
