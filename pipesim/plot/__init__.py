"""Figures: one file per figure, all in the style of :mod:`._style`.

They draw results; none computes a time. Only this package loads matplotlib.
"""

from __future__ import annotations

from pipesim.plot._style import save
from pipesim.plot.gantt import gantt
from pipesim.plot.memory import in_flight

__all__ = ["gantt", "in_flight", "save"]
