"""How much CPU many or large programs take, against their promises.

    pytest benchmarks/bench_many.py -n 0 -s

CPU time, not wall-clock time, of processes of their own, start-up included: the best round
counts.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import textwrap

import pytest

ROUNDS = 3

POINTS = """
    import numpy as np, pipesim
    healthy = pipesim.Scenario(stages=8, microbatches=32)
    slow = [healthy.with_delay(d, [link]) for d in np.linspace(5, 100, 20) for link in range(7)]
    fused, split = (pipesim.plan(healthy, name) for name in ("1f1b", "zerobubble"))
    pipesim.evaluate(slow, fused, "exchange")
    pipesim.evaluate(slow, split, "nccl")
    pipesim.evaluate(slow, split, "delegated")
    for one in slow:
        pipesim.evaluate(one, pipesim.plan(one, "pipemorph"), "delegated")
"""
"""20 delays × 7 links, 8 × 32, four systems; one of them plans for each point."""


def compare(stages: int, microbatches: int) -> list[str]:
    """The command line that compares the usual systems on so large a pipeline."""
    shape = ["--stages", str(stages), "--microbatches", str(microbatches)]
    return [sys.executable, "-m", "pipesim", "compare", *shape, "--delay", "20ms", "--link", "0"]


@pytest.mark.parametrize(
    ("what", "command", "seconds", "mebibytes"),
    [
        ("compare 64 × 1024", compare(64, 1024), 10, 1024),
        ("compare 16 × 64", compare(16, 64), 1.5, 256),
        ("140 points", [sys.executable, "-c", textwrap.dedent(POINTS)], 3, 512),
    ],
)
def test_cpu_seconds(what: str, command: list[str], seconds: float, mebibytes: float) -> None:
    used = min(spent(command) for _ in range(ROUNDS))
    print(f"\n{what}: {used[0]:.2f} s (promised {seconds}), {used[1]:.0f} MiB ({mebibytes})")
    assert used[0] < seconds
    assert used[1] < mebibytes


def spent(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak MiB of a command, as a process in between has seen them."""
    code = (
        "import json, resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        f"used = resource.getrusage({resource.RUSAGE_CHILDREN})\n"
        "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))\n"
    )
    outer = [sys.executable, "-c", code, *command]
    done = subprocess.run(outer, check=True, capture_output=True, text=True)
    seconds, mebibytes = json.loads(done.stdout)
    return seconds, mebibytes
