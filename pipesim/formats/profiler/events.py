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
    RECEIVE,
    SENDS_ON,
    actions,
    other,
    step_number,
)

__all__ = ["MESSAGES", "Event", "Events", "Kernel", "collected"]

MESSAGES = "of messages and sharding"
"""Why an annotation is left out that is none of an operator."""

_USUAL = 1e17
"""Microseconds that need no closer look."""
_CPU, _GPU = "user_annotation", "gpu_user_annotation"
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
        In order of launch; without those of communication.
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
    of_category: dict[str, list[Event]] = defaultdict(list)
    dropped: dict[str, list[str]] = defaultdict(list)
    correlations: dict[str, list[object]] = defaultdict(list)
    sends_on: set[int] = set()
    for index, category, name, event in document.complete_events():
        place = document.place, index
        if category in (_CPU, _GPU):
            if match := SENDS_ON.fullmatch(name):
                sends_on.add(int(match[1]))
            if other(name):
                dropped[MESSAGES].append(_place(*place).path)
                continue
            if name.startswith("PP:") and not actions(name):
                raise _place(*place).error(
                    f"{name[:40]!r} is not an annotation such as PP:0F0, PP:1I2 or PP:1B2"
                )
        elif category in ("kernel", "cuda_runtime", "cuda_driver"):
            args = event.get("args")
            found = args.get("correlation") if isinstance(args, dict) else None
            correlations[category].append(found if isinstance(found, int) else None)
        elif category != "cpu_op":
            continue
        of_category[category].append(_event(name, event, *place))
    annotations = sorted(of_category[_CPU])
    operators = [op for op in of_category["cpu_op"] if not COMMUNICATION.fullmatch(op.name)]
    launches = {
        correlation: launch.start_ms
        for category in ("cuda_runtime", "cuda_driver")
        for correlation, launch in zip(correlations[category], of_category[category], strict=True)
    }
    return Events(
        host=[event for event in annotations if actions(event.name)],
        gpu=sorted(event for event in of_category[_GPU] if actions(event.name)),
        steps=[event for event in annotations if step_number(event.name) is not None],
        operators=_outermost(operators),
        backward_ms=sorted(
            op.start_ms for op in operators if op.name.startswith(BACKWARD_OPERATOR)
        ),
        received_ms=sorted(event.end_ms for event in annotations if RECEIVE.fullmatch(event.name)),
        kernels=sorted(
            Kernel(launches[correlation], kernel.start_ms, kernel.end_ms)
            for correlation, kernel in zip(
                correlations["kernel"], of_category["kernel"], strict=True
            )
            if correlation is not None
            and correlation in launches
            and not COMMUNICATION_KERNEL.fullmatch(kernel.name)
        ),
        communicates=len(operators) < len(of_category["cpu_op"])
        or any(COMMUNICATION.fullmatch(event.name) for event in annotations),
        sends_on=frozenset(sends_on),
        dropped=dropped,
    )


def _place(file: Place, index: int) -> Place:
    return file.at("traceEvents").at(index)


def _event(name: str, event: Mapping[str, Any], file: Place, index: int) -> Event:
    start, duration = event.get("ts"), event.get("dur")
    if type(start) is type(duration) is float and 0 <= start <= _USUAL and 0 <= duration <= _USUAL:
        start_ms, duration_ms = start / 1e3, duration / 1e3  # there are very many
    else:
        place = _place(file, index)
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
