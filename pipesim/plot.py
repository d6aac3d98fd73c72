"""Figures from timelines: Gantt charts, and activations over time.

Figures are made with matplotlib's object interface: no display, no global state, safe in
any process. A notebook shows one when it is the value of a cell.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from pipesim.errors import FormatError, PipesimError
from pipesim.files import write_bytes
from pipesim.scenario import KINDS, Array, Kind
from pipesim.timeline import OpSpan, PathKind, Timeline

__all__ = ["gantt", "in_flight", "save"]

WIDTH_IN = 12.0
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN = 0.85, 0.15, 0.38, 0.5
TITLE_IN, LEGEND_IN = 0.36, 0.22
VALUE_IN = 0.95
"""Room inside the axes, right of the longest timeline, for its value."""

SMALLEST_PT = 4.0
"""Numbers that would be smaller than this are left out."""

INK, MUTED, GRID = "#222222", "#6B7280", "#E5E7EB"

KIND_COLOURS: dict[Kind, str] = {"F": "#77AADD", "B": "#EE8866", "W": "#66C2A5", "BW": "#E3B35A"}
"""After Paul Tol's light scheme: for every type of colour vision, and under black text."""
KIND_NAMES: dict[Kind, str] = {
    "F": "F  forward",
    "B": "B  backward, input",
    "W": "W  backward, weight",
    "BW": "BW  backward, fused",
}


class _Look(NamedTuple):
    """How one step of a message is drawn: lane is (bottom, height) in a device's row."""

    name: str
    colour: str
    lane: tuple[float, float]
    hatch: str | None = None

    def style(self) -> dict[str, Any]:
        return {"facecolor": self.colour, "edgecolor": INK, "hatch": self.hatch, "linewidth": 0}


# A device's row is one unit high: compute above, communication in a strip below.
COMPUTE_LANE = (0.34, 0.60)
COMM_LOOKS: dict[PathKind, _Look] = {
    "wire": _Look("in flight", "#9CA3AF", (0.10, 0.05)),
    "busy": _Look("busy kernel (injected delay)", "#882255", (0.12, 0.18)),
    "kernel": _Look("communication kernel (holds its stream)", "#E5E7EB", (0.12, 0.18), "//////"),
    "copy-out": _Look("copy to host", "#332288", (0.25, 0.06)),
    "delegate": _Look("delegated send", "#AA4499", (0.17, 0.06)),
    "copy-in": _Look("copy to device", "#88CCEE", (0.09, 0.06)),
}


def gantt(timelines: Mapping[str, Timeline], *, title: str | None = None) -> Figure:
    """Draw one Gantt chart for each timeline, stacked over one time axis.

    A row is a device. Its operators carry their micro-batch where it fits; later chunks of
    a device with several stages are lighter. Below them runs the device's communication:
    *wires* are thin and block nobody, *busy* and blocked *kernels* are thick and hold their
    stream. A line marks the iteration time.

    Parameters
    ----------
    timelines : mapping of str to Timeline
        What to compare, by the name to print; drawn in that order. Times are counted from
        the first start of each.
    title : str, optional
        Title of the figure.

    Returns
    -------
    Figure
        With one axes for each timeline. In each, the collection with the gid
        ``operators`` holds one box for each operator.

    Raises
    ------
    PipesimError
        ``timelines`` is empty.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario()
    >>> plans = {name: pipesim.plan(scenario, name) for name in ("1f1b", "zerobubble")}
    >>> figure = gantt({name: pipesim.simulate(scenario, p) for name, p in plans.items()})
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['1f1b', 'zerobubble']
    """
    legend = [[*_kind_patches(timelines), *_chunk_patches(timelines)], _comm_patches(timelines)]
    figure, panels = _stacked(timelines, title, legend, row_in=0.46)
    for axes, timeline in zip(panels, timelines.values(), strict=True):
        _draw_comm(axes, timeline)
        _draw_compute(axes, timeline)
        _mark_end(axes, timeline)
    return figure


def in_flight(timelines: Mapping[str, Timeline], *, title: str | None = None) -> Figure:
    """Draw the activations that each device holds over time, one row a device.

    All rows have one scale. A dashed line is the device's limit where it has one; what is
    held above it lives in host memory.

    Parameters, returns and errors as for :func:`gantt`.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario(activation_limit=4)
    >>> timeline = pipesim.simulate(scenario, pipesim.plan(scenario, "1f1b"))
    >>> len(in_flight({"1F1B": timeline}).axes)
    1
    """
    figure, panels = _stacked(timelines, title, [_held_patches(timelines)], row_in=0.5)
    top = max(
        max(float(t.peak_activations.max()), float(_finite(_limits(t)).max(initial=1.0)))
        for t in timelines.values()
    )
    for axes, timeline in zip(panels, timelines.values(), strict=True):
        for device, limit in enumerate(_limits(timeline)):
            _draw_held(axes, timeline, device, limit, 0.82 / top)
        _mark_end(axes, timeline)
    return figure


# -- the sheet: panels that share one time axis --------------------------------------------


def _stacked(
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


def _mark_end(axes: Axes, timeline: Timeline) -> None:
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


# -- Gantt charts ------------------------------------------------------------------------


def _boxes(starts: Array, ends: Array, bottoms: Array, height: float) -> Array:
    """Corners of rectangles, shape [n, 4, 2]; rows grow downwards."""
    tops = bottoms - height
    x = np.stack([starts, ends, ends, starts], axis=1)
    y = np.stack([bottoms, bottoms, tops, tops], axis=1)
    return np.stack([x, y], axis=2)


def _draw_compute(axes: Axes, timeline: Timeline) -> None:
    spans = [(device, span) for device, spans in enumerate(timeline.compute) for span in spans]
    bottom, height = COMPUTE_LANE
    starts = np.array([span.start_ms for _, span in spans]) - timeline.start_ms
    ends = np.array([span.end_ms for _, span in spans]) - timeline.start_ms
    bottoms = np.array([device + 1 - bottom for device, _ in spans])
    columns, rows = _points(axes)
    widths = (ends - starts) * columns
    boxes = PolyCollection(
        list(_boxes(starts, ends, bottoms, height)),
        facecolors=[_shade(span, timeline) for _, span in spans],
        edgecolors="white",
        # A white edge parts the boxes, unless they are so small that it would bury them.
        linewidths=np.clip(widths / 10, 0.0, 0.7),
        gid="operators",
        zorder=2,
    )
    axes.add_collection(boxes, autolim=False)
    # One size for one width: that of the longest number.
    digits = len(str(timeline.scenario.microbatches - 1))
    sizes = np.minimum(min(8.5, rows * height * 0.6), widths * 0.85 / (0.62 * digits))
    for index in np.flatnonzero(sizes >= SMALLEST_PT):
        axes.text(
            (starts[index] + ends[index]) / 2, bottoms[index] - height / 2,
            str(spans[index][1].op.microbatch), fontsize=sizes[index], color=INK,
            ha="center", va="center_baseline", clip_on=True, zorder=3,
        )  # fmt: skip


def _shade(span: OpSpan, timeline: Timeline) -> tuple[float, float, float]:
    """Return the colour of its kind, lighter for each later chunk of the device."""
    stage = span.op.stage
    chunks = timeline.scenario.stages_of[timeline.scenario.placement[stage]]
    return _lighter(KIND_COLOURS[span.op.kind], chunks.index(stage), len(chunks))


def _lighter(colour: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    white = 0.62 * chunk / max(chunks - 1, 1)
    red, green, blue = (white + (1 - white) * part for part in to_rgb(colour))
    return red, green, blue


def _points(axes: Axes) -> tuple[float, float]:
    """Points for each millisecond, and for each row."""
    figure = axes.figure
    box = axes.get_position()
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert isinstance(figure, Figure)
    return (
        72 * figure.get_figwidth() * box.width / (right - left),
        72 * figure.get_figheight() * box.height / abs(bottom - top),
    )


def _draw_comm(axes: Axes, timeline: Timeline) -> None:
    """Draw each sort of step as one shape: a hatched shape costs the same however long."""
    for path, look in COMM_LOOKS.items():
        spans = [span for span in timeline.comm if span.path == path]
        if not spans:
            continue
        starts = np.array([span.start_ms for span in spans]) - timeline.start_ms
        ends = np.array([span.end_ms for span in spans]) - timeline.start_ms
        bottoms = np.array([span.device + 1 - look.lane[0] for span in spans])
        corners = _boxes(starts, ends, bottoms, look.lane[1])
        closed = np.concatenate([corners, corners[:, :1]], axis=1).reshape(-1, 2)
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(spans)
        shape = PathPatch(Path(closed, codes), gid=path, zorder=2, **look.style())
        axes.add_artist(shape)


def _kind_patches(timelines: Mapping[str, Timeline]) -> list[Artist]:
    used = {span.op.kind for t in timelines.values() for device in t.compute for span in device}
    return [Patch(facecolor=KIND_COLOURS[k], label=KIND_NAMES[k]) for k in KINDS if k in used]


def _chunk_patches(timelines: Mapping[str, Timeline]) -> list[Artist]:
    placed = (stages for t in timelines.values() for stages in t.scenario.stages_of)
    chunks = max(map(len, placed), default=1)
    if chunks == 1:
        return []
    return [
        Patch(facecolor=_lighter("#777777", chunk, chunks), label=f"chunk {chunk}")
        for chunk in range(chunks)
    ]


def _comm_patches(timelines: Mapping[str, Timeline]) -> list[Artist]:
    used = {span.path for t in timelines.values() for span in t.comm}
    return [
        Patch(label=look.name, **look.style()) for path, look in COMM_LOOKS.items() if path in used
    ]


# -- activations over time ---------------------------------------------------------------

HELD, HOSTED = "#77AADD", "#EE8866"


def _held_patches(timelines: Mapping[str, Timeline]) -> list[Artist]:
    handles: list[Artist] = [Patch(facecolor=HELD, label="activations held (stage × micro-batch)")]
    if any(_finite(_limits(t)).size for t in timelines.values()):
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1, label="limit"))
    if any(t.peak_host_activations.any() for t in timelines.values()):
        handles.append(Patch(facecolor=HOSTED, label="above the limit: on the host"))
    return handles


def _limits(timeline: Timeline) -> Array:
    return np.asarray(timeline.scenario.activation_limit)


def _finite(values: Array) -> Array:
    return values[np.isfinite(values)]


def _draw_held(axes: Axes, timeline: Timeline, device: int, limit: float, scale: float) -> None:
    """Draw one device's activations as a filled step function standing on its row."""
    times, held = timeline.in_flight(device)
    x = np.concatenate([[0.0], times - timeline.start_ms, [timeline.iteration_ms]])
    steps = np.concatenate([[0.0], held, held[-1:]])
    floor = device + 1.0
    own = np.minimum(steps, limit)
    axes.fill_between(x, floor, floor - own * scale, step="post", color=HELD, lw=0)
    if (steps > limit).any():
        axes.fill_between(
            x, floor - own * scale, floor - steps * scale,
            step="post", color=HOSTED, lw=0,
        )  # fmt: skip
    axes.step(x, floor - steps * scale, where="post", color=INK, linewidth=0.9, gid="held")
    if np.isfinite(limit):
        axes.hlines(
            floor - limit * scale, 0, timeline.iteration_ms,
            colors=INK, linestyles="--", linewidth=1.0, gid="limit",
        )  # fmt: skip
    peak = int(steps.argmax())
    axes.annotate(
        f"{steps[peak]:g}", (x[peak], floor - steps[peak] * scale), xytext=(3, 1),
        textcoords="offset points", fontsize=8, va="bottom", color=INK,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )  # fmt: skip


# -- files -------------------------------------------------------------------------------

# What matplotlib would write of the day and its own version.
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
    ending = FilePath(path).suffix.lower()
    if ending not in _ANONYMOUS:
        raise FormatError(
            f"unknown ending {ending!r}: one of {', '.join(_ANONYMOUS)}", file=os.fspath(path)
        )
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "pipesim"}):
        figure.savefig(drawn, format=ending[1:], dpi=dpi, metadata=_ANONYMOUS[ending])
    write_bytes(path, drawn.getvalue())
