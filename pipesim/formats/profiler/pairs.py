"""Overlapped pairs that nothing in a trace cuts, shared between their operators.

If the second operator's message came after the first had run for as long as it does alone, the
time between was a wait. Otherwise the two share the span of the pair in the proportion of the times
that they take alone, on the same stages; or in halves, if one never runs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from pipesim.formats.profiler.span import Span
from pipesim.schedule import Op

__all__ = ["Alone", "alone_ms", "mates", "shared"]

Alone = Mapping[tuple[str, int], float]
"""The usual time of a kind of operator on a stage, by itself, in milliseconds."""


def mates(ops: Mapping[Op, Span]) -> dict[Op, Op]:
    """Return the second operator of each pair of a device that is not cut, by the first."""
    pairs: dict[tuple[float, float], list[Op]] = defaultdict(list)
    for op, span in ops.items():
        if span.pair == "whole":
            pairs[span.start_ms, span.end_ms].append(op)
    return {pair[0]: pair[1] for pair in pairs.values() if len(pair) == 2}


def alone_ms(spans: Iterable[tuple[Op, Span]]) -> Alone:
    """Return the median times of operators by themselves; BW may take what B and W do."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for op, span in spans:
        times[op.kind, op.stage].append(span.end_ms - span.start_ms)
    usual = {key: float(np.median(found)) for key, found in times.items()}
    halves = {stage for kind, stage in usual if kind == "B" and ("W", stage) in usual}
    return {("BW", stage): usual["B", stage] + usual["W", stage] for stage in halves} | usual


def shared(
    pair: tuple[Op, Op], span: Span, arrived_ms: float | None, alone: Alone
) -> tuple[tuple[Span, Span], Literal["shared", "halved"]]:
    """Return the spans of both operators of a pair.

    Parameters
    ----------
    pair : tuple of Op, Op
        In the order in which they start.
    span : Span
        Of the pair, from when its first operator could start.
    arrived_ms : float or None
        When the second's message can have come at the earliest, if that is known.
    alone : Alone
        The usual times.

    Examples
    --------
    >>> pair = Op("F", 0, 1), Op("BW", 0, 0)
    >>> alone = {("F", 0): 10.0, ("BW", 0): 20.0}
    >>> for arrived_ms in (None, 25.0):
    ...     (one, other), _ = shared(pair, Span(0.0, 45.0), arrived_ms, alone)
    ...     print(one[:2], other[:2])
    (0.0, 15.0) (15.0, 45.0)
    (0.0, 10.0) (25.0, 45.0)
    """
    times = [alone.get((op.kind, op.stage), 0.0) for op in pair]
    known = min(times) > 0
    alone_end_ms = span.start_ms + times[0]
    if known and arrived_ms is not None and alone_end_ms < arrived_ms < span.end_ms:
        end_ms, start_ms = alone_end_ms, arrived_ms
    else:
        part = times[0] / sum(times) if known else 0.5
        end_ms = start_ms = span.start_ms + part * (span.end_ms - span.start_ms)
    parts = span._replace(end_ms=end_ms), span._replace(start_ms=start_ms)
    return parts, "shared" if known else "halved"
