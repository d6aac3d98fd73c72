"""The figure of a delay trace: each link's delay over time, and the slowest one's."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipesim.adapt.levels import Levels, slowest_levels
from pipesim.delays import DelayTrace
from pipesim.plot._style import GRID, INK, KIND_COLOURS, MUTED, TITLE_IN, WIDTH_IN
from pipesim.scenario import DOWN, UP, Array
from pipesim.text import plain

__all__ = ["over_time"]

HEALTHY, FAILED = "#F3F4F6", INK
SLOWEST = KIND_COLOURS["F"]

_SLOWEST_IN, _FRAME_IN = 1.5, 0.95
"""Heights of the slowest link's axes, and of all that is around both."""


def over_time(trace: DelayTrace, *, start: float = 0.0, title: str | None = None) -> Figure:
    """Draw the slowest link's delay over time, and below it a row for each link.

    A link whose directions differ has a row for each. Colours are in one scale, from pale to dark;
    a failed link is black.

    Parameters
    ----------
    trace : DelayTrace
        With an end.
    start : float
        What the axis of time begins with: where the trace was cut, in ms or iterations.
    title : str, optional
        Above the figure.

    Returns
    -------
    Figure
        With the axes of the slowest link, of the rows and of the scale of colours.

    Raises
    ------
    PipesimError
        The trace has no end.
    """
    levels = slowest_levels(trace)
    assert trace.end is not None
    names, rows = _rows(trace)
    unit, label = _unit(start + trace.end, trace)
    times = (start + np.clip([0.0, *trace.starts, trace.end], 0.0, None)) / unit
    rows_in = len(names) * min(0.3, max(0.16, 6 / len(names)))
    figure = Figure(
        figsize=(WIDTH_IN, _SLOWEST_IN + _FRAME_IN + (TITLE_IN if title else 0.0) + rows_in),
        facecolor="white",
        layout="constrained",
    )
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[_SLOWEST_IN, rows_in])
    _draw_slowest(above, times, rows.max(axis=0), levels)
    _draw_rows(figure, below, times, rows, names, levels.largest_ms)
    below.set_xlabel(label, color=MUTED, fontsize=10)
    below.set_xlim(times[0], times[-1])
    if title:
        above.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=10)
    return figure


def _rows(trace: DelayTrace) -> tuple[list[str], Array]:
    """Return the names of the rows, and their delays before and after each change, [rows, K+1]."""
    states = trace.states_ms
    if (states[..., DOWN] == states[..., UP]).all():
        return [f"link {link}" for link in range(trace.links)], states[..., DOWN].T
    names = [f"link {link} {way}" for link in range(trace.links) for way in ("down", "up")]
    return names, states.reshape(len(states), -1).T


def _unit(last: float, trace: DelayTrace) -> tuple[float, str]:
    """Return how many points a tick of the axis stands for, and what it is called."""
    if trace.by == "iteration":
        return 1.0, "iteration"
    for unit, name, least in ((3.6e6, "h", 3), (60e3, "min", 3), (1e3, "s", 2)):
        if last >= least * unit:
            return unit, f"time ({name})"
    return 1.0, "time (ms)"


def _draw_slowest(axes: Axes, times: Array, delay_ms: Array, levels: Levels) -> None:
    """Draw a filled step function, black up to the top where a link has failed."""
    top = 1.18 * (levels.largest_ms or 1.0)
    heights = np.append(delay_ms, delay_ms[-1])
    failed = np.isinf(heights)
    for gid, drawn, colour in (
        ("slowest", np.where(failed, 0.0, heights), SLOWEST),
        ("failed", np.where(failed, top, 0.0), FAILED),
    ):
        axes.fill_between(times, drawn, step="post", color=colour, linewidth=0, gid=gid)
    quantiles = {"median": levels.quantile(0.5), "P99": levels.quantile(0.99)}
    close = quantiles["P99"] - quantiles["median"] < 0.15 * top
    for (name, delay), where in zip(quantiles.items(), ("top", "bottom"), strict=True):
        if np.isfinite(delay):
            axes.axhline(delay, color=INK, linewidth=1.0, linestyle="--", gid=name)
            axes.annotate(
                f"{name} {plain(delay, 1)} ms", (1, delay), xycoords=("axes fraction", "data"),
                xytext=(5, 0), textcoords="offset points", va=where if close else "center",
                fontsize=9, color=INK,
            )  # fmt: skip
    axes.set_ylim(0, top)
    axes.set_ylabel("slowest (ms)", color=MUTED, fontsize=10)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=MUTED)
    axes.spines[:].set_visible(False)


def _draw_rows(
    figure: Figure, axes: Axes, times: Array, rows: Array, names: list[str], largest_ms: float
) -> None:
    edges = np.arange(len(names) + 1)
    axes.set_facecolor(HEALTHY)
    mesh = axes.pcolormesh(
        times, edges, np.ma.masked_where((rows == 0) | np.isinf(rows), rows),
        cmap=_scale(), norm=Normalize(0, largest_ms or 1.0), linewidth=0, gid="delays",
    )  # fmt: skip
    axes.pcolormesh(
        times, edges, np.ma.masked_where(~np.isinf(rows), np.ones_like(rows)),
        cmap=ListedColormap([FAILED]), linewidth=0, gid="failed",
    )  # fmt: skip
    axes.hlines(edges, times[0], times[-1], "white", linewidth=1.5)
    axes.set_ylim(len(names), 0)
    axes.set_yticks(edges[:-1] + 0.5, names)
    axes.tick_params(length=0, labelsize=9, labelcolor=MUTED)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, cax=axes.inset_axes((1.008, 0, 0.012, 1)))
    bar.set_label("delay (ms)", color=MUTED, fontsize=9)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    bar.outline.set_visible(False)
    handles: list[Artist] = [Patch(facecolor=HEALTHY, edgecolor=GRID, label="no delay")]
    if np.isinf(rows).any():
        handles.append(Patch(facecolor=FAILED, label="failed"))
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False,
        fontsize=8.5, labelcolor=INK, borderaxespad=0.2, handlelength=1.2,
    )  # fmt: skip


def _scale() -> Colormap:
    """Paler is less delay; even the least is darker than none."""
    colours = mpl.colormaps["YlOrBr"](np.linspace(0.2, 1.0, 256))
    return ListedColormap(colours)
