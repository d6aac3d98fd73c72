"""The visual language that all figures share: colours, type, sheets, and how they are saved.

Figures are made with matplotlib's object interface: no display, no global state, safe in
any process. A notebook shows one when it is the value of a cell.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipesim.errors import FormatError, PipesimError
from pipesim.files import write_bytes
from pipesim.scenario import Kind
from pipesim.timeline import Timeline

__all__ = [
    "GRID",
    "INK",
    "KIND_COLOURS",
    "MUTED",
    "TITLE_IN",
    "WIDTH_IN",
    "mark_end",
    "save",
    "stacked",
]

WIDTH_IN = 12.0
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN = 0.85, 0.15, 0.38, 0.5
TITLE_IN, LEGEND_IN = 0.36, 0.22
VALUE_IN = 0.95
"""Room inside the axes, right of the longest timeline, for its value."""

INK, MUTED, GRID = "#222222", "#6B7280", "#E5E7EB"

KIND_COLOURS: dict[Kind, str] = {"F": "#77AADD", "B": "#EE8866", "W": "#66C2A5", "BW": "#E3B35A"}
"""After Paul Tol's light scheme: for every type of colour vision, and under black text."""


def stacked(
    timelines: Mapping[str, Timeline],
    title: str | None,
    legend: Sequence[Sequence[Artist]],
    *,
    row_in: float,
) -> tuple[Figure, list[Axes]]:
    """Lay out one panel for each timeline; sizes are fixed in inches, so text fits boxes."""
    if not timelines:
        raise PipesimError("nothing to draw: no timeline was given")
    rows = [len(timeline.compute) for timeline in timelines.values()]
    row_in = min(row_in, max(0.2, 30 / sum(rows)))
    legend = [handles for handles in legend if handles]
    title_in = 0.1 + (TITLE_IN if title else 0.0)
    head_in = title_in + LEGEND_IN * len(legend)
    height_in = head_in + sum(TOP_IN + row_in * count for count in rows) + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    if title:
        figure.text(
            LEFT_IN / WIDTH_IN, 1 - 0.1 / height_in, title,
            ha="left", va="top", fontsize=13, fontweight="bold", color=INK,
        )  # fmt: skip
    for line, handles in enumerate(legend):
        figure.legend(
            handles=handles, loc="upper left", ncols=len(handles), frameon=False,
            bbox_to_anchor=(LEFT_IN / WIDTH_IN, 1 - (title_in + line * LEGEND_IN) / height_in),
            fontsize=8.5, labelcolor=INK, borderaxespad=0, borderpad=0,
            handlelength=1.4, handletextpad=0.5, columnspacing=1.5,
        )  # fmt: skip
    axes_in = WIDTH_IN - LEFT_IN - RIGHT_IN
    longest = max(timeline.iteration_ms for timeline in timelines.values()) or 1.0
    panels: list[Axes] = []
    top_in = height_in - head_in
    for name, count in zip(timelines, rows, strict=True):
        bottom_in = top_in - TOP_IN - row_in * count
        box = (
            LEFT_IN / WIDTH_IN,
            bottom_in / height_in,
            axes_in / WIDTH_IN,
            row_in * count / height_in,
        )
        axes = figure.add_axes(box, sharex=panels[0] if panels else None)
        axes.set_title(name, loc="left", fontsize=11, color=INK, pad=5)
        axes.set_ylim(count, 0)
        axes.set_yticks(np.arange(count) + 0.5, [f"device {d}" for d in range(count)])
        axes.tick_params(length=0, labelsize=9, labelcolor=MUTED)
        axes.tick_params(axis="x", labelbottom=len(panels) == len(rows) - 1)
        axes.set_axisbelow(True)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        axes.hlines(np.arange(count + 1), 0, 1, GRID, transform=axes.get_yaxis_transform(), lw=0.8)
        axes.spines[:].set_visible(False)
        panels.append(axes)
        top_in = bottom_in
    panels[0].set_xlim(0, longest * axes_in / (axes_in - VALUE_IN))
    panels[-1].set_xlabel("time (ms)", fontsize=10, color=MUTED)
    return figure, panels


def mark_end(axes: Axes, timeline: Timeline) -> None:
    """Mark the iteration time with a line and its value, and the part of it that is idle."""
    end = timeline.iteration_ms
    axes.axvline(end, color=INK, linewidth=1.3, zorder=4, gid="iteration")
    value = f"{end:,.1f}".removesuffix(".0") + " ms"
    idle = f"{timeline.bubble_fraction:.0%} idle"
    lines: list[tuple[str, int, dict[str, Any]]] = [
        (value, 6, {"fontsize": 11, "fontweight": "bold", "color": INK}),
        (idle, -6, {"fontsize": 8.5, "color": MUTED}),
    ]
    for text, offset, style in lines:
        axes.annotate(
            text, (end, 0.5), xycoords=("data", "axes fraction"), xytext=(5, offset),
            textcoords="offset points", va="center", **style,
        )  # fmt: skip


# Without this matplotlib writes the date and its own version.
_ANONYMOUS: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: float = 150) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of ``path``.

    The same figure gives the same bytes, and the file appears whole or not at all.

    Parameters
    ----------
    figure : Figure
        Any matplotlib figure.
    path : path
        Where to; an existing file is replaced.
    dpi : float
        Dots per inch of a PNG.

    Raises
    ------
    FormatError
        The ending is another, or the file cannot be written.

    Examples
    --------
    >>> save(Figure(), "chart.gif")
    Traceback (most recent call last):
    pipesim.errors.FormatError: chart.gif: unknown ending '.gif': one of .png, .svg, .pdf
    """
    ending = Path(path).suffix.lower()
    if ending not in _ANONYMOUS:
        raise FormatError(
            f"unknown ending {ending!r}: one of {', '.join(_ANONYMOUS)}", file=os.fspath(path)
        )
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "pipesim"}):
        figure.savefig(drawn, format=ending[1:], dpi=dpi, metadata=_ANONYMOUS[ending])
    write_bytes(path, drawn.getvalue())
