"""The figure of an attribution: one bar of what an iteration consists of, and what-if bars.

Like all figures it only draws: an attribution holds what the engine measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from pipesim.explain.causes import Attribution, CauseName
from pipesim.explain.diagnosis import Line, lines
from pipesim.plot._style import GRID, INK, MUTED, TITLE_IN, WIDTH_IN
from pipesim.text import decimals

__all__ = ["CAUSE_COLOURS", "bars"]

CAUSE_COLOURS: dict[CauseName, str] = {
    "hol": "#882255",
    "dependency": "#CC6677",
    "slow operators": "#EE8866",
    "stage imbalance": "#E3B35A",
    "micro-batch variation": "#66C2A5",
    "transport": "#77AADD",
    "warm-up and drain": "#D5DAE1",
    "work": "#A9B4C2",
}
"""Causes that can be removed are in colours after Paul Tol, what remains is in greys."""

LEFT_IN, RIGHT_IN = 2.75, 0.3
HEAD_IN, STACK_IN, LEGEND_IN, GAP_IN, ROW_IN, BOTTOM_IN = 0.42, 0.62, 0.5, 0.38, 0.27, 0.5
CHARACTER_IN = 0.078
"""Width of one character of a value inside the stacked bar."""

SMALLEST = 1e-6
"""Of the iteration: a part below is not drawn."""
LEAST = 0.05
"""Of the iteration: the axis of removals is at least this long."""


@dataclass(frozen=True)
class _Values:
    """Times in text, as exact as one inside the iteration needs to be."""

    found: Attribution

    def value(self, time_ms: float) -> str:
        """A time in milliseconds."""
        digits = max(decimals(self.found.iteration_ms) - 1, 0)
        text = f"{time_ms:,.{digits}f}".replace("-", "−")
        return text if text.strip("−0.") else "0"

    def share(self, time_ms: float) -> str:
        """The same as a percentage of the iteration."""
        text = f"{100 * self.found.fraction(time_ms):.1f}".replace("-", "−")
        return f"{text if text.strip('−0.') else 0} %"


def bars(found: Attribution, *, title: str | None = None) -> Figure:
    """Draw an attribution.

    Above, one stacked bar is the iteration: the parts of the cumulative decomposition, work
    first, so that it grows from left to right from the healthy, balanced pipeline to the
    iteration as it is. A part below zero is hatched: by this much the others are too
    long. Below, one bar for each cause, and thinner ones for links, stages and operators,
    shows what its removal alone would gain.

    Parameters
    ----------
    found : Attribution
        What to draw.
    title : str, optional
        Title of the figure.

    Returns
    -------
    Figure
        With two axes. Bars have the gid of their cause.

    Examples
    --------
    >>> import pipesim
    >>> from pipesim.explain.attribution import attribute
    >>> scenario = pipesim.Scenario().with_delay(20, links=[0])
    >>> found = attribute(scenario, pipesim.plan(scenario, "zerobubble"), "nccl")
    >>> [bar.get_gid() for bar in bars(found).axes[0].patches]
    ['work', 'warm-up and drain', 'dependency', 'hol']
    """
    rows = [line for line in lines(found) if line.removal_ms is not None]
    head_in = HEAD_IN + (TITLE_IN if title else 0.0)
    below_in = ROW_IN * len(rows)
    height_in = head_in + STACK_IN + LEGEND_IN + GAP_IN + below_in + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    if title:
        figure.text(
            0.1 / WIDTH_IN, 1 - 0.1 / height_in, title,
            ha="left", va="top", fontsize=13, fontweight="bold", color=INK,
        )  # fmt: skip

    def panel(top_in: float, tall_in: float) -> Axes:
        axes_in = WIDTH_IN - LEFT_IN - RIGHT_IN
        box = (
            LEFT_IN / WIDTH_IN,
            1 - (top_in + tall_in) / height_in,
            axes_in / WIDTH_IN,
            tall_in / height_in,
        )
        axes = figure.add_axes(box)
        axes.tick_params(length=0, labelsize=9, labelcolor=MUTED)
        axes.spines[:].set_visible(False)
        return axes

    values = _Values(found)
    _draw_stack(panel(head_in, STACK_IN), values)
    _draw_legend(figure, found, 1 - (head_in + STACK_IN + 0.1) / height_in)
    _draw_removals(panel(head_in + STACK_IN + LEGEND_IN + GAP_IN, below_in), values, rows)
    return figure


# -- what the iteration consists of --------------------------------------------------------


def _draw_stack(axes: Axes, values: _Values) -> None:
    found = values.found
    end = sum(max(cause.cumulative_ms, 0.0) for cause in found.causes) or 1.0
    scale = (WIDTH_IN - LEFT_IN - RIGHT_IN) / end
    axes.set_xlim(0, end)
    axes.set_ylim(1, 0)
    axes.set_yticks([0.5], ["the iteration,\ncauses in order"])
    axes.tick_params(axis="y", labelsize=9.5, labelcolor=INK)
    axes.set_xticks([])
    left = 0.0
    for cause in reversed(found.causes):
        part = cause.cumulative_ms
        if part <= SMALLEST * found.iteration_ms:
            continue
        axes.barh(
            0.5, part, 1.0, left, color=CAUSE_COLOURS[cause.name], edgecolor="white",
            linewidth=0.8, zorder=2,
        )[0].set_gid(cause.name)  # fmt: skip
        dark = sum(to_rgb(CAUSE_COLOURS[cause.name])) < 1.4
        texts = [values.value(part), values.share(part)]
        if max(map(len, texts)) * CHARACTER_IN < part * scale:
            axes.text(
                left + part / 2, 0.5, "\n".join(texts), fontsize=9, ha="center", va="center",
                color="white" if dark else INK, linespacing=1.35, zorder=3,
            )  # fmt: skip
        left += part
    for cause in found.causes:
        part = cause.cumulative_ms
        if part >= -SMALLEST * found.iteration_ms:
            continue
        axes.barh(
            0.5, part, 1.0, left, facecolor=(1, 1, 1, 0.8), edgecolor=CAUSE_COLOURS[cause.name],
            hatch="//////", linewidth=0.0, zorder=3,
        )[0].set_gid(cause.name)  # fmt: skip
        left += part
    _mark(axes, values, scale)


def _mark(axes: Axes, values: _Values, scale: float) -> None:
    """Mark the iteration time, and the time of the healthy, balanced pipeline."""
    found = values.found
    close = (found.iteration_ms - found.ideal_ms) * scale < 2.2
    slowdown = f"  ({found.slowdown:.2f}×)" if found.slowdown is not None else ""
    axes.plot([found.iteration_ms] * 2, [-0.12, 1.0], color=INK, lw=1.6, clip_on=False, zorder=5)
    axes.annotate(
        f"{values.value(found.iteration_ms)} ms{slowdown}", (found.iteration_ms, 0),
        xytext=(2, 9), textcoords="offset points", ha="right", va="bottom",
        fontsize=11, fontweight="bold", color=INK,
    )  # fmt: skip
    if found.iteration_ms - found.ideal_ms <= SMALLEST * found.iteration_ms:
        return
    axes.plot(
        [found.ideal_ms] * 2, [-0.12, 1.0], color=INK, lw=1.0, ls=":", clip_on=False, zorder=5
    )
    axes.annotate(
        f"healthy and balanced: {values.value(found.ideal_ms)} ms",
        (0 if close else found.ideal_ms, 0), xytext=(0 if close else 2, 9),
        textcoords="offset points", ha="left" if close else "right", va="bottom",
        fontsize=9.5, color=MUTED,
    )  # fmt: skip


def _draw_legend(figure: Figure, found: Attribution, top: float) -> None:
    drawn = [
        line
        for line in reversed(lines(found))
        if abs(line.cumulative_ms or 0.0) > SMALLEST * found.iteration_ms
    ]
    figure.legend(
        handles=[Patch(facecolor=CAUSE_COLOURS[line.cause], label=line.label) for line in drawn],
        loc="upper left", ncols=4, frameon=False, bbox_to_anchor=(LEFT_IN / WIDTH_IN, top),
        fontsize=8.5, labelcolor=INK, borderaxespad=0, borderpad=0,
        handlelength=1.4, handletextpad=0.5, columnspacing=1.5,
    )  # fmt: skip


# -- what one removal alone gains ----------------------------------------------------------


def _draw_removals(axes: Axes, values: _Values, rows: Sequence[Line]) -> None:
    gains = [row.removal_ms or 0.0 for row in rows]
    low, high = min(0.0, *gains), max(LEAST * values.found.iteration_ms, *gains) or 1.0
    # Room for a value beyond the end of its bar.
    room = 0.16 * (high - low)
    axes.set_xlim(low - room if low < 0 else 0.0, high + room)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [row.label for row in rows])
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_fontsize(8.5 if row.is_part else 9.5)
        tick.set_color(MUTED if row.is_part else INK)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.axvline(0, color=MUTED, linewidth=1.0, zorder=1)
    axes.set_title(
        "shorter by this much if one cause alone is removed (these need not add up)",
        loc="left", fontsize=9.5, color=MUTED, pad=7,
    )  # fmt: skip
    for position, (row, gain) in enumerate(zip(rows, gains, strict=True)):
        axes.barh(
            position + 0.5, gain, 0.42 if row.is_part else 0.7,
            color=CAUSE_COLOURS[row.cause], alpha=0.6 if row.is_part else 1.0, zorder=2,
        )[0].set_gid(row.cause)  # fmt: skip
        noted = abs(gain) > SMALLEST * values.found.iteration_ms
        axes.annotate(
            f"{values.value(gain)}  ({values.share(gain)})" if noted else "0",
            (gain, position + 0.5), xytext=(-4 if gain < 0 and noted else 4, 0),
            textcoords="offset points", ha="right" if gain < 0 and noted else "left",
            va="center", fontsize=8 if row.is_part else 9,
            color=INK if noted and not row.is_part else MUTED, zorder=3,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
    axes.set_xlabel("saved (ms)", fontsize=10, color=MUTED)
