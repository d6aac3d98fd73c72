"""The events of a trace that tell when operators ran, checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipesim.documents.reading import Place
from pipesim.formats.profiler.document import Document, time_ms
from pipesim.formats.profiler.names import (
    BACKWARD_OPERATOR,
    COMMUNICATION,
    COMMUNICATION_KERNEL,
    EXCHANGE,
    RECEIVE,
    SENDS_ON,
    actions,
    other,
    shares_stage,
    step_number,
)

__all__ = ["MESSAGES", "Event", "Events", "Kernel", "collected"]

MESSAGES = "of messages and sharding"
"""Why an annotation is left out that is none of an operator."""

_USUAL = 1e17
"""Microseconds that need no closer look."""
_KINDS = {
    "user_annotation": "host",
    "gpu_user_annotation": "gpu",
    "cpu_op": "operator",
    "kernel": "kernel",
    "gpu_memcpy": "kernel",
    "gpu_memset": "kernel",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
"""What a category holds, in small letters: some releases write gpu_user_Annotation."""

_Lane = tuple[str, str]


class Event(NamedTuple):
    """Times in milliseconds, and the process and the thread or stream."""

    start_ms: float
    end_ms: float
    name: str
    lane: _Lane


class Kernel(NamedTuple):
    """When a kernel was launched, on the host, and when it ran."""

    launched_ms: float
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Events:
    """What was found, each in time order.

    Parameters
    ----------
    host, gpu : sequence of Event
        Annotations of operators; those of the GPU go from the first kernel to the last, one for
        each stream.
    steps : sequence of Event
        Profiler steps.
    operators : mapping of lane to sequence of Event
        What each thread of the host ran: outermost operators, without communication.
    backward_ms : sequence of float
        When the autograd engine started an operator, on any thread.
    received_ms : sequence of float
        When the host had waited for a message.
    kernels : sequence of Kernel
        In order of launch; without those of communication between stages and copies.
    launches : bool
        Whether the trace tells when kernels were launched. If not, they are taken to be when
        they started.
    communicates : bool
        Whether there are sends or receives.
    sends_on : frozenset of int
        Stages that are not the pipeline's last: they send forwards, or receive backwards.
    dropped : mapping of str to list of str
        The places of annotations that are left out, by reason.
    """

    host: Sequence[Event]
    gpu: Sequence[Event]
    steps: Sequence[Event]
    operators: Mapping[_Lane, Sequence[Event]]
    backward_ms: Sequence[float]
    received_ms: Sequence[float]
    kernels: Sequence[Kernel]
    launches: bool
    communicates: bool
    sends_on: frozenset[int]
    dropped: dict[str, list[str]]


def collected(document: Document) -> Events:
    """Collect the events of a trace.

    Raises
    ------
    FormatError
        An annotation starts with ``PP:`` and is none of torch's, or a time is no number; with
        the place.
    """
    found: dict[str, list[Event]] = defaultdict(list)
    dropped: dict[str, list[str]] = defaultdict(list)
    launched_ms: dict[int | None, float] = {}
    kernels: list[tuple[int | None, Event]] = []
    sends_on: set[int] = set()
    for index, category, name, raw in document.complete_events():
        kind = _KINDS.get(category)
        if kind is None:
            continue
        if kind in ("host", "gpu") and other(name):
            dropped[MESSAGES].append(_place(document, index).path)
            if match := SENDS_ON.fullmatch(name):
                sends_on.add(int(match[1]))
            continue
        event = _event(name, raw, document, index)
        if kind == "launch":
            if (correlation := _correlation(raw)) is not None:
                launched_ms[correlation] = event.start_ms
        elif kind == "kernel":
            if COMMUNICATION_KERNEL.fullmatch(name) and not shares_stage(_group(raw)):
                found["other"].append(event)
            else:
                kernels.append((_correlation(raw), event))
        elif kind == "operator" and COMMUNICATION.fullmatch(name):
            found["other"].append(event)
        elif actions(name) or kind == "operator":
            found[kind].append(event)
        elif name.startswith("PP:"):
            raise _place(document, index).error(
                f"{name[:40]!r} is not an annotation such as PP:0F0, PP:1I2 or PP:1B2"
            )
        elif kind == "host":
            found["step" if step_number(name) is not None else "other"].append(event)
    return Events(
        host=sorted(found["host"]),
        gpu=sorted(found["gpu"]),
        steps=sorted(found["step"]),
        operators=_outermost(found["operator"]),
        backward_ms=sorted(
            op.start_ms for op in found["operator"] if op.name.startswith(BACKWARD_OPERATOR)
        ),
        received_ms=sorted(
            event.end_ms for event in found["other"] if RECEIVE.fullmatch(event.name)
        ),
        kernels=sorted(
            Kernel(launched_ms.get(number, one.start_ms), one.start_ms, one.end_ms)
            for number, one in kernels
            if number in launched_ms or not launched_ms
        ),
        launches=bool(launched_ms),
        communicates=any(EXCHANGE.fullmatch(one.name) for one in found["other"]),
        sends_on=frozenset(sends_on),
        dropped=dropped,
    )


def _place(document: Document, index: int) -> Place:
    return document.place.at("traceEvents").at(index)


def _correlation(event: Mapping[str, Any]) -> int | None:
    """Return the number that a kernel shares with its launch, if it has one."""
    args = event.get("args")
    found = args.get("correlation") if isinstance(args, dict) else None
    return found if isinstance(found, int) else None


def _group(event: Mapping[str, Any]) -> str:
    """Return the description of the process group that a kernel communicates in, if it is told."""
    args = event.get("args")
    return str(args.get("Process Group Description")) if isinstance(args, dict) else ""


def _event(name: str, event: Mapping[str, Any], document: Document, index: int) -> Event:
    start, duration = event.get("ts"), event.get("dur")
    if type(start) is type(duration) is float and 0 <= start <= _USUAL and 0 <= duration <= _USUAL:
        start_ms, duration_ms = start / 1e3, duration / 1e3  # there are very many
    else:
        place = _place(document, index)
        start_ms = time_ms(start, 1e3, place.at("ts"))
        duration_ms = time_ms(duration, 1e3, place.at("dur"))
        if duration_ms < 0:
            raise place.at("dur").error(f"must not be negative, not {duration:g}")
    lane = str(event.get("pid")), str(event.get("tid"))
    return Event(start_ms, start_ms + duration_ms, name, lane)


def _outermost(operators: Iterable[Event]) -> dict[_Lane, list[Event]]:
    """Return the operators of each thread that are inside no other, in time order."""
    lanes: dict[_Lane, list[Event]] = defaultdict(list)
    for event in sorted(operators, key=lambda event: (event.start_ms, -event.end_ms)):
        lane = lanes[event.lane]
        if not lane or event.start_ms >= lane[-1].end_ms:
            lane.append(event)
    return lanes
