"""How fast the engine, the planner and the command line are, against their promises.

    pytest benchmarks/bench_speed.py -n 0

Machines are shared and noisy: the best round counts.
"""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pipesim import Scenario, plan, simulate
from pipesim.engine import run
from pipesim.lowering import lower
from pipesim.plot import gantt
from pipesim.transport import transport


@pytest.mark.parametrize(("over", "promised"), [("ideal", 50_000), ("nccl", 15_000)])
def test_engine_operators_a_second(benchmark: BenchmarkFixture, over: str, promised: int) -> None:
    """1F1B, 8 stages × 256 micro-batches."""
    scenario = Scenario(stages=8, microbatches=256)
    program = lower(plan(scenario, "1f1b"), scenario, transport(over))
    operators = sum(len(order) for order in program.schedule.orders)
    benchmark.pedantic(run, (program, scenario), rounds=10, warmup_rounds=1)
    rate = operators / benchmark.stats["min"]
    benchmark.extra_info["operators_a_second"] = rate
    print(f"\n{over}: {rate:,.0f} operators a second (promised {promised:,})")
    assert rate >= promised


def test_replanning_eight_stages(benchmark: BenchmarkFixture) -> None:
    """Algorithm 2 and the greedy list scheduler, 8 stages × 32 micro-batches."""
    scenario = Scenario(stages=8, microbatches=32).with_delay(20, [3])
    benchmark.pedantic(plan, (scenario, "pipemorph"), rounds=50, warmup_rounds=2)
    print(f"\npipemorph 8 × 32: {1e3 * benchmark.stats['min']:.2f} ms (promised 10)")
    assert benchmark.stats["min"] < 0.010


def test_drawing_a_large_timeline(benchmark: BenchmarkFixture) -> None:
    """1F1B, 8 stages × 256 micro-batches, as a PNG."""
    scenario = Scenario(stages=8, microbatches=256)
    timeline = simulate(scenario, plan(scenario, "1f1b"), "exchange")

    def drawn() -> None:
        gantt({"large": timeline}).savefig(io.BytesIO(), format="png")

    benchmark.pedantic(drawn, rounds=3, warmup_rounds=1)
    print(f"\ngantt 8 × 256: {benchmark.stats['min']:.2f} s (promised 5)")
    assert benchmark.stats["min"] < 5


def test_time_to_the_first_table(benchmark: BenchmarkFixture) -> None:
    """A whole process, start-up included."""
    command = [sys.executable, "-m", "pipesim", "compare", "--delay", "20ms", "--link", "0"]

    def first_table() -> None:
        subprocess.run(command, check=True, capture_output=True)

    benchmark.pedantic(first_table, rounds=5, warmup_rounds=1)
    print(f"\npipesim compare: {benchmark.stats['min']:.2f} s (promised 1.5)")
    assert benchmark.stats["min"] < 1.5
