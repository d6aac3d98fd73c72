"""A job on stock torch whose links become late and recover: iteration by iteration.

``python benchmarks/torch_adaptive.py`` trains a tiny model with four processes over gloo. One link
is late for a while, and later another. Each message over a late link arrives that much later;
nothing else is held up. Transfer times are measured, a detector sees them, a thread plans, and all
ranks swap plans at the same boundary between iterations.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from held_stages import NS_PER_MS, WIDTH, Block, held
from rich.console import Console
from rich.table import Table
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.multiprocessing.spawn import start_processes

from pipesim import Scenario, evaluate
from pipesim.adapt.replanner import Replanner, TorchPlan
from pipesim.runtime import Adaptive
from pipesim.runtime.carriers import Late
from pipesim.target import target
from pipesim.transport import Ideal

STAGES, MICROBATCHES, ROWS = 4, 12, 2
LEAD, SPELL = 9, 7
"""Iterations before the first link is late, and of each spell after that."""


class Ran(NamedTuple):
    """What a rank saw of an iteration."""

    start_ns: int
    end_ns: int
    error: float
    swapped: bool
    delegated: list[tuple[int, str]]


class Noted:
    """A planner that remembers what it was told and what it said."""

    def __init__(self, planner: Replanner) -> None:
        self.planner = planner
        self.told_ms: list[np.ndarray] = []
        self.plans: list[TorchPlan] = []
        self.planning_ms: list[float] = []

    def first(self) -> TorchPlan:
        """Ask the planner."""
        self.plans.append(self.planner.first())
        return self.plans[-1]

    def after(self, measured_ms: np.ndarray) -> TorchPlan | None:
        """Ask the planner."""
        self.told_ms.append(measured_ms)
        start = time.perf_counter()
        plan = self.planner.after(measured_ms)
        if plan is not None:
            self.planning_ms.append(1e3 * (time.perf_counter() - start))
            self.plans.append(plan)
        return plan


def main() -> None:
    """Run all ranks and print what they saw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--delay", type=float, default=20.0, help="of a late link in ms [20]")
    parser.add_argument("--links", type=int, nargs="+", default=[0, 1], help="late ones [0 1]")
    parser.add_argument("--planner", default="pipemorph")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (options, folder), nprocs=STAGES, start_method="fork")
        ranks, noted = torch.load(Path(folder) / "seen", weights_only=False)
    _report(options, ranks, noted)


def _late_ms(options: argparse.Namespace, iteration: int) -> dict[int, float]:
    """The late links of an iteration: each has a spell, and the job one to recover after it."""
    spell = (iteration - LEAD) // SPELL
    if iteration < LEAD or spell % 2:
        return {}
    return {options.links[spell // 2]: options.delay}


def _rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(Path(folder) / "store"), STAGES),
        rank=rank,
        world_size=STAGES,
        timeout=timedelta(minutes=5),
    )
    scenario = Scenario(stages=STAGES, microbatches=MICROBATCHES)
    planner = None
    if rank == 0:
        warm, planner = (Replanner(scenario, planner=options.planner, direct=Ideal()) for _ in "12")
        for all_ms in (0.0, 0.0, 0.0, 0.0, 0.0, 20.0):  # loads and compiles what it needs
            warm.after(np.full((STAGES - 1, 2), all_ms))
        planner = Noted(planner)
    seen = _train(rank, options, planner)
    gathered: list[Any] = [None] * STAGES
    dist.all_gather_object(gathered, seen)
    if planner:
        torch.save(
            (gathered, (planner.told_ms, planner.plans, planner.planning_ms)), Path(folder) / "seen"
        )
    dist.barrier()
    dist.destroy_process_group()


def _train(rank: int, options: argparse.Namespace, planner: Noted | None) -> list[Ran]:
    torch.manual_seed(0)
    blocks = [Block(10.0, 10.0, 10.0) for _ in range(STAGES)]
    stage = PipelineStage(blocks[rank], rank, STAGES, torch.device("cpu"))
    loss = torch.nn.functional.mse_loss
    schedule = _PipelineScheduleRuntime([stage], MICROBATCHES, loss_fn=loss)
    generator = torch.Generator().manual_seed(1)
    data, wanted = torch.randn(2, ROWS * MICROBATCHES, WIDTH, generator=generator)
    right = _gradients(blocks, data, wanted)[rank]
    lateness: dict[int, float] = {}
    carriers: list[tuple[int, Late]] = []

    def through(way: tuple[int, str], carrier: Any) -> Late:
        carriers.append((way[0], Late(carrier, lateness.get(way[0], 0.0))))
        return carriers[-1][1]

    seen = []
    with Adaptive(schedule, planner, through=through) as adaptive:
        rerouted = adaptive._rerouted
        spans = held(stage, lambda: rerouted.landed[-1].ns if rerouted.landed else 0)
        for iteration in range(LEAD + 2 * SPELL * len(options.links)):
            lateness = _late_ms(options, iteration)
            for link, carrier in carriers:
                carrier.late_ms = lateness.get(link, 0.0)
            spans.clear()
            stage.submod.zero_grad()
            adaptive.step(
                *([data] if rank == 0 else []), target=wanted if rank == STAGES - 1 else None
            )
            errors = [
                float((ours.grad - theirs).abs().max() / theirs.abs().max())
                for ours, theirs in zip(stage.submod.parameters(), right, strict=True)
            ]
            seen.append(
                Ran(
                    min(span.start_ns for span in spans),
                    max(span.end_ns for span in spans),
                    max(errors),
                    adaptive.swapped,
                    sorted(adaptive.delegated),
                )
            )
    return seen


def _gradients(
    blocks: Sequence[Block], data: torch.Tensor, wanted: torch.Tensor
) -> list[list[torch.Tensor]]:
    """The gradients of the model without a pipeline, for each stage."""
    torch.nn.functional.mse_loss(torch.nn.Sequential(*blocks)(data), wanted).backward()
    return [[value.grad.clone() for value in block.parameters()] for block in blocks]


class Row(NamedTuple):
    """An iteration of the job."""

    late: dict[int, float]
    took_ms: float
    foreseen_ms: float
    swapped: bool
    delegated: list[tuple[int, str]]

    @property
    def error(self) -> str:
        """How far it was from the prediction."""
        return f"{100 * (self.took_ms / self.foreseen_ms - 1):+.1f} %"


def _report(options: argparse.Namespace, ranks: list[list[Ran]], noted: Any) -> None:
    told_ms, plans, planning_ms = noted
    base_ms = float(np.median(np.array(told_ms[1:LEAD])))
    rows = list(_rows(options, ranks, plans, base_ms))
    console = Console(width=max(100, Console().width))
    console.print(f"{STAGES} × {MICROBATCHES}, operators of 10 ms, messages of {base_ms:.2f} ms\n")
    table = Table("iteration", "late", "measured ms", "predicted ms", "error", "plan", "delegated")
    for iteration, row in enumerate(rows):
        table.add_row(
            str(iteration),
            ", ".join(f"link {link} {delay:g} ms" for link, delay in row.late.items()),
            f"{row.took_ms:.1f}",
            f"{row.foreseen_ms:.1f}",
            row.error,
            "swapped" if row.swapped else "",
            ", ".join(f"{link} {way}" for link, way in row.delegated),
        )
    console.print(table)
    summary = Table("link", "healthy", "hit", "3rd iteration", "error", "re-planned", "recovered")
    healthy_ms = statistics.median(row.took_ms for row in rows[1:LEAD])
    for number, link in enumerate(options.links):
        hit = LEAD + 2 * SPELL * number
        over = hit + SPELL
        summary.add_row(
            str(link),
            f"{healthy_ms:.1f}",
            f"{rows[hit].took_ms:.1f}",
            f"{rows[hit + 2].took_ms:.1f}",
            rows[hit + 2].error,
            f"{statistics.median(row.took_ms for row in rows[hit + 2 : over]):.1f}",
            f"{statistics.median(row.took_ms for row in rows[over + 2 : over + SPELL]):.1f}",
        )
    console.print("\nIn ms; re-planned and recovered are medians from the third iteration on")
    console.print(summary)
    errors = [one.error for rank in ranks for one in rank]
    console.print(f"\nLargest error of a gradient: {max(errors):.1e}")
    console.print(f"A plan takes {statistics.median(planning_ms):.0f} ms in its thread (median)")


def _rows(
    options: argparse.Namespace, ranks: list[list[Ran]], plans: list[TorchPlan], base_ms: float
) -> Iterator[Row]:
    there = target("torch").adapted(Scenario(stages=STAGES, microbatches=MICROBATCHES))
    made = iter(plans)
    for iteration, seen in enumerate(zip(*ranks, strict=True)):
        if seen[0].swapped:
            schedule = next(made).schedule
        late = _late_ms(options, iteration)
        scenario = there
        for link, delay_ms in late.items():
            scenario = there.with_delay(delay_ms, links=[link])
        foreseen_ms = float(evaluate(scenario, schedule, Ideal(base_ms)))
        took_ms = (max(r.end_ns for r in seen) - min(r.start_ns for r in seen)) / NS_PER_MS
        yield Row(late, took_ms, foreseen_ms, seen[0].swapped, seen[0].delegated)


if __name__ == "__main__":
    main()
