"""The figure of a trade-off: iteration time against activations."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipesim.plot._style import GRID, INK, KIND_COLOURS, MUTED
from pipesim.studies.pareto import Point

__all__ = ["trade_off"]


def trade_off(points: Sequence[Point], bound_ms: float, *, title: str | None = None) -> Figure:
    """Draw the plans that trade memory for time: steps down to the lower bound.

    Filled marks fit on the devices, hollow ones need host memory. The numbers beside a mark
    are its iteration time and its warm-up.
    """
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots()
    peaks = [point.peak for point in points]
    times = [point.iteration_ms for point in points]
    axes.step([*peaks, peaks[-1] + 1], [*times, times[-1]], where="post", color=MUTED, linewidth=1)
    axes.axhline(bound_ms, color=INK, linewidth=1, linestyle="--")
    axes.annotate(
        f"lower bound {bound_ms:g} ms",
        (peaks[0], bound_ms),
        xytext=(0, -12),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )
    colour = KIND_COLOURS["F"]
    for point in points:
        fill = colour if not point.host else "white"
        axes.plot(
            point.peak, point.iteration_ms, "o", ms=8, mfc=fill, mec=colour, mew=1.6, zorder=3
        )
        axes.annotate(
            f"{point.iteration_ms:.4g} ms\n{' '.join(map(str, point.warmup))}",
            (point.peak, point.iteration_ms),
            xytext=(8, 4),
            textcoords="offset points",
            color=INK,
            fontsize=8,
        )
    axes.set_xlabel("most activations that a device holds (hollow: partly on its host)", color=INK)
    axes.set_ylabel("iteration (ms)", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(peaks[0] - 0.5, peaks[-1] + 1)
    axes.set_ylim(bottom=0, top=max(times) * 1.15)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=11)
    return figure
