"""Both engines, by name, to run programs that are made by hand."""

from __future__ import annotations

from pipesim.engine import run
from pipesim.engine.compiled.evaluator import run as run_compiled

ENGINES = {"simpy": run, "compiled": run_compiled}
