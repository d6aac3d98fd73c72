"""How long an hour of changing links takes: five systems with the oracle, 8 × 24, 5 % jitter.

pytest benchmarks/bench_trace.py -n 0 -s -m ""
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter

HOUR = Path(__file__).parents[1] / "traces" / "production_hour.csv"


def test_an_hour_of_changing_links() -> None:
    shape = ("--stages", "8", "--microbatches", "24", "--jitter", "5%")
    command = [sys.executable, "-m", "pipesim", "trace", "run", str(HOUR), *shape]
    started = perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    print(f"\nan hour, four systems and the oracle: {perf_counter() - started:.1f} s")
