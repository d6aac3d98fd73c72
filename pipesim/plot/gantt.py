"""Gantt charts of timelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from pipesim.plot._style import INK, KIND_COLOURS, mark_end, stacked
from pipesim.scenario import KINDS, Array, Kind
from pipesim.timeline import OpSpan, PathKind, Timeline

__all__ = ["gantt"]

SMALLEST_PT = 4.0
"""Numbers that would be smaller than this are left out."""

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
    figure, panels = stacked(timelines, title, legend, row_in=0.46)
    for axes, timeline in zip(panels, timelines.values(), strict=True):
        _draw_comm(axes, timeline)
        _draw_compute(axes, timeline)
        mark_end(axes, timeline)
    return figure


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
