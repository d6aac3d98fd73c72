"""The operators' own time in what was annotated: without the wait for their message.

On the host, an annotation holds the wait for the message that its operator needs from another
rank. When that wait was over is told, in this order, by

1. the receive inside the annotation;
2. the first operator inside it;
3. the clocks that the ranks share, if nothing contradicts them: no message comes before the
   operator that makes it has ended. What the message itself takes is then in the operator's time.

If nothing tells it, the time of the annotation stays as it is, and is not called work.

An overlapped pair that could not be cut is shared in the proportion that its two operators have
when they run alone on the same stages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipesim.formats.clocks import CLOCK_ERROR_MS
from pipesim.formats.profiler.pipeline import Operators, Pipeline
from pipesim.formats.profiler.span import Span
from pipesim.scenario import Kind
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
        How many overlapped pairs there are: ``"cut"``, ``"shared"`` in proportion, ``"halved"``.
    """

    iterations: dict[int, Operators] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    contradictions: dict[int, str] = field(default_factory=dict)
    pairs: Counter[str] = field(default_factory=Counter)


def own_work(pipeline: Pipeline, steps: Sequence[int]) -> Work:
    """Find the operators' own times in some complete iterations."""
    work = Work()
    waits = any(
        trace.clock == "host" or (trace.clock == "gpu" and not trace.names_stages)
        for trace in pipeline.ranks.values()
    )
    for step in steps:
        devices = pipeline.iterations[step]
        work.iterations[step] = _without_waits(pipeline, step, work) if waits else devices
    _share(work)
    return work


def _without_waits(pipeline: Pipeline, step: int, work: Work) -> Operators:
    devices = pipeline.iterations[step]
    spans = {op: span for ops in devices for op, span in ops.items()}
    sender = {op: _sender(op, spans, pipeline.placement) for op in spans}
    contradiction = _contradiction(spans, sender)

    def own(op: Op, span: Span) -> Span:
        makes = sender[op]
        if makes is None:
            return span
        if span.received_ms is not None:
            how, start_ms = "receive", span.received_ms
        elif span.operator_ms is not None:
            how, start_ms = "operator", span.operator_ms
        elif contradiction:
            how, start_ms = "unknown", span.start_ms
            work.contradictions[step] = contradiction
        else:
            how, start_ms = "clock", min(spans[makes].end_ms, span.end_ms)
            if start_ms < span.start_ms + _NO_WAIT_MS:
                return span
        work.told[how] += 1
        return span._replace(start_ms=start_ms)

    return [{op: own(op, span) for op, span in ops.items()} for ops in devices]


def _sender(op: Op, spans: Mapping[Op, Span], placement: Sequence[int]) -> Op | None:
    """Return the operator on another device whose message one needs, if there is one."""
    kinds: tuple[Kind, ...]
    match op.kind:
        case "F":
            stage, kinds = op.stage - 1, ("F",)
        case "B" | "BW":
            stage, kinds = op.stage + 1, ("B", "BW")
        case _:
            return None
    if not 0 <= stage < len(placement) or placement[stage] == placement[op.stage]:
        return None
    return next(
        Op(kind, stage, op.microbatch) for kind in kinds if (kind, stage, op.microbatch) in spans
    )


def _contradiction(spans: Mapping[Op, Span], sender: Mapping[Op, Op | None]) -> str:
    """Say which operator ends before the one whose message it needs, if any does."""
    for op, makes in sender.items():
        if makes is not None:
            early_ms = spans[makes].end_ms - spans[op].end_ms
            if early_ms > CLOCK_ERROR_MS:
                return f"{op} ends {early_ms:.1f} ms before {makes}, whose message it needs"
    return ""


def _share(work: Work) -> None:
    """Share the spans of pairs that were not cut between their two operators."""
    alone: dict[tuple[str, int], list[float]] = defaultdict(list)
    for devices in work.iterations.values():
        for ops in devices:
            for op, span in ops.items():
                work.pairs["cut"] += span.pair == "cut" and op.kind == "F"
                if span.pair != "whole":
                    alone[op.kind, op.stage].append(span.end_ms - span.start_ms)
    usual_ms = {key: float(np.median(times)) for key, times in alone.items()}
    for kind, stage in alone:
        halves = ("B", stage), ("W", stage)
        if kind == "B" and halves[1] in alone:
            usual_ms.setdefault(("BW", stage), sum(usual_ms[half] for half in halves))
    for step, devices in work.iterations.items():
        work.iterations[step] = [_shared(ops, usual_ms, work.pairs) for ops in devices]


def _shared(
    ops: Mapping[Op, Span], usual_ms: Mapping[tuple[str, int], float], pairs: Counter[str]
) -> Mapping[Op, Span]:
    together: dict[float, list[Op]] = defaultdict(list)
    for op, span in ops.items():
        if span.pair == "whole":
            together[span.end_ms].append(op)
    result = dict(ops)
    for pair in together.values():
        if len(pair) != 2:
            continue  # one of them is there a second time, by itself
        first, second = pair
        span = ops[first]
        weights = [usual_ms.get((op.kind, op.stage), 0.0) for op in (first, second)]
        known = min(weights) > 0
        pairs["shared" if known else "halved"] += 1
        part = weights[0] / sum(weights) if known else 0.5
        cut_ms = span.start_ms + part * (span.end_ms - span.start_ms)
        result[first] = span._replace(end_ms=cut_ms)
        result[second] = span._replace(start_ms=cut_ms)
    return result
