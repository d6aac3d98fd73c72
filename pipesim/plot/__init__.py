"""Figures: one file for one figure, all in the language of :mod:`._style`.

They draw results; none computes a time. matplotlib is loaded with this package alone.
"""

from __future__ import annotations

from pipesim.plot._style import save
from pipesim.plot.gantt import gantt
from pipesim.plot.memory import in_flight

__all__ = ["gantt", "in_flight", "save"]
