"""Measured operators as CSV, one line for each."""

from __future__ import annotations

from pipesim.formats.operator_timeline.importer import import_timelines

__all__ = ["import_timelines"]
