"""Activations over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from pipesim.plot._style import INK, mark_end, stacked
from pipesim.scenario import Array
from pipesim.timeline import Timeline

__all__ = ["in_flight"]

HELD, HOSTED = "#77AADD", "#EE8866"


def in_flight(timelines: Mapping[str, Timeline], *, title: str | None = None) -> Figure:
    """Draw the activations that each device holds over time, one row a device.

    All rows have one scale, on which 1 is a micro-batch through all stages of the device. A dashed
    line is the device's limit where it has one; what is held above it lives in host memory.

    Parameters, returns and errors as for :func:`.gantt.gantt`.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario(activation_limit=4)
    >>> timeline = pipesim.simulate(scenario, pipesim.plan(scenario, "1f1b"))
    >>> len(in_flight({"1F1B": timeline}).axes)
    1
    """
    figure, panels = stacked(timelines, title, [_held_patches(timelines)], row_in=0.5)
    top = max(
        max(_in_micro_batches(t, t.peak_activations).max(), _finite(_limits(t)).max(initial=1.0))
        for t in timelines.values()
    )
    for axes, timeline in zip(panels, timelines.values(), strict=True):
        for device, limit in enumerate(_limits(timeline)):
            _draw_held(axes, timeline, device, limit, 0.82 / top)
        mark_end(axes, timeline)
    return figure


def _held_patches(timelines: Mapping[str, Timeline]) -> list[Artist]:
    handles: list[Artist] = [Patch(facecolor=HELD, label="activations held (micro-batches)")]
    if any(_finite(_limits(t)).size for t in timelines.values()):
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1, label="limit"))
    if any(t.peak_host_activations.any() for t in timelines.values()):
        handles.append(Patch(facecolor=HOSTED, label="above the limit: on the host"))
    return handles


def _limits(timeline: Timeline) -> Array:
    return _in_micro_batches(timeline, timeline.scenario.activation_limit)


def _in_micro_batches(timeline: Timeline, activations: Array) -> Array:
    return timeline.scenario.in_micro_batches(activations)


def _finite(values: Array) -> Array:
    return values[np.isfinite(values)]


def _draw_held(axes: Axes, timeline: Timeline, device: int, limit: float, scale: float) -> None:
    """Draw one device's activations as a filled step function standing on its row."""
    times, held = timeline.in_flight(device)
    held = held / len(timeline.scenario.stages_of[device])
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
