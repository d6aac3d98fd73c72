"""Figures that explain slackness: the window of one micro-batch, and Theorem 1.

Like all figures they only draw: a window is read from a timeline, a curve holds what the
engine measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from pipesim.errors import PipesimError
from pipesim.plot._style import GRID, INK, KIND_COLOURS, MUTED, WIDTH_IN
from pipesim.scenario import KINDS
from pipesim.schedule import Op
from pipesim.timeline import OpSpan, Timeline

__all__ = ["Curve", "growth", "window"]

UP_COLOUR, DOWN_COLOUR, IDLE_COLOUR = "#B5471B", "#2B6CB0", "#B91C1C"
HALO = [withStroke(linewidth=3, foreground="white")]


# -- the slackness window ----------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    """What happens around link i from the end of B_k on stage i+1.

    ``upper`` and ``turned`` are B_k and the next F on stage i, ``lower`` and ``back`` the
    same two on stage i+1, and ``own`` what stage i+1 runs between them.
    """

    lower: OpSpan
    upper: OpSpan
    turned: OpSpan
    back: OpSpan
    own: tuple[OpSpan, ...]
    gradient_ms: float  # arrives on stage i
    activation_ms: float  # arrives on stage i+1


def _window(timeline: Timeline, link: int, microbatch: int) -> _Window:
    timeline.scenario.check_link(link)
    above, below = (
        timeline.compute[timeline.scenario.placement[stage]] for stage in (link, link + 1)
    )
    upper, lower = (
        _find(spans, stage, ("B", "BW"), microbatch)
        for spans, stage in ((above, link), (below, link + 1))
    )
    later = above[above.index(upper) + 1 :]
    turned = next((s for s in later if s.op.kind == "F" and s.op.stage == link), None)
    if turned is None:
        raise PipesimError(f"no forward of stage {link} follows the backward of {microbatch}")
    back = _find(below, link + 1, ("F",), turned.op.microbatch)
    own = tuple(below[below.index(lower) + 1 : below.index(back)])
    return _Window(
        lower, upper, turned, back, own,
        _arrival_ms(timeline, lower.op), _arrival_ms(timeline, turned.op),
    )  # fmt: skip


def _find(spans: Sequence[OpSpan], stage: int, kinds: Sequence[str], microbatch: int) -> OpSpan:
    for span in spans:
        if (span.op.stage, span.op.microbatch) == (stage, microbatch) and span.op.kind in kinds:
            return span
    raise PipesimError(f"there is no micro-batch {microbatch} on stage {stage}")


def _arrival_ms(timeline: Timeline, producer: Op) -> float:
    return max(span.end_ms for span in timeline.comm if span.message.producer == producer)


def window(timelines: Mapping[str, Timeline], link: int, microbatch: int) -> Figure:
    """Draw the round trip over a slow link against the work that the stage below it has.

    After B_k ends on stage i+1, its gradient goes up, stage i runs B_k and one F, and that
    F's activation comes down. Stage i+1 meanwhile has the forwards and backwards of its
    slackness to run. If the trip is longer than this work, it idles, which is hatched.

    Parameters
    ----------
    timelines : mapping of str to Timeline
        What to compare, by the name to print; one panel for each. Times are counted from
        the end of B_k on stage i+1.
    link : int
        Link i joins stages i and i+1.
    microbatch : int
        The micro-batch k.

    Returns
    -------
    Figure
        With one axes for each timeline.

    Raises
    ------
    ScenarioError
        The link does not exist, or lies inside one device.
    PipesimError
        ``timelines`` is empty, there is no micro-batch k, or no forward follows its
        backward on stage i.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario().with_delay(10, links=[0])
    >>> timeline = pipesim.simulate(scenario, pipesim.plan(scenario, "zerobubble"))
    >>> len(window({"10 ms": timeline}, link=0, microbatch=3).axes)
    1
    """
    if not timelines:
        raise PipesimError("nothing to draw: no timeline was given")
    windows = [_window(timeline, link, microbatch) for timeline in timelines.values()]
    panel_in = 2.05
    figure = Figure(figsize=(WIDTH_IN, panel_in * len(windows) + 0.45), facecolor="white")
    panels = figure.subplots(len(windows), sharex=True, squeeze=False)[:, 0]
    height_in = figure.get_figheight()
    figure.subplots_adjust(
        left=0.065, right=0.99, top=1 - 0.3 / height_in, bottom=0.45 / height_in, hspace=0.24
    )
    longest = max(w.back.end_ms - w.lower.end_ms for w in windows)
    step = windows[0].lower.end_ms - windows[0].lower.start_ms or longest / 8
    for axes, (name, timeline), one in zip(panels, timelines.items(), windows, strict=True):
        axes.set_xlim(-2 * step, longest + 3 * step)
        axes.set_title(name, loc="left", fontsize=11, color=INK, pad=5)
        _draw_window(axes, timeline, one)
    panels[-1].set_xlabel(
        f"time (ms) after B{microbatch} ends on stage {link + 1}", fontsize=10, color=MUTED
    )
    return figure


# Vertical places of a panel, growing downwards: two rows of operators, two measuring lines.
UPPER_ROW, LOWER_ROW, ROW = 0.0, 1.5, 0.62
TRIP_LINE, WORK_LINE, PANEL_END = 2.42, 2.86, 3.05


def _draw_window(axes: Axes, timeline: Timeline, one: _Window) -> None:
    zero, link = one.lower.end_ms, one.upper.op.stage
    taking_part = {one.lower, one.upper, one.turned, one.back, *one.own}
    for stage, top in ((link, UPPER_ROW), (link + 1, LOWER_ROW)):
        for span in timeline.compute[timeline.scenario.placement[stage]]:
            _draw_operator(axes, span, zero, top, faded=span not in taking_part)
    axes.set_ylim(PANEL_END, -0.12)
    axes.set_yticks(
        [UPPER_ROW + ROW / 2, LOWER_ROW + ROW / 2], [f"stage {link}", f"stage {link + 1}"]
    )
    axes.tick_params(length=0, labelsize=9, labelcolor=MUTED)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.spines[:].set_visible(False)

    gradient, turned, activation = (
        t - zero for t in (one.gradient_ms, one.turned.end_ms, one.activation_ms)
    )
    _arrow(axes, (0, LOWER_ROW), (gradient, UPPER_ROW + ROW), UP_COLOUR)
    _arrow(axes, (turned, UPPER_ROW + ROW), (activation, LOWER_ROW), DOWN_COLOUR)
    _say(axes, 0, f"gradient up, {gradient:g} ms", UP_COLOUR, "right")
    _say(axes, activation, f"activation down, {activation - turned:g} ms", DOWN_COLOUR, "left")

    _measure(
        axes, TRIP_LINE, activation,
        f"round trip: {gradient:g} + {turned - gradient:g} + {activation - turned:g}"
        f" = {activation:g} ms",
    )  # fmt: skip
    counts = [(kind, sum(s.op.kind == kind for s in one.own)) for kind in KINDS]
    work = " + ".join(f"{count} {kind}" for kind, count in counts if count) or "nothing"
    busy = sum(s.end_ms - s.start_ms for s in one.own)
    _measure(axes, WORK_LINE, busy, f"stage {link + 1}'s own work: {work} = {busy:g} ms")

    for before, after in pairwise((one.lower, *one.own, one.back)):
        if after.start_ms > before.end_ms:
            _draw_idle(axes, before.end_ms - zero, after.start_ms - zero)
    start = one.back.start_ms - zero
    if start > activation:
        axes.plot([activation, start], [LOWER_ROW - 0.08] * 2, color=DOWN_COLOUR, ls=":", lw=1.6)
        axes.text(
            start, LOWER_ROW - 0.12, f" F{one.back.op.microbatch} waits {start - activation:g} ms",
            fontsize=8.5, color=DOWN_COLOUR, ha="left", va="center",
        )  # fmt: skip


def _draw_idle(axes: Axes, start: float, end: float) -> None:
    axes.add_patch(
        Rectangle(
            (start, LOWER_ROW), end - start, ROW,
            facecolor="#FEF2F2", edgecolor="#FCA5A5", hatch="////", linewidth=0, zorder=1,
        )
    )  # fmt: skip
    axes.text(
        (start + end) / 2, LOWER_ROW + ROW / 2, f"idle {end - start:g} ms", fontsize=9,
        color=IDLE_COLOUR, fontweight="bold", ha="center", va="center", path_effects=HALO,
    )  # fmt: skip


def _draw_operator(axes: Axes, span: OpSpan, zero: float, top: float, *, faded: bool) -> None:
    start, end = span.start_ms - zero, span.end_ms - zero
    axes.add_patch(
        Rectangle(
            (start, top), end - start, ROW,
            facecolor=KIND_COLOURS[span.op.kind], edgecolor="white", linewidth=1.0,
            alpha=0.25 if faded else 1.0, zorder=2,
        )
    )  # fmt: skip
    left, right = axes.get_xlim()
    if start < left or end > right:  # cut by the panel's edge, and so would its name be
        return
    axes.text(
        (start + end) / 2, top + ROW / 2, f"{span.op.kind}{span.op.microbatch}", fontsize=9,
        color=MUTED if faded else INK, alpha=0.6 if faded else 1.0,
        ha="center", va="center_baseline", clip_on=True, zorder=3,
    )  # fmt: skip


def _arrow(axes: Axes, tail: tuple[float, float], head: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            tail, head, arrowstyle="-|>", mutation_scale=12, linewidth=1.8,
            color=colour, shrinkA=0, shrinkB=0, zorder=4,
        )
    )  # fmt: skip


def _say(axes: Axes, x: float, text: str, colour: str, side: str) -> None:
    """Label an arrow between the two rows, on the side of ``x`` where it does not run."""
    y = (UPPER_ROW + ROW + LOWER_ROW) / 2 - 0.12
    axes.annotate(
        text, (x, y), xytext=(-6 if side == "right" else 6, 0), textcoords="offset points",
        ha=side, va="center", fontsize=9, color=colour,
    )  # fmt: skip


def _measure(axes: Axes, y: float, end: float, text: str) -> None:
    """Draw a measuring line from 0 to ``end``, with what it measures on its right."""
    axes.annotate(
        "", (0, y), (end, y), arrowprops={"arrowstyle": "|-|, widthA=0.25, widthB=0.25",
        "color": INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip
    axes.annotate(
        text, (end, y), xytext=(7, 0), textcoords="offset points", fontsize=9, color=INK,
        va="center_baseline", path_effects=HALO,
    )  # fmt: skip


# -- Theorem 1 ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """How much longer one plan's iteration gets as the delay of one link grows.

    Parameters
    ----------
    slackness : int
        Δ of the link in the plan.
    microbatches : int
        N.
    budget_ms : float
        The link's delay budget.
    delays_ms, added_ms : sequence of float, of one length
        Delays in growing order, and the time each adds to the iteration.
    """

    slackness: int
    microbatches: int
    budget_ms: float
    delays_ms: Sequence[float]
    added_ms: Sequence[float]

    def rate(self, after_ms: float, until_ms: float = math.inf) -> float:
        """Mean growth per millisecond of delay between two delays (or the outermost known).

        Raises
        ------
        PipesimError
            Fewer than two delays of the curve lie between them.

        Examples
        --------
        >>> Curve(2, 12, 10, [0, 5, 10, 20], [0, 5, 10, 90]).rate(10)
        8.0
        """
        delays, added = np.asarray(self.delays_ms), np.asarray(self.added_ms)
        inside = np.flatnonzero((delays >= after_ms) & (delays <= until_ms))
        if len(inside) < 2:
            raise PipesimError(f"no two delays of the curve lie in {after_ms:g}–{until_ms:g} ms")
        first, last = inside[0], inside[-1]
        return float((added[last] - added[first]) / (delays[last] - delays[first]))


def growth(curves: Sequence[Curve], *, top_ms: float) -> Figure:
    """Draw the added time against the delay: one panel for each N, one line for each Δ.

    A dot marks each budget. Up to it a plan pays for the delay once, along the dashed
    diagonal; each line is named where it leaves the panel, with the slope that it ends with.

    Parameters
    ----------
    curves : sequence of Curve
        What to draw; the panels share both axes.
    top_ms : float
        End of the axis of added time.

    Returns
    -------
    Figure
        With one axes for each number of micro-batches, in growing order.

    Raises
    ------
    PipesimError
        ``curves`` is empty.

    Examples
    --------
    >>> curve = Curve(2, 12, 10, [0, 5, 10, 20], [0, 5, 10, 90])
    >>> [axes.get_title(loc="left") for axes in growth([curve], top_ms=50).axes]
    ['N = 12 micro-batches']
    """
    if not curves:
        raise PipesimError("nothing to draw: no curve was given")
    counts = sorted({curve.microbatches for curve in curves})
    slacks = sorted({curve.slackness for curve in curves})
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.72, len(slacks)))
    colours = {slack: tuple(shade) for slack, shade in zip(slacks, shades, strict=True)}
    figure = Figure(figsize=(WIDTH_IN, 4.8), facecolor="white")
    panels = figure.subplots(1, len(counts), sharex=True, sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.06, right=0.99, top=0.8, bottom=0.12, wspace=0.07)
    longest = max(curve.delays_ms[-1] for curve in curves)
    for axes, count in zip(panels, counts, strict=True):
        axes.plot([0, longest], [0, longest], color=MUTED, lw=1, ls="--", zorder=1, gid="diagonal")
        for curve in (c for c in curves if c.microbatches == count):
            _draw_curve(axes, curve, colours[curve.slackness], top_ms)
        axes.set_title(f"N = {count} micro-batches", loc="left", fontsize=11, color=INK, pad=34)
        axes.set_xlim(0, longest)
        axes.set_ylim(0, top_ms)
        axes.tick_params(length=0, labelsize=9, labelcolor=MUTED)
        axes.set_xlabel("delay c of the link, each way (ms)", fontsize=10, color=MUTED)
        axes.set_axisbelow(True)
        axes.grid(color=GRID, linewidth=0.8)
        axes.spines[:].set_visible(False)
    panels[0].set_ylabel("added to the iteration (ms)", fontsize=10, color=MUTED)
    figure.legend(
        handles=[
            Line2D([], [], color=MUTED, lw=1, ls="--", label="the delay itself, paid once"),
            Line2D([], [], color=INK, lw=0, marker="o", ms=6, label="delay budget"),
        ],
        loc="upper right", ncols=2, frameon=False, fontsize=9, labelcolor=INK,
        bbox_to_anchor=(0.99, 1.0), borderaxespad=0.3,
    )  # fmt: skip
    return figure


def _draw_curve(axes: Axes, curve: Curve, colour: tuple[float, ...], top_ms: float) -> None:
    delays, added = np.asarray(curve.delays_ms, float), np.asarray(curve.added_ms, float)
    axes.plot(delays, added, color=colour, lw=2.2, solid_joinstyle="round", gid="curve", zorder=3)
    at_budget = float(np.interp(curve.budget_ms, delays, added))
    axes.plot(
        curve.budget_ms, at_budget, "o", color=colour, ms=7, mec="white", mew=1.2,
        clip_on=False, zorder=5, gid="budget",
    )  # fmt: skip
    leaves = float(np.interp(top_ms, added, delays))
    axes.annotate(
        f"Δ = {curve.slackness}\nslope {curve.rate(delays[-2]):.3g}",
        (leaves, min(top_ms, added[-1])), xytext=(0, 4), textcoords="offset points",
        fontsize=8.5, color=colour, ha="center", va="bottom", linespacing=1.3,
    )  # fmt: skip
