"""The SimPy engine: a device is one process that walks its launch queue (:mod:`.device`).

What it meets there is either a group kernel, which needs its other ends (:mod:`.kernels`), or
a message for a path that blocks nobody (:mod:`.paths`).
"""

from __future__ import annotations

from pipesim.engine.simpy.simulator import run

__all__ = ["run"]
