"""Record torch's pipeline schedules with torch's profiler: two ranks over gloo.

``python -m tests.formats.profiler_recorder FOLDER`` writes ``FOLDER/<schedule>-rank<i>.json.gz``
for every schedule. Stages sleep for a known while, so that the times of their operators are known.
Traces are stripped to what an importer may look at, and tell nothing of the machine.

``python -m tests.formats.profiler_recorder`` stores those of ``tests/data/profiler/recorded``.
torch is imported here only when it is run.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.formats.torch_runtime import forked, meet

RECORDED = ROOT / "tests" / "data" / "profiler" / "recorded"
RANKS, MICROBATCHES = 2, 4
WIDTH, BATCH = 16, 2
SCHEDULES = {
    "GPipe": (0, 1),
    "1F1B": (0, 1),
    "Interleaved1F1B": (0, 1, 0, 1),
    "LoopedBFS": (0, 1, 0, 1),
    "InterleavedZeroBubble": (0, 1, 0, 1),
    "ZBVZeroBubble": (0, 1, 1, 0),
    "DualPipeV": (0, 1, 1, 0),
}
"""Each with the rank of each stage."""

FORWARD_MS = (6.0, 10.0, 14.0, 18.0)
BACKWARD_MS = (10.0, 13.0, 16.0, 19.0)
"""How long each stage sleeps; what it computes besides takes less than 1 ms."""

KEPT = ("user_annotation", "cpu_op")


def record(rank: int, folder: Path) -> None:
    """Record one step of every schedule."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as of_steps

    meet(rank, RANKS, folder)
    for name in SCHEDULES:
        step = _step(name, rank)
        step()
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=of_steps(wait=0, warmup=1, active=1, repeat=1),
        ) as profiler:
            for _ in range(2):
                step()
                profiler.step()
        path = folder / f"{name}-rank{rank}.json"
        profiler.export_chrome_trace(str(path))
        text = json.dumps(stripped(json.loads(path.read_text())), separators=(",", ":"))
        path.with_suffix(".json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        path.unlink()
    dist.barrier()
    dist.destroy_process_group()


def _step(name: str, rank: int) -> Any:
    """One training step of a schedule, to be called."""
    import torch
    from torch.distributed.pipelining import PipelineStage, schedules

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, stage: int) -> Any:
            ctx.stage = stage
            time.sleep(FORWARD_MS[stage] / 1e3)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            time.sleep(BACKWARD_MS[ctx.stage] / 1e3)
            return gradients[0].clone(), None

    class Block(torch.nn.Module):
        def __init__(self, stage: int) -> None:
            super().__init__()
            self.stage, self.linear = stage, torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return Sleep.apply(torch.tanh(self.linear(x)), self.stage)

    placement = SCHEDULES[name]
    stages = [
        PipelineStage(Block(stage), stage, len(placement), torch.device("cpu"))
        for stage, device in enumerate(placement)
        if device == rank
    ]
    schedule = schedules.get_schedule_class(name)(
        stages if len(placement) > RANKS else stages[0],
        MICROBATCHES,
        loss_fn=torch.nn.functional.mse_loss,
    )
    data, target = torch.randn(2, BATCH * MICROBATCHES, WIDTH)
    inputs = [data] if placement[0] == rank else []
    last = placement[-1] == rank

    def step() -> None:
        schedule.step(*inputs, target=target if last else None, losses=[] if last else None)
        for stage in stages:
            stage.submod.zero_grad()

    return step


def stripped(trace: dict[str, Any]) -> dict[str, Any]:
    """Keep the times and names of annotations and of outermost operators, and which rank it is."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in KEPT]
    threads = sorted({(event["pid"], event["tid"]) for event in events})
    kept: list[dict[str, Any]] = []
    end = 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["cat"] == "cpu_op":
            engine = event["name"].startswith("autograd::engine")
            if event["ts"] < end and not engine:
                continue
            end = max(end, event["ts"] + event["dur"])
        thread = threads.index((event["pid"], event["tid"]))
        kept.append(
            {key: event[key] for key in ("ph", "cat", "name")}
            | {"pid": 1, "tid": thread}
            | {key: round(event[key], 3) for key in ("ts", "dur")}
        )
    info = {key: trace["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    return {
        "schemaVersion": trace["schemaVersion"],
        "deviceProperties": trace["deviceProperties"],
        "distributedInfo": info,
        "displayTimeUnit": trace["displayTimeUnit"],
        "baseTimeNanoseconds": trace["baseTimeNanoseconds"],
        "traceEvents": kept,
    }


if __name__ == "__main__":
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    into.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    failed = forked(RANKS, lambda rank: record(rank, into))
    (into / "store").unlink(missing_ok=True)
    sys.exit(failed)
