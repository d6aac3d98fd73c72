"""PyTorch profiler traces (Kineto JSON)."""

from __future__ import annotations

from pipesim.formats.profiler.importer import import_profiler

__all__ = ["import_profiler"]
