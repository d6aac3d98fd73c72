"""The operators' own time in what was annotated: without the wait for their message.

On the host, an annotation holds the wait for the message that its operator needs from another
rank. When that wait was over is told, in this order, by

1. the receive inside the annotation;
2. the first operator inside it;
3. the clocks that the ranks share, if nothing contradicts them: no message comes before the
   operator that makes it has ended. What the message itself takes is then in the operator's time.

If nothing tells it, the time of the annotation stays as it is, and is not called work.

torch sends the messages of an overlapped pair when both of its operators have ended. One that could
not be cut is shared between them, see :mod:`pipesim.formats.profiler.pairs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipesim.formats.clocks import CLOCK_ERROR_MS
from pipesim.formats.profiler.pairs import Alone, alone_ms, mates, shared
from pipesim.formats.profiler.pipeline import Operators, Pipeline
from pipesim.formats.profiler.span import Span
from pipesim.schedule import Op

__all__ = ["Work", "own_work"]

_NO_WAIT_MS = 1e-4
"""Times are kept to this."""


@dataclass
class Work:
    """The operators of each iteration, and how their times were found.

    Parameters
    ----------
    iterations : mapping of int to Operators
        By profiler step.
    told : Counter of str
        How many operators waited for a message, by what tells how long: ``"receive"``,
        ``"operator"``, ``"clock"``, or ``"unknown"``.
    contradictions : mapping of int to str
        Why the clocks do not tell it, by step.
    pairs : Counter of str
        How many overlapped pairs there are: ``"cut"``, ``"shared"`` by what the two take alone,
        or ``"halved"``.
    """

    iterations: dict[int, Operators] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    contradictions: dict[int, str] = field(default_factory=dict)
    pairs: Counter[str] = field(default_factory=Counter)


def own_work(pipeline: Pipeline, steps: Sequence[int]) -> Work:
    """Find the operators' own times in some complete iterations."""
    waits = any(
        # The GPU's annotation of Forward 0 holds the kernel that receives.
        trace.clock == "host" or (trace.clock == "gpu" and not trace.names_stages)
        for trace in pipeline.ranks.values()
    )
    work = Work()
    iterations = {step: _Iteration(pipeline, step, waits) for step in steps}
    alone = alone_ms(
        item for one in iterations.values() for item in one.own.items() if item[1].pair != "whole"
    )
    for step, one in iterations.items():
        work.iterations[step] = one.shared(alone)
        work.told += one.told
        work.pairs += one.pairs
        if one.told["unknown"]:
            work.contradictions[step] = one.contradiction
    return work


class _Iteration:
    """The operators of one iteration, and their own times as far as pairs are cut."""

    def __init__(self, pipeline: Pipeline, step: int, waits: bool) -> None:
        self._devices = pipeline.iterations[step]
        self._placement = pipeline.placement
        self._spans = {op: span for ops in self._devices for op, span in ops.items()}
        self.contradiction = self._contradicted()
        self.told: Counter[str] = Counter()
        self.pairs = Counter(
            "cut" for op, span in self._spans.items() if span.pair == "cut" and op.kind == "F"
        )
        self.own = {op: self._without_wait(op) for op in self._spans} if waits else self._spans

    def shared(self, alone: Alone) -> Operators:
        """Return the operators by device, those of pairs shared by what they take alone."""
        own = dict(self.own)
        for ops in self._devices:
            for first, second in mates(ops).items():
                sender = None if self.contradiction else self._sender(second)
                arrived_ms = None if sender is None else self._spans[sender].end_ms
                pair = first, second
                (own[first], own[second]), how = shared(pair, own[first], arrived_ms, alone)
                self.pairs[how] += 1
        return [{op: own[op] for op in ops} for ops in self._devices]

    def _without_wait(self, op: Op) -> Span:
        span, sender = self._spans[op], self._sender(op)
        if sender is None:
            return span
        if span.received_ms is not None:
            how, start_ms = "receive", span.received_ms
        elif span.operator_ms is not None:
            how, start_ms = "operator", span.operator_ms
        elif self.contradiction:
            how, start_ms = "unknown", span.start_ms
        else:
            how, start_ms = "clock", min(self._spans[sender].end_ms, span.end_ms)
            if start_ms < span.start_ms + _NO_WAIT_MS:
                return span
        self.told[how] += 1
        return span._replace(start_ms=start_ms)

    def _sender(self, op: Op) -> Op | None:
        """Return the operator on another device whose message one needs, if there is one."""
        if op.kind == "W":
            return None
        stage = op.stage - 1 if op.kind == "F" else op.stage + 1
        placement = self._placement
        if not 0 <= stage < len(placement) or placement[stage] == placement[op.stage]:
            return None
        full = Op("BW", stage, op.microbatch)
        if op.kind == "F":
            return Op("F", stage, op.microbatch)
        return full if full in self._spans else Op("B", stage, op.microbatch)

    def _contradicted(self) -> str:
        """Say which operator ends before the one whose message it needs, if any does."""
        for op, span in self._spans.items():
            if sender := self._sender(op):
                early_ms = self._spans[sender].end_ms - span.end_ms
                if early_ms > CLOCK_ERROR_MS:
                    return f"{op} ends {early_ms:.1f} ms before {sender}, whose message it needs"
        return ""
