"""Stock torch schedules on four ranks over gloo, with messages that something else carries.

``python -m tests.runtime.training FOLDER`` runs every case of ``CASES`` in one process group.
Each rank writes ``FOLDER/rank<i>.json``: for each case what it found. torch is imported here only
when it is run.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.formats.torch_runtime import RANKS, forked, meet

WIDTH, BATCH, MICROBATCHES = 5, 4, 8
LOOPED = [0, 1, 2, 3, 0, 1, 2, 3]
V = [0, 1, 2, 3, 3, 2, 1, 0]

PLACEMENTS = {
    "ScheduleGPipe": [0, 1, 2, 3],
    "Schedule1F1B": [0, 1, 2, 3],
    "ScheduleInterleaved1F1B": LOOPED,
    "ScheduleLoopedBFS": LOOPED,
    "ScheduleInterleavedZeroBubble": LOOPED,
    "ScheduleZBVZeroBubble": V,
    "ScheduleDualPipeV": V,
    "1f1b compute_only": [0, 1, 2, 3],
    "zerobubble compute_comms": LOOPED,
    "pipemorph compute_comms": [0, 1, 2, 3],
}
"""By torch's class, or by the plan and kind of a file that ``_PipelineScheduleRuntime`` loads."""


class Pipeline:
    """A rank's part of a model with several tensors between stages, one without gradient."""

    def __init__(self, rank: int, schedule: str, folder: Path) -> None:
        import torch
        from torch.distributed.pipelining import PipelineStage, schedules

        class Block(torch.nn.Module):
            def __init__(self, last: bool) -> None:
                super().__init__()
                self.inner = torch.nn.Linear(WIDTH, WIDTH)
                self.last = last

            def forward(self, x: Any, y: Any, weight: Any) -> Any:
                x = torch.tanh(self.inner(x)) * weight
                y = y + x.sum(1, keepdim=True)
                return x * y if self.last else (x, y, weight)

        torch.manual_seed(0)
        self.rank, self.placement = rank, PLACEMENTS[schedule]
        blocks = [Block(stage == len(self.placement) - 1) for stage in range(len(self.placement))]
        self.blocks = blocks
        self.loss = torch.nn.functional.mse_loss
        self.stages = [
            PipelineStage(copy.deepcopy(block), stage, len(blocks), torch.device("cpu"))
            for stage, block in enumerate(blocks)
            if self.placement[stage] == rank
        ]
        name, _, kind = schedule.partition(" ")
        runner = getattr(schedules, name if not kind else "_PipelineScheduleRuntime")
        single = issubclass(runner, schedules.PipelineScheduleSingle)
        mine: Any = self.stages[0] if single else self.stages
        self.schedule: Any = runner(mine, MICROBATCHES, loss_fn=self.loss)
        self.runs = self.schedule
        if kind:
            file = folder / f"{schedule}.csv"
            self.schedule._load_csv(str(file), format=kind)

    def _data(self, seed: int) -> tuple[list[Any], Any]:
        import torch

        generator = torch.Generator().manual_seed(seed)
        rows = BATCH * MICROBATCHES
        x, target = torch.randn(2, rows, WIDTH, generator=generator)
        y, weight = torch.rand(2, rows, 1, generator=generator)
        return [x, y, weight], target

    def _whole(self, inputs: list[Any]) -> Any:
        values: Any = inputs
        for block in self.blocks:
            values = block(*values)
        return values

    def step(self, seed: int) -> float:
        """Train for an iteration; return the largest error of a gradient."""
        inputs, target = self._data(seed)
        for module in [*self.blocks, *(stage.submod for stage in self.stages)]:
            module.zero_grad()
        self.loss(self._whole(inputs), target).backward()
        first, last = self.placement[0] == self.rank, self.placement[-1] == self.rank
        self.runs.step(*(inputs if first else []), target=target if last else None)
        return max(
            float((ours.grad - right.grad).abs().max() / right.grad.abs().max())
            for stage in self.stages
            for ours, right in zip(
                stage.submod.parameters(), self.blocks[stage.stage_index].parameters(), strict=True
            )
        )

    def eval(self, seed: int) -> float:
        """Evaluate; return the largest error of the result."""
        import torch

        if self.placement == V:  # torch cannot
            return 0.0
        inputs, target = self._data(seed)
        first, last = self.placement[0] == self.rank, self.placement[-1] == self.rank
        with torch.no_grad():
            result = self.schedule.eval(
                *(inputs if first else []), target=target if last else None, losses=[]
            )
            return float((result - self._whole(inputs)).abs().max()) if last else 0.0

    def left(self) -> list[str]:
        """What a context that has ended has left behind."""
        owners = [self.schedule, *self.stages]
        values = [value for owner in owners for value in vars(owner).values()]
        names = [str(value) for value in values if isinstance(value, partial)]
        for thread in (threads := threading.enumerate()[1:]):
            thread.join(60.0)  # those that end by themselves do so at once
        alive = [thread.name for thread in threads if thread.is_alive()]
        return [*names, *alive, *children()]


def children() -> list[str]:
    """The processes that this one has started and that still run."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [f"process {pid}" for pid in path.read_text().split()]


def delegates_in_both_ends() -> int:
    """Count this process's delegates, before any rank ends those of the others with its own."""
    import torch.distributed as dist

    count = len(children())
    dist.barrier()
    return count


def apart(pipeline: Pipeline) -> list[int]:
    """The links between two ranks."""
    pairs = pairwise(pipeline.placement)
    return [link for link, (upper, lower) in enumerate(pairs) if upper != lower]


def logged(
    run: Callable[[int], float], seed: int, rerouted: Any, sent: list[Any], landed: list[Any]
) -> float:
    """Run a step and note its messages: none where torch cannot evaluate, and ``run`` does not."""
    rerouted.sent.clear()
    rerouted.landed.clear()
    error = run(seed)
    sent += rerouted.sent
    landed += rerouted.landed
    return error


def by_delegates(pipeline: Pipeline) -> dict[str, Any]:
    """All links' messages by delegates, then a link's gradients, then as torch sends them."""
    from pipesim.runtime import delegated

    errors = [pipeline.step(0)]
    with delegated(pipeline.schedule, apart(pipeline)) as rerouted:
        before = children()
        sent: list[Any] = []
        landed: list[Any] = []
        errors += [
            logged(run, seed, rerouted, sent, landed)
            for seed in range(3)
            for run in (pipeline.step, pipeline.step, pipeline.eval)
        ]
        during = delegates_in_both_ends()
    between = pipeline.left()
    with delegated(pipeline.schedule, [0], directions=["up"], delegates=2) as rerouted:
        errors += [pipeline.eval(3), pipeline.step(3)]
        ways = sorted({(message.link, message.direction) for message in rerouted.sent})
        few = delegates_in_both_ends()
    errors += [pipeline.step(4)]
    return {
        "error": max(errors),
        "left": [*before, *between, *pipeline.left()],
        "delegates": [during, few],
        "messages": [len(sent), len(landed)],
        "ways": ways,
    }


def refused(pipeline: Pipeline) -> dict[str, str]:
    """What is said of mistakes."""
    from pipesim.runtime import delegated

    def said(*args: Any, **kwargs: Any) -> str:
        try:
            with delegated(pipeline.schedule, *args, **kwargs):
                return ""
        except ValueError as error:
            return str(error)

    stages = len(pipeline.placement)
    found = {
        "beyond": said([0, stages - 1]),
        "below": said([-1]),
        "inside": said([3]),
        "direction": said([0], directions=["left"]),
        "delegates": said([0], delegates=0),
        "unlike": said([pipeline.rank % 2]),
    }
    with delegated(pipeline.schedule, [0]):
        found["twice"] = said([0])
        error = pipeline.step(0)
    return {**found, "error": str(error), "left": " ".join(pipeline.left())}


def directly(pipeline: Pipeline) -> dict[str, Any]:
    """All links' messages, of the process group itself, some of them late."""
    import time

    from pipesim.runtime.carriers import Direct, Late
    from pipesim.runtime.rerouting import DIRECTIONS, Rerouted, Way

    late_ms, errors = 3.0, []
    with Rerouted(pipeline.schedule) as rerouted:
        for link in apart(pipeline):
            for direction in DIRECTIONS:
                way: Way = (link, direction)
                sender, receiver = rerouted.ends(way)
                tag = 2 * link + (direction == "up")
                if pipeline.rank == sender:
                    direct = Direct(None, receiver, tag)
                    rerouted.sending[way] = Late(direct, late_ms) if link == 0 else direct
                if pipeline.rank == receiver:
                    rerouted.receiving[way] = Direct(None, sender, tag)
        sent: list[Any] = []
        landed: list[Any] = []
        errors += [
            logged(run, seed, rerouted, sent, landed)
            for seed in range(3)
            for run in (pipeline.step, pipeline.eval)
        ]
        now_ns = time.monotonic_ns()
        rerouted.sending.clear()
        rerouted.receiving.clear()
        errors.append(pipeline.step(3))  # as torch sends it
        quiet = not rerouted.sent and not rerouted.landed
    errors.append(pipeline.step(4))
    return {
        "error": max(errors),
        "left": pipeline.left(),
        "sent": sent,
        "landed": landed,
        "now_ns": now_ns,
        "quiet": quiet,
    }


HOW: dict[str, Callable[[Pipeline], dict[str, Any]]] = {
    "directly": directly,
    "by delegates": by_delegates,
}
CASES = [(how, schedule) for how in HOW for schedule in PLACEMENTS]


def main(folder: Path) -> int:
    return forked(RANKS, lambda rank: _run_rank(rank, folder))


def _run_rank(rank: int, folder: Path) -> None:
    import torch.distributed as dist

    meet(rank, RANKS, folder)
    results = {}
    for how, schedule in CASES:
        results[f"{how} {schedule}"] = HOW[how](Pipeline(rank, schedule, folder))
    results["refused"] = refused(Pipeline(rank, "ScheduleZBVZeroBubble", folder))
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
