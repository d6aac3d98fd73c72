"""Plans on stock torch over a late link: predicted and measured.

``python benchmarks/torch_straggler.py`` trains a tiny model with four processes over gloo, 12
micro-batches an iteration. All messages over link 0, activations and gradients, arrive 20 ms late;
nothing else is held up. Operators take 10 ms each, as torch runs them: it runs the whole backward
of the first stage in W. Predicted is a simulation with these operators and with what a message
costs when no link is late, measured first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from bisect import bisect
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from held_stages import NS_PER_MS, WIDTH, Block, Span, held
from rich.console import Console
from rich.table import Table
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.multiprocessing.spawn import start_processes

from pipesim import Scenario, Schedule, evaluate
from pipesim.analysis.bounds import lower_bound_ms
from pipesim.formats.torch_csv import save_torch_csv
from pipesim.runtime import delegated
from pipesim.runtime.carriers import Direct, Late
from pipesim.runtime.rerouting import DIRECTIONS, Message, Rerouted
from pipesim.runtime.transfers import Log, transfer_ms
from pipesim.target import target
from pipesim.transport import Ideal
from planners import plan

STAGES, MICROBATCHES, ROWS, LINK = 4, 12, 2, 0
UNAWARE = ("1f1b", "zerobubble", "pipemorph")
AWARE = ("zerobubble", "pipemorph", "zb-auto", "search")
"""Planned for torch; the shortest is run."""


class Run(NamedTuple):
    """A plan's file, how late the link is, and whether delegates carry its messages."""

    file: str
    late_ms: float
    by_delegates: bool


class Seen(NamedTuple):
    """What a rank saw of an iteration."""

    spans: list[Span]
    error: float
    sent: list[Message]
    landed: list[Message]


def main() -> None:
    """Measure what messages cost, plan with it, and run the plans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("--delay", type=float, default=20.0, help="of link 0 in ms")
    parser.add_argument("--iterations", type=int, default=12, help="of each plan, after two more")
    parser.add_argument("--limit", type=float, help="activations of a stage, for the planners")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    scenario = Scenario(stages=STAGES, microbatches=MICROBATCHES)
    if options.limit is not None:
        scenario = scenario.replaced(activation_limit=options.limit)
    late = scenario.with_delay(options.delay, links=[LINK], kind="latency")
    ways = {"no": False, "yes": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_torch_csv(plan(scenario, "1f1b"), folder / "healthy.csv")
        runs = [Run("healthy.csv", 0.0, by_delegates) for by_delegates in ways.values()]
        costs_ms = [_message_ms(seen) for seen in _on_all_ranks(folder, runs, options.iterations)]
        plans = _plans(late, costs_ms[0])
        for number, schedule in enumerate(plans.values()):
            save_torch_csv(schedule, folder / f"{number}.csv")
        cases = [(which, says) for which in plans for says in ways]
        numbers = {which: number for number, which in enumerate(plans)}
        runs = [Run(f"{numbers[which]}.csv", options.delay, ways[says]) for which, says in cases]
        results = _on_all_ranks(folder, runs, options.iterations)
    table = Table(title=f"{STAGES} × {MICROBATCHES}, link {LINK} is {options.delay:g} ms late")
    for column in ("plan", "delegates", "predicted ms", "measured ms", "error", "gradient error"):
        table.add_column(column, justify="left" if column in ("plan", "delegates") else "right")
    for (which, says), seen in zip(cases, results, strict=True):
        predicted_ms = _predicted_ms(late, plans[which], *costs_ms, by_delegates=ways[says])
        measured_ms = statistics.median(_iteration_ms(seen))
        table.add_row(
            which,
            says,
            f"{predicted_ms:.1f}",
            f"{measured_ms:.1f}",
            f"{100 * (measured_ms / predicted_ms - 1):+.1f} %",
            f"{max(one.error for ranks in seen for one in ranks):.1e}",
        )
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(
        f"A message costs {costs_ms[0]:.2f} ms over gloo and {costs_ms[1]:.2f} ms by delegates. "
        f"No order is predicted below {_bound_ms(late, costs_ms[0]):.1f} ms under torch's rules. "
        f"Load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with defaults, and the docstring as it is."""


# -- plans and predictions ------------------------------------------------------------------


def _plans(late: Scenario, cost_ms: float) -> dict[str, Schedule]:
    """The plans by their names: as they are made today, and the best one made for torch."""
    plans = {name: plan(late, name) for name in UNAWARE}
    there, over = target("torch"), Ideal(cost_ms)
    aware = {name: plan(late, name, over=over, runtime=there) for name in AWARE}
    lengths = {name: evaluate(there.adapted(late), made, over) for name, made in aware.items()}
    best = min(AWARE, key=lambda name: lengths[name])
    return {**plans, f"for torch ({best})": aware[best]}


def _predicted_ms(
    late: Scenario, schedule: Schedule, direct_ms: float, lane_ms: float, *, by_delegates: bool
) -> float:
    there = target("torch").adapted(late)
    if by_delegates:  # the link differs from the others in what carries its messages
        latency_ms = np.array(there.latency_ms)
        latency_ms[LINK] += lane_ms - direct_ms
        there = there.replaced(latency_ms=latency_ms)
    return float(evaluate(there, schedule, Ideal(direct_ms)))


def _bound_ms(late: Scenario, cost_ms: float) -> float:
    there = target("torch").adapted(late)
    return lower_bound_ms(there.with_message_cost(Ideal(cost_ms).costs_ms(there)))


# -- runs -----------------------------------------------------------------------------------


def _on_all_ranks(folder: Path, runs: list[Run], iterations: int) -> list[list[list[Seen]]]:
    """Return what ranks saw, for each run and iteration after the first two."""
    arguments = folder, runs, iterations + 2
    start_processes(_rank, arguments, nprocs=STAGES, start_method="fork")
    (folder / "store").unlink(missing_ok=True)
    ranks = [torch.load(folder / f"rank{rank}", weights_only=False) for rank in range(STAGES)]
    return [
        [list(ranks_seen) for ranks_seen in zip(*by_rank, strict=True)][2:]
        for by_rank in zip(*ranks, strict=True)
    ]


def _rank(rank: int, folder: Path, runs: list[Run], iterations: int) -> None:
    store = dist.FileStore(str(folder / "store"), STAGES)
    patience = timedelta(minutes=5)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=STAGES, timeout=patience)
    seen = [_train(rank, folder, run, iterations) for run in runs]
    torch.save(seen, folder / f"rank{rank}")
    dist.barrier()
    dist.destroy_process_group()


def _train(rank: int, folder: Path, run: Run, iterations: int) -> list[Seen]:
    torch.manual_seed(0)
    blocks = [Block(10.0, 10.0, 10.0) for _ in range(STAGES)]
    loss = torch.nn.functional.mse_loss
    data, wanted = torch.randn(2, ROWS * MICROBATCHES, WIDTH)
    loss(torch.nn.Sequential(*blocks)(data), wanted).backward()
    right = [value.grad for value in blocks[rank].parameters()]
    stage = PipelineStage(blocks[rank], rank, STAGES, torch.device("cpu"))
    schedule = _PipelineScheduleRuntime([stage], MICROBATCHES, loss_fn=loss)
    schedule._load_csv(str(folder / run.file), format="compute_only")
    inputs = [data] if rank == 0 else []
    target = wanted if rank == STAGES - 1 else None
    seen = []
    carried = delegated(schedule, [LINK]) if run.by_delegates else Rerouted(schedule)
    with carried as rerouted:
        spans = held(stage, lambda: rerouted.landed[-1].ns if rerouted.landed else 0)
        for iteration in range(iterations):
            if iteration == 1:  # delegates have started
                _carry(rerouted, rank, run.late_ms)
            spans.clear()
            stage.submod.zero_grad()
            dist.barrier()
            schedule.step(*inputs, target=target)
            ours = [value.grad for value in stage.submod.parameters()]
            logs = list(rerouted.sent), list(rerouted.landed)
            seen.append(Seen(list(spans), _error(ours, right), *logs))
    return seen


def _carry(rerouted: Rerouted, rank: int, late_ms: float) -> None:
    """Send what delegates do not as torch does, but told when; and make the link late."""
    for link in range(STAGES - 1):
        for direction in DIRECTIONS:
            way, tag = (link, direction), 1 + 2 * link + DIRECTIONS.index(direction)
            sender, receiver = rerouted.ends(way)
            if rank == sender:
                carrier = rerouted.sending.get(way, Direct(None, receiver, tag))
                rerouted.sending[way] = Late(carrier, late_ms) if link == LINK else carrier
            if rank == receiver:
                rerouted.receiving.setdefault(way, Direct(None, sender, tag))


# -- what was seen --------------------------------------------------------------------------


def _error(ours: list[Any], right: list[Any]) -> float:
    """Return the largest error of a gradient, as a part of the largest."""
    pairs = zip(ours, right, strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def _iteration_ms(seen: list[list[Seen]]) -> list[float]:
    """Return how long each iteration took, from the first operator of all ranks to the last."""
    return [
        (max(span.end_ns for span in spans) - min(span.start_ns for span in spans)) / NS_PER_MS
        for spans in ([span for one in ranks for span in one.spans] for ranks in seen)
    ]


def _message_ms(seen: list[list[Seen]]) -> float:
    """Return what a message over the link takes, as a median of iterations and directions.

    From the end of its operator, which is before torch hands it over, until it has landed.
    """
    times_ms = []
    for ranks in seen:
        logs = []
        for one in ranks:
            ends_ns = [span.end_ns for span in one.spans]
            sent = [
                (m.link, m.direction, m.microbatch, ends_ns[bisect(ends_ns, m.ns) - 1])
                for m in one.sent
            ]
            landed = [(m.link, m.direction, m.microbatch, m.posted_ns, m.ns) for m in one.landed]
            logs.append(Log(sent, landed))
        times_ms.append(transfer_ms(logs, STAGES - 1)[LINK])
    return float(np.median(times_ms))


if __name__ == "__main__":
    sys.exit(main())
