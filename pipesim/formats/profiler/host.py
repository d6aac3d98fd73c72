"""What an annotation on the host holds besides its operator: the wait for the message.

torch waits for the message inside the annotation of the operator that needs it, and then computes.
Two things in a trace tell when the wait was over:

- the receive (``gloo:recv``) ends with the wait for it, before the first operator inside;
- the first operator inside the annotation.

An overlapped pair runs its forward, waits for the message of its backward, and runs that: the cut
is at the wait or, where there is none, at the autograd engine's first operator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from pipesim.formats.profiler.events import Event, Events
from pipesim.formats.profiler.span import Span

__all__ = ["Host"]


class Host:
    """Looks up what one rank's host did."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._starts = {lane: [op.start_ms for op in ops] for lane, ops in events.operators.items()}

    def spans(self, annotation: Event, parts: int) -> tuple[Span, ...]:
        """Return the span of each operator of an annotation, of which there are one or two.

        Where a pair cannot be cut, both have the span of the pair.
        """
        operators = self._inside(annotation)
        if parts == 1:
            return (self._span(annotation.start_ms, annotation.end_ms, operators),)
        cut = self.cut(annotation)
        if cut is None:
            return (Span(annotation.start_ms, annotation.end_ms, pair="whole"),) * parts
        forward = [op for op in operators if op.start_ms < cut]
        end_ms = max((op.end_ms for op in forward), default=cut)
        return (
            self._span(annotation.start_ms, end_ms, forward)._replace(pair="cut"),
            self._span(end_ms, annotation.end_ms, operators[len(forward) :])._replace(pair="cut"),
        )

    def cut(self, pair: Event) -> float | None:
        """Return when the backward of an overlapped pair began; None: the trace does not tell."""
        backward_ms = self._events.backward_ms
        first = bisect_left(backward_ms, pair.start_ms)
        if first == len(backward_ms) or backward_ms[first] > pair.end_ms:
            return None
        cut = backward_ms[first]
        ran = [op for op in self._inside(pair) if op.start_ms < cut]
        # A wait between operators is that of the backward, which may do something else first.
        gaps = [(one.end_ms, other.start_ms) for one, other in pairwise(ran)]
        waits = self._received(pair.start_ms, cut)
        return next((a for a, b in gaps if any(a <= at <= b for at in waits)), cut)

    def _span(self, start_ms: float, end_ms: float, operators: Sequence[Event]) -> Span:
        first_ms = operators[0].start_ms if operators else None
        received = self._received(start_ms, end_ms if first_ms is None else first_ms)
        return Span(start_ms, end_ms, max(received, default=None), first_ms)

    def _inside(self, annotation: Event) -> Sequence[Event]:
        starts = self._starts.get(annotation.lane, [])
        first = bisect_left(starts, annotation.start_ms)
        after = bisect_left(starts, annotation.end_ms)
        return self._events.operators.get(annotation.lane, ())[first:after]

    def _received(self, start_ms: float, end_ms: float) -> Sequence[float]:
        """When waits ended between two times."""
        received = self._events.received_ms
        return received[bisect_left(received, start_ms) : bisect_left(received, end_ms)]
