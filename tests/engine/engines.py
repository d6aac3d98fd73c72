"""Both engines, by name: what a program that is made by hand is run with."""

from __future__ import annotations

from pipesim.engine import run
from pipesim.engine.compiled.evaluator import run as run_compiled

ENGINES = {"simpy": run, "compiled": run_compiled}
