"""What an annotation on the host holds besides its operator: the wait for the message.

torch waits for the message inside the annotation of the operator that needs it, and then computes.
Two things in a trace tell when the wait was over:

- the receive (``gloo:recv``) ends with the wait for it, if nothing else ran at that moment;
- the first operator inside the annotation.

An overlapped pair runs its forward, waits for the message of its backward, and runs that: the cut
is at the wait or, where there is none, at the autograd engine's first operator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

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
            return (self._span(annotation.start_ms, annotation.end_ms, operators, annotation),)
        cut = self.cut(annotation)
        if cut is None:
            return (Span(annotation.start_ms, annotation.end_ms, pair="whole"),) * parts
        forward = [op for op in operators if op.start_ms < cut]
        end_ms = max((op.end_ms for op in forward), default=cut)
        return (
            self._span(annotation.start_ms, end_ms, forward, annotation)._replace(pair="cut"),
            self._span(end_ms, annotation.end_ms, operators[len(forward) :], annotation)._replace(
                pair="cut"
            ),
        )

    def cut(self, pair: Event) -> float | None:
        """Return when the backward of an overlapped pair began; None: the trace does not tell."""
        backward_ms = self._events.backward_ms
        first = bisect_left(backward_ms, pair.start_ms)
        if first == len(backward_ms) or backward_ms[first] > pair.end_ms:
            return None
        cut = backward_ms[first]
        operators = self._inside(pair)
        ran = [op.end_ms for op in operators if op.start_ms < cut]
        waits = [at for at in self._received(pair.start_ms, cut, pair) if ran and at >= ran[0]]
        return min(waits, default=cut)

    def _span(
        self, start_ms: float, end_ms: float, operators: Sequence[Event], annotation: Event
    ) -> Span:
        first_ms = operators[0].start_ms if operators else None
        received = self._received(start_ms, end_ms if first_ms is None else first_ms, annotation)
        return Span(start_ms, end_ms, max(received, default=None), first_ms)

    def _inside(self, annotation: Event) -> Sequence[Event]:
        starts = self._starts.get(annotation.lane, [])
        first = bisect_left(starts, annotation.start_ms)
        after = bisect_left(starts, annotation.end_ms)
        return self._events.operators.get(annotation.lane, ())[first:after]

    def _received(self, start_ms: float, end_ms: float, annotation: Event) -> list[float]:
        """When waits ended between two times: the host ran no operator then."""
        received = self._events.received_ms
        first, after = bisect_left(received, start_ms), bisect_left(received, end_ms)
        starts = self._starts.get(annotation.lane, [])
        operators = self._events.operators.get(annotation.lane, ())

        def idle(at: float) -> bool:
            before = bisect_left(starts, at) - 1
            return before < 0 or operators[before].end_ms <= at

        return [at for at in received[first:after] if idle(at)]
