"""Traces as the PyTorch profiler writes them, one a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def event(name: str, start_ms: float, end_ms: float, **fields: object) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": 1e6 + start_ms * 1e3,
        "dur": (end_ms - start_ms) * 1e3,
        **fields,
    }


def document(events: Iterable[dict[str, object]], **fields: object) -> dict[str, Any]:
    noise = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        event("Optimizer.step#SGD.step", 0, 1),
    ]
    return {"schemaVersion": 1, "traceEvents": [*noise, *events], **fields}


def rank(
    number: int, ops: dict[str, tuple[float, float]], steps: int = 2, **info: object
) -> dict[str, Any]:
    """The same operators in every step, each 100 ms after the other; a later one is slower."""
    events = []
    for step in range(steps):
        events.append(event(f"ProfilerStep#{5 + step}", 100 * step, 100 * step + 95))
        events += [
            event(name, 100 * step + start, 100 * step + end + step)
            for name, (start, end) in ops.items()
        ]
    info = {"backend": "nccl", "rank": number, "world_size": 2, **info}
    return document(events, distributedInfo=info, baseTimeNanoseconds=5_000_000_000)


RANK0 = {
    "PP:0F0": (0.0, 10.0),
    "PP:0SEND_F0": (10.0, 11.0),
    "PP:0I0": (62.0, 70.0),
    "PP:0W0": (72.0, 78.0),
}
RANK1 = {"PP:1RECV_F0": (0.0, 11.0), "PP:1F0": (12.0, 30.0), "PP:1B0": (31.0, 60.0)}
