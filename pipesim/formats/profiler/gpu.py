"""When the GPU ran an operator: its kernels tell, or the profiler's own annotations of the GPU.

A kernel belongs to the annotation in which the host launched it; where a trace has no launches, to
that in which it ran, if no kernel runs over the end of one. Kernels of communication are left
out: they last until the other rank comes. Those among the ranks that share a stage's work, as in
tensor parallelism, are part of that work, if the trace says whose they are. Annotations of the
GPU, where a trace has no kernels, go from the first kernel of a stream to the last, whatever the
kernels are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pipesim.formats.profiler.events import Event, Kernel
from pipesim.formats.profiler.span import Span

__all__ = ["Kernels"]


class Kernels:
    """Looks up the kernels that one rank launched."""

    def __init__(self, kernels: Sequence[Kernel], launches: bool) -> None:
        self._kernels = kernels
        self._launches = launches
        self._launched = [kernel.launched_ms for kernel in kernels]

    def spans(self, annotation: Event, parts: int, cut_ms: float | None) -> tuple[Span, ...]:
        """Return the span of each operator of an annotation of the host; none: it launched nothing.

        Parameters
        ----------
        annotation : Event
            On the host.
        parts : int
            How many operators it has.
        cut_ms : float or None
            When the host began the second of them. None: unknown; both have the pair's span.
        """
        if parts == 1 or cut_ms is None:
            whole = self._span(annotation.start_ms, annotation.end_ms)
            return (
                ()
                if whole is None
                else (whole._replace(pair="whole" if parts > 1 else ""),) * parts
            )
        first = self._span(annotation.start_ms, cut_ms)
        second = self._span(cut_ms, annotation.end_ms)
        if first is None or second is None:
            return ()
        return first._replace(pair="cut"), second._replace(pair="cut")

    def _span(self, start_ms: float, end_ms: float) -> Span | None:
        first, after = (bisect_left(self._launched, at) for at in (start_ms, end_ms))
        mine = self._kernels[first:after]
        if not mine:
            return None
        span = Span(min(one.start_ms for one in mine), max(one.end_ms for one in mine))
        return span if self._launches or span.end_ms <= end_ms else None
