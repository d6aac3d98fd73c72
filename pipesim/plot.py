"""Figures from timelines: Gantt charts, and activations over time.

Figures are made with matplotlib's object interface: no display, no global state, safe in
any process. A notebook shows one when it is the value of a cell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipesim.errors import FormatError, PipesimError
from pipesim.scenario import KINDS, Array, Kind
from pipesim.timeline import CommSpan, OpSpan, Timeline
from pipesim.timeline import Path as Way

__all__ = ["gantt", "in_flight", "save"]

WIDTH_IN = 12.0
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN, LEGEND_IN = 0.85, 0.15, 0.38, 0.5, 0.4
VALUE_IN = 0.85
"""Room inside the axes, right of the longest timeline, for its value."""

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


# A device's row is one unit high: compute above, communication in a strip below.
COMPUTE_LANE = (0.34, 0.60)
COMM_LOOKS: dict[Way, _Look] = {
    "wire": _Look("in flight", "#9CA3AF", (0.10, 0.05)),
    "busy": _Look("injected delay (busy kernel)", "#882255", (0.12, 0.18)),
    "kernel": _Look(
        "transfer kernel, blocked until both ends run", "#DDCC77", (0.12, 0.18), "/////"
    ),
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
    """
    figure, panels = _stacked(timelines, title, row_in=0.46)
    for axes, timeline in zip(panels, timelines.values(), strict=True):
        _draw_comm(axes, timeline)
        _draw_compute(axes, timeline)
        _mark_end(axes, timeline)
    _legend(
        figure, [*_kind_patches(timelines), *_chunk_patches(timelines), *_comm_patches(timelines)]
    )
    return figure


def in_flight(timelines: Mapping[str, Timeline], *, title: str | None = None) -> Figure:
    """Draw the activations that each device holds over time, one row a device.

    All rows have one scale. A dashed line is the device's limit where it has one; what is
    held above it lives in host memory.

    Parameters, returns and errors as for :func:`gantt`.
    """
    figure, panels = _stacked(timelines, title, row_in=0.5)
    top = max(
        max(float(t.peak_activations.max()), float(_finite(_limits(t)).max(initial=1.0)))
        for t in timelines.values()
    )
    for axes, timeline in zip(panels, timelines.values(), strict=True):
        for device, limit in enumerate(_limits(timeline)):
            _draw_held(axes, timeline, device, limit, 0.82 / top)
        _mark_end(axes, timeline)
    limited = [_finite(_limits(t)) for t in timelines.values()]
    handles: list[Patch] = [Patch(facecolor=HELD, label="activations held (stage × micro-batch)")]
    if any(limits.size for limits in limited):
        handles.append(Patch(facecolor="none", edgecolor=INK, linestyle="--", label="limit"))
    if any(t.peak_host_activations.any() for t in timelines.values()):
        handles.append(Patch(facecolor=HOSTED, label="above the limit: on the host"))
    _legend(figure, handles)
    return figure


# -- the sheet: panels that share one time axis --------------------------------------------


def _stacked(
    timelines: Mapping[str, Timeline], title: str | None, *, row_in: float
) -> tuple[Figure, list[Axes]]:
    """Lay out one panel for each timeline; sizes are fixed in inches, so text fits boxes."""
    if not timelines:
        raise PipesimError("nothing to draw: no timeline was given")
    rows = [len(timeline.compute) for timeline in timelines.values()]
    row_in = min(row_in, max(0.2, 30 / sum(rows)))
    head_in = LEGEND_IN + (0.35 if title else 0.0)
    height_in = head_in + sum(TOP_IN + row_in * count for count in rows) + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    if title:
        figure.text(
            LEFT_IN / WIDTH_IN, 1 - 0.12 / height_in, title,
            ha="left", va="top", fontsize=13, fontweight="bold", color=INK,
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
    """Mark the iteration time with a line and its value."""
    end = timeline.iteration_ms
    axes.axvline(end, color=INK, linewidth=1.3, zorder=4)
    axes.annotate(
        f"{end:.4g} ms", (end, 0.5), xycoords=("data", "axes fraction"), xytext=(5, 0),
        textcoords="offset points", va="center", fontsize=11, fontweight="bold", color=INK,
    )  # fmt: skip


def _legend(figure: Figure, handles: Sequence[Patch]) -> None:
    top = 1 - (0.4 if len(figure.texts) else 0.05) / figure.get_figheight()
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(LEFT_IN / WIDTH_IN, top),
        ncols=len(handles), frameon=False, fontsize=8.5, labelcolor=INK, borderaxespad=0,
        borderpad=0, handlelength=1.4, handletextpad=0.5, columnspacing=1.3,
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
    per_ms = _points(axes)[0]
    widths = (ends - starts) * per_ms
    boxes = PolyCollection(
        _boxes(starts, ends, bottoms, height),
        facecolors=[_shade(span, timeline) for _, span in spans],
        edgecolors="white",
        # A white edge parts the boxes, unless they are so small that it would bury them.
        linewidths=np.clip(widths / 10, 0.0, 0.7),
        gid="operators",
        zorder=2,
    )
    axes.add_collection(boxes, autolim=False)
    _number(axes, [span for _, span in spans], (starts + ends) / 2, bottoms - height / 2, widths)


def _shade(span: OpSpan, timeline: Timeline) -> tuple[float, ...]:
    """Return the colour of its kind, lighter for each later chunk of the device."""
    stage = span.op.stage
    chunks = timeline.scenario.stages_of[timeline.scenario.placement[stage]]
    return _lighter(KIND_COLOURS[span.op.kind], chunks.index(stage), len(chunks))


def _lighter(colour: str, chunk: int, chunks: int) -> tuple[float, ...]:
    white = 0.62 * chunk / max(chunks - 1, 1)
    return tuple(white + (1 - white) * part for part in to_rgb(colour))


def _number(axes: Axes, spans: Sequence[OpSpan], x: Array, y: Array, widths: Array) -> None:
    """Write micro-batch numbers, as large as their boxes allow, where that can be read."""
    tallest = _points(axes)[1] * COMPUTE_LANE[1] * 0.6
    for span, at_x, at_y, width in zip(spans, x, y, widths, strict=True):
        text = str(span.op.microbatch)
        size = min(8.5, tallest, width * 0.85 / (0.62 * len(text)))
        if size >= 4:
            axes.text(
                at_x, at_y, text, fontsize=size, color=INK, clip_on=True,
                ha="center", va="center_baseline", zorder=3,
            )  # fmt: skip


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
    for path, look in COMM_LOOKS.items():
        spans = [span for span in timeline.comm if span.path == path]
        if not spans:
            continue
        starts = np.array([span.start_ms for span in spans]) - timeline.start_ms
        ends = np.array([span.end_ms for span in spans]) - timeline.start_ms
        bottoms = np.array([span.device + 1 - look.lane[0] for span in spans])
        axes.add_collection(
            PolyCollection(
                _boxes(starts, ends, bottoms, look.lane[1]),
                facecolors=look.colour,
                edgecolors=INK if look.hatch else "none",
                linewidths=0.0,
                hatch=look.hatch,
                gid=path,
                zorder=2,
            ),
            autolim=False,
        )


def _kind_patches(timelines: Mapping[str, Timeline]) -> list[Patch]:
    used = {span.op.kind for t in timelines.values() for device in t.compute for span in device}
    return [Patch(facecolor=KIND_COLOURS[k], label=KIND_NAMES[k]) for k in KINDS if k in used]


def _chunk_patches(timelines: Mapping[str, Timeline]) -> list[Patch]:
    chunks = max(len(stages) for t in timelines.values() for stages in t.scenario.stages_of)
    if chunks == 1:
        return []
    return [
        Patch(facecolor=_lighter("#777777", chunk, chunks), label=f"chunk {chunk}")
        for chunk in range(chunks)
    ]


def _comm_patches(timelines: Mapping[str, Timeline]) -> list[Patch]:
    used = {span.path for t in timelines.values() for span in t.comm}
    return [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor=INK, linewidth=0, label=look.name)
        for path, look in COMM_LOOKS.items()
        if path in used
    ]


# -- activations over time ---------------------------------------------------------------

HELD, HOSTED = "#77AADD", "#EE8866"


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
    axes.fill_between(x, floor, floor - own * scale, step="post", color=HELD, alpha=0.55, lw=0)
    if (steps > limit).any():
        axes.fill_between(
            x, floor - own * scale, floor - steps * scale,
            step="post", color=HOSTED, alpha=0.7, lw=0,
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
    """
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in _ANONYMOUS:
        raise FormatError(
            f"unknown ending {target.suffix!r}: one of {', '.join(_ANONYMOUS)}", file=str(path)
        )
    try:
        with _beside(target) as partial, mpl.rc_context({"svg.hashsalt": "pipesim"}):
            figure.savefig(partial, format=ending[1:], dpi=dpi, metadata=_ANONYMOUS[ending])
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=str(path)) from None


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a file beside ``target`` that takes its place if all goes well."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
