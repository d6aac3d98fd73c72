"""How fast the compiled evaluator is, against its promises.

    pytest benchmarks/bench_compiled.py -n 0 -s

Machines are shared and noisy: the best round counts.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pipesim import Scenario, plan
from pipesim.delays import DelayTrace
from pipesim.engine import Injection, Iterations
from pipesim.engine.compiled.evaluator import CompiledProgram, compile_program
from pipesim.engine.compiled.orders import OrderEvaluator
from pipesim.lowering import lower
from pipesim.transport import Delegated, Transport, transport

SCENARIO = Scenario(stages=8, microbatches=32).with_delay(20, [3])
TRANSPORTS = ["ideal", "nccl", "delegated", "exchange"]


def compiled(over: str) -> CompiledProgram:
    """The zero-bubble plan for no delay, 768 operators."""
    program = lower(plan(SCENARIO.without_delay(), "zerobubble"), SCENARIO, transport(over))
    return compile_program(program, SCENARIO)


def report(benchmark: BenchmarkFixture, what: str, operators: int, promised: float) -> None:
    rate = operators / benchmark.stats["min"]
    benchmark.extra_info["operators_a_second"] = rate
    print(f"\n{what}: {rate / 1e6:,.1f} million operators a second (promised {promised / 1e6:g})")
    assert rate >= promised


@pytest.mark.parametrize("over", TRANSPORTS)
def test_one_program(benchmark: BenchmarkFixture, over: str) -> None:
    program = compiled(over)
    benchmark.pedantic(program.evaluate, (SCENARIO,), rounds=100, warmup_rounds=2)
    report(benchmark, f"one program, {over}", program.operators, 5e6)


@pytest.mark.parametrize("over", TRANSPORTS)
@pytest.mark.parametrize("varied", ["occupancy_ms", "forward_ms"])
def test_batches(benchmark: BenchmarkFixture, over: str, varied: str) -> None:
    """2048 delay vectors or duration matrices for one program."""
    program, size = compiled(over), 2048
    shape = (size, 7, 2) if varied == "occupancy_ms" else (size, 8, 32)
    values = {varied: np.random.default_rng(0).uniform(0, 30, shape)}
    benchmark.pedantic(program.makespans_ms, (SCENARIO,), values, rounds=20, warmup_rounds=1)
    report(benchmark, f"batch of {varied}, {over}", size * program.operators, 50e6)


@pytest.mark.parametrize("over", [*map(transport, TRANSPORTS), Delegated(only_slow=True)])
def test_iterations_under_delays_that_change(benchmark: BenchmarkFixture, over: Transport) -> None:
    """One program, 8 stages × 24 micro-batches, other operator times in each iteration."""
    scenario = Scenario(stages=8, microbatches=24).with_delay(20, [3])
    chance = np.random.default_rng(0)
    delays = chance.choice([0.0, 20.0], (12_000, 7))
    injection = Injection(DelayTrace(np.arange(12_000) * 300.0, delays), every=64)
    program = lower(plan(scenario, "pipemorph"), scenario, over)
    iterations = Iterations(program, engine="compiled")

    def iterate() -> None:
        stretch = chance.uniform(0.95, 1.05, (8, 24))
        injection.start += iterations.run(scenario, injection, stretch=stretch).iteration_ms

    benchmark.pedantic(iterate, rounds=200, iterations=5, warmup_rounds=2)
    print(f"\none iteration, {over}: {1e3 * benchmark.stats['min']:.3f} ms (promised 0.2)")
    assert benchmark.stats["min"] < 0.2e-3


@pytest.mark.parametrize("over", [transport("ideal"), Delegated(delegates=2, copy_base_ms=0.5)])
def test_changing_orders(benchmark: BenchmarkFixture, over: Transport) -> None:
    evaluator = OrderEvaluator(SCENARIO, over)
    codes, first = evaluator.encode(plan(SCENARIO, "zerobubble"))
    benchmark.pedantic(
        evaluator.evaluate, (codes, first), rounds=50, iterations=20, warmup_rounds=1
    )
    report(benchmark, f"orders, {over}", len(codes), 1e6)


@pytest.mark.parametrize("over", TRANSPORTS)
def test_compilation(benchmark: BenchmarkFixture, over: str) -> None:
    """Of a program into events; not promised."""
    program = compiled(over).program
    benchmark.pedantic(compile_program, (program, SCENARIO), rounds=10, warmup_rounds=1)
    print(f"\ncompiling 8 × 32, {over}: {1e3 * benchmark.stats['min']:.1f} ms")


def test_the_first_call_of_a_process_compiles_nothing(benchmark: BenchmarkFixture) -> None:
    """A whole process with one evaluation and one batch, machine code from the cache."""
    code = (
        "from time import perf_counter; start = perf_counter()\n"
        "from pipesim import Scenario, plan\n"
        "from pipesim.engine.compiled.evaluator import compile_program\n"
        "from pipesim.lowering import lower\n"
        "from pipesim.transport import Ideal\n"
        "scenario = Scenario()\n"
        "program = compile_program(lower(plan(scenario, '1f1b'), scenario, Ideal()))\n"
        "program.evaluate(scenario); program.makespans_ms(scenario, forward_ms=[1.0, 2.0])\n"
        "from pipesim.engine.compiled import loops, order_loops, ordering\n"
        "for loop in (loops.times, order_loops.peaks, loops.makespans,\n"
        "             ordering.topological, ordering.pared, ordering.binary):\n"
        "    assert not loop.stats.cache_misses, loop\n"
    )
    command = [sys.executable, "-c", code]
    subprocess.run([sys.executable, "-c", code.partition("from pipesim.engine.compiled import")[0]])

    def first_call() -> None:
        subprocess.run(command, check=True)

    benchmark.pedantic(first_call, rounds=5)
    print(f"\na process with one evaluation: {benchmark.stats['min']:.2f} s")
