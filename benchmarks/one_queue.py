"""What planning for one launch queue gains, where nobody can delegate.

    python benchmarks/one_queue.py
    python benchmarks/one_queue.py --p2p-streams peer --no-fused
    python benchmarks/one_queue.py --transport exchange --shape 4x12

Takes the paper's worked example with a slow link, and the instances of the paper suite, their
delays as they are (in flight) and as busy kernels at the sender. Each is planned by every planner
and by ``one-queue``, all over the same transport.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from instances import paper_suite  # the script's own folder
from rich.console import Console
from rich.table import Table

from pipesim import Scenario, evaluate, plan
from pipesim.analysis import bound_over_ms
from pipesim.errors import PipesimError
from pipesim.transport import Exchange, Nccl
from planners import names


class Compared(NamedTuple):
    """The best of all other planners and ``one-queue``, on one scenario."""

    planner: str
    before_ms: float
    found_ms: float
    bound_ms: float
    seconds: float

    @property
    def gain(self) -> float:
        """How much longer the best of the others takes."""
        return self.before_ms / self.found_ms - 1


def compared(scenario: Scenario, over: Nccl | Exchange) -> Compared:
    """Plan a scenario with all planners, and with ``one-queue``."""
    times = {}
    for name in names():
        if name != "one-queue":
            try:
                times[name] = float(evaluate(scenario, plan(scenario, name, over=over), over))
            except PipesimError:  # made for other shapes
                continue
    best = min(times, key=times.__getitem__)
    started = perf_counter()
    schedule = plan(scenario, "one-queue", over=over)
    seconds = perf_counter() - started
    found_ms = float(evaluate(scenario, schedule, over, engine="simpy"))
    return Compared(best, times[best], found_ms, bound_over_ms(scenario, over), seconds)


def worked_example(over: Nccl | Exchange) -> Table:
    """Return what a slow first link costs the paper's example, by its delay."""
    columns = "delay ms", "best of others ms", "planner", "one-queue ms", "bound ms", "seconds"
    table = Table(*columns, title=f"4 × 12, operators of 10 ms, link 0 slow, over {over}")
    for delay in (0, 10, 20, 40, 60):
        row = compared(Scenario().with_delay(delay, links=[0]), over)
        table.add_row(
            f"{delay}",
            f"{row.before_ms:g}",
            row.planner,
            f"{row.found_ms:g}",
            f"{row.bound_ms:g}",
            f"{row.seconds:.1f}",
        )
    return table


def suite(shape: str | None) -> Iterator[tuple[str, Scenario]]:
    """Yield the paper suite's instances, each with its delays in flight and as busy kernels."""
    for scenario in paper_suite():
        size = f"{scenario.stages}x{scenario.microbatches}"
        if shape in (None, size):
            yield f"{size}, in flight", scenario
            busy = scenario.replaced(latency_ms=0.0, occupancy_ms=scenario.latency_ms)
            yield f"{size}, busy", busy


def gains(rows: dict[str, list[Compared]], over: Nccl | Exchange) -> Table:
    """Return the gains by shape and kind of delay, and over all of one kind.

    Before and now are how far the best of the others and ``one-queue`` are over the bound.
    """
    columns = "instances", "mean", "least", "most", "before", "now", "seconds"
    title = f"paper suite over {over}: how much longer the best of the others is; over the bound"
    table = Table(*columns, title=title)
    everything = {
        kind: [row for name, own in rows.items() if name.endswith(kind) for row in own]
        for kind in ("in flight", "busy")
    }
    named = {f"all {len(own)}, {kind}": own for kind, own in everything.items() if own}
    for name, own in (rows | named).items():
        gain = [row.gain for row in own]
        before = np.mean([row.before_ms / row.bound_ms - 1 for row in own])
        now = np.mean([row.found_ms / row.bound_ms - 1 for row in own])
        table.add_row(
            name,
            *(f"{value:.1%}" for value in (np.mean(gain), min(gain), max(gain), before, now)),
            f"{max(row.seconds for row in own):.1f}",
        )
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transport", choices=["nccl", "exchange"], default="nccl")
    parser.add_argument("--p2p-streams", choices=["device", "peer", "direction"], default="device")
    parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--shape", help="of the suite only this one, such as 4x12")
    options = parser.parse_args()
    exchange = options.transport == "exchange"
    over = Exchange() if exchange else Nccl(options.p2p_streams, fused=options.fused)
    console = Console(width=max(100, Console().width))
    plan(Scenario(), "one-queue", over=over)  # compiled, or loaded, before the clock runs
    console.print(worked_example(over))
    rows = defaultdict(list)
    for name, scenario in suite(options.shape):
        rows[name].append(compared(scenario, over))
    console.print(gains(rows, over))


if __name__ == "__main__":
    main()
