"""Traces as the PyTorch profiler writes them, one a rank: by hand, and from a known timeline.

``python -m tests.formats.profiler_traces`` writes those of ``tests/data/profiler/made``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pipesim.engine import simulate
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from pipesim.timeline import OpSpan, Timeline
from planners import plan
from tests import ROOT

MADE = ROOT / "tests" / "data" / "profiler" / "made"


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


def saved(documents: Iterable[dict[str, Any]], folder: Path) -> list[Path]:
    """Write the traces of a run, one file a rank."""
    paths = []
    for number, content in enumerate(documents):
        paths.append(folder / f"rank{number}.json")
        paths[-1].write_text(json.dumps(content))
    return paths


RANK0 = {
    "PP:0F0": (0.0, 10.0),
    "PP:0SEND_F0": (10.0, 11.0),
    "PP:0I0": (62.0, 70.0),
    "PP:0W0": (72.0, 78.0),
}
RANK1 = {"PP:1RECV_F0": (0.0, 11.0), "PP:1F0": (12.0, 30.0), "PP:1B0": (31.0, 60.0)}


# -- from a timeline -----------------------------------------------------------------------

Dialect = Literal["annotations", "receives", "operators", "gpu annotations", "kernels"]
DIALECTS: tuple[Dialect, ...] = (
    "annotations", "receives", "operators", "gpu annotations", "kernels"
)  # fmt: skip
"""What a trace has besides the host's annotations: nothing; the receives and the operators; the
operators; annotations of the GPU; its kernels and who launched them."""

LETTERS = {"F": "F", "B": "I", "W": "W", "BW": "B"}
GAP_MS = 1e-5
"""Events do not touch."""
LAG_MS = 3.0
"""How far the GPU is behind the host."""


def traced(
    iterations: Sequence[Timeline],
    dialect: Dialect,
    *,
    pairs: bool = False,
    stages: bool = True,
    steps: bool = True,
    skew_ms: float = 0.0,
) -> list[dict[str, Any]]:
    """Return the traces of some iterations as torch would have recorded them, by rank.

    On the host, an operator is annotated from the end of the one before it; on a GPU, the host
    runs ahead.

    Parameters
    ----------
    iterations : sequence of Timeline
        One after the other.
    dialect : Dialect
        What the traces have.
    pairs : bool
        Whether an F and the full backward that follows it are annotated as one.
    stages : bool
        Whether annotations name their stage; else they are ``Forward 0`` and ``Backward 0``.
    steps : bool
        Whether there are profiler steps.
    skew_ms : float
        How far the clock of each rank is behind that of the one before.
    """
    world = len(iterations[0].compute)
    documents = []
    for device in range(world):
        events: list[dict[str, Any]] = []
        at = 100.0
        for number, timeline in enumerate(iterations):
            length = timeline.end_ms + 10
            if steps:
                events.append(event(f"ProfilerStep#{number + 3}", at, at + length - 1))
            spans = timeline.compute[device]
            for group in _grouped(spans, pairs and stages):
                events += _recorded(group, timeline, dialect, stages, at)
            at += length
        for number, one in enumerate(events):
            one["ts"] -= device * skew_ms * 1e3
            one.setdefault("args", {"Ev Idx": number})
        info = {"backend": "gloo", "rank": device, "world_size": world}
        documents.append(document(events, distributedInfo=info, baseTimeNanoseconds=0))
    return documents


def _grouped(spans: Sequence[OpSpan], pairs: bool) -> Iterator[list[OpSpan]]:
    """Each operator by itself, or an F with the backward after it."""
    taken: OpSpan | None = None
    for span, after in pairwise((*spans, None)):
        assert span is not None
        if span is taken:
            continue
        if pairs and after is not None and (span.op.kind, after.op.kind) == ("F", "BW"):
            taken = after
            yield [span, after]
        else:
            yield [span]


def _recorded(
    group: Sequence[OpSpan], timeline: Timeline, dialect: Dialect, stages: bool, at: float
) -> Iterator[dict[str, Any]]:
    first, last = group[0], group[-1]
    device = timeline.scenario.placement[first.op.stage]
    row = timeline.compute[device]
    index = row.index(first)
    before_ms = row[index - 1].end_ms if index else 0.0
    name = _name([span.op for span in group], stages)
    if dialect in ("annotations", "receives", "operators"):
        yield event(name, at + before_ms, at + last.end_ms - GAP_MS)
        if dialect == "annotations":
            return
        for span in group:
            if dialect == "receives" and _from_afar(span.op, timeline.scenario):
                yield event("c10d::recv_", at + before_ms, at + before_ms, cat="cpu_op")
                yield event("gloo:recv", at + before_ms, at + span.start_ms + GAP_MS)
            # After a receive, Python takes its time until the first operator.
            yield from _operators(span, at, 0.05 if dialect == "receives" else 0.0)
        return
    launch = at + 0.01 * index
    host = event(name, launch, launch + 0.009)
    yield host
    if dialect == "gpu annotations":
        gpu = {"cat": "gpu_user_annotation", "pid": 0, "tid": 7}
        yield event(name, at + LAG_MS + first.start_ms, at + LAG_MS + last.end_ms, **gpu)
        return
    for number, span in enumerate(group):
        yield from _kernels(span, launch + 0.004 * number, at, timeline.scenario)


def _name(ops: Sequence[Op], stages: bool) -> str:
    parts = [f"{op.stage}{LETTERS[op.kind]}{op.microbatch}" for op in ops]
    if len(ops) == 2:
        return f"PP:({';'.join(parts)})OVERLAP_F_B"
    if stages:
        return f"PP:{parts[0]}"
    return f"{'Forward' if ops[0].kind == 'F' else 'Backward'} {ops[0].microbatch}"


def _from_afar(op: Op, scenario: Scenario) -> bool:
    stage = op.stage + {"F": -1, "W": 0}.get(op.kind, 1)
    placement = scenario.placement
    return 0 <= stage < len(placement) and placement[stage] != placement[op.stage]


def _operators(span: OpSpan, at: float, late: float) -> Iterator[dict[str, Any]]:
    """An outermost operator and one inside it; of a backward, by the autograd engine."""
    start, end = at + span.start_ms, at + span.end_ms - 2 * GAP_MS
    start += late * (end - start)
    outer = "aten::linear" if span.op.kind == "F" else (
        "autograd::engine::evaluate_function: AddmmBackward0"
    )  # fmt: skip
    yield event(outer, start, end, cat="cpu_op")
    yield event("aten::addmm", start + 0.1 * (end - start), end, cat="cpu_op")


def _kernels(
    span: OpSpan, launch: float, at: float, scenario: Scenario
) -> Iterator[dict[str, Any]]:
    """Two kernels, with a gap between them, and the receive before, on its own stream."""
    if span.op.kind == "BW":  # on the thread of the autograd engine
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        yield event(name, launch - 0.0005, launch + 0.003, cat="cpu_op", tid=2)
    start, end = at + LAG_MS + span.start_ms, at + LAG_MS + span.end_ms
    middle = (start + end) / 2
    runs = [("gemm", start, middle, 7), ("gelu", middle, end, 7)]
    if _from_afar(span.op, scenario):
        runs.append(("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", at, start, 20))
    for number, (name, begin, done, stream) in enumerate(runs):
        moment = launch + 0.001 * number
        args = {"correlation": round(moment * 1e3)}
        yield event("cudaLaunchKernel", moment, moment, cat="cuda_runtime", args=args)
        yield event(name, begin, done, cat="kernel", pid=0, tid=stream, args=args)


# -- those that are stored -----------------------------------------------------------------

KNOWN = Scenario(
    stages=4,
    microbatches=6,
    placement=Scenario.place("v", 2, 2),
    forward_ms=[12.5, 14.25, 13.75, 17.0],
    backward_ms=[11.5, 13.0, 12.25, 15.5],
    weight_ms=[9.75, 11.5, 10.0, 12.25],
    fused_backward_ms=[20.5, 23.75, 21.5, 26.0],
    name="made",
)
"""What the stored traces were made from; those without stages are of its first two."""

PLAIN = Scenario(
    stages=2,
    microbatches=6,
    forward_ms=KNOWN.forward_ms[:2],
    backward_ms=KNOWN.backward_ms[:2],
    weight_ms=KNOWN.weight_ms[:2],
    fused_backward_ms=KNOWN.fused_backward_ms[:2],
)

STORED: dict[str, tuple[Scenario, str, Dialect, bool]] = {
    "annotations": (KNOWN, "zerobubble", "annotations", True),
    "receives": (KNOWN, "zerobubble", "receives", True),
    "operators": (KNOWN, "zerobubble", "operators", True),
    "gpu-annotations": (KNOWN, "zerobubble", "gpu annotations", True),
    "kernels": (KNOWN, "zerobubble", "kernels", True),
    "gpipe": (PLAIN, "gpipe", "receives", False),
}
"""Scenario, planner, dialect, and whether annotations name stages, of each stored trace."""


def store() -> None:
    """Write the stored traces."""
    for name, (scenario, planner, dialect, stages) in STORED.items():
        timeline = simulate(scenario, plan(scenario, planner), "ideal")
        for number, trace in enumerate(traced([timeline] * 2, dialect, stages=stages)):
            text = json.dumps(trace, separators=(",", ":"))
            path = MADE / f"{name}-rank{number}.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    store()
