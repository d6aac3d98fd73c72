"""The figure of a delay trace: each link's delay over time, and the slowest one's."""

from __future__ import annotations

from matplotlib.figure import Figure

from pipesim.delays import DelayTrace

__all__ = ["over_time"]


def over_time(trace: DelayTrace, *, start: float = 0.0, title: str | None = None) -> Figure:
    """Draw a trace."""
    raise NotImplementedError
