"""The figure of a job along a trace: delays, and the pace of each system under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from pipesim.adapt.outcome import Outcome
from pipesim.plot._style import GRID, INK, MUTED
from pipesim.scenario import Array

if TYPE_CHECKING:
    from pipesim.studies.adaptation import Adaptation

__all__ = ["pace"]

_COLOURS = ("#E69F00", "#D55E00", "#56B4E9", "#0072B2", "#009E73", "#CC79A7")
"""After Okabe and Ito: for every type of colour vision."""

_PARTS = 150
"""Parts of the trace over each of which a pace is the mean."""


def pace(result: Adaptation, *, title: str | None = None) -> Figure:
    """Draw the slowest link's delay, and below it the iterations a minute of each system.

    Across is time, or iterations where the trace counts these. A pace is the mean over a 150th of
    the trace, or over one iteration where these are longer.
    """
    figure = Figure(figsize=(12, 6.2), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.2))
    trace = result.trace
    unit = 60_000.0 if trace.by == "time" else 1.0
    end = max(one.job.end for one in result.outcomes.values())
    times = np.array([0.0, *np.clip(trace.starts, 0.0, end), end]) / unit
    slowest = trace.states_ms.max(axis=(1, 2), initial=0.0)
    shown = np.where(np.isfinite(slowest), slowest, slowest[np.isfinite(slowest)].max())
    above.stairs(shown, times, color=MUTED, fill=True, alpha=0.35, linewidth=0)
    above.stairs(shown, times, color=INK, linewidth=0.9)
    for k in np.flatnonzero(np.isinf(slowest)).tolist():
        above.axvspan(times[k], times[k + 1], color="#D55E00", alpha=0.4, linewidth=0)
        above.text(times[k], 1.0, "failed", transform=above.get_xaxis_transform(), fontsize=8)
    above.set_ylabel("slowest link\ndelay (ms)", color=INK)
    for colour, (name, one) in zip(_COLOURS * 9, result.outcomes.items(), strict=False):
        if not one.iterations:
            continue
        oracle = one.strategy.knows == "delays"
        below.plot(
            *_paces(one, unit, end),
            color=INK if oracle else colour,
            linewidth=1.0 if oracle else 1.6,
            linestyle=(0, (2, 2)) if oracle else "-",
            label=f"{one.strategy.title}: {one.per_minute:.1f} per minute",
            gid=name,
            drawstyle="steps-mid",
        )
    below.set_ylabel("iterations per minute", color=INK)
    below.set_xlabel("time (min)" if trace.by == "time" else "iteration", color=INK)
    below.set_xlim(0, end / unit)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=5, frameon=False, fontsize=9)
    if title:
        above.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    return figure


def _paces(one: Outcome, unit: float, end: float) -> tuple[Array, Array]:
    """Middles of parts of the trace, and the mean pace in each."""
    by_time = one.job.trace.by == "time"
    starts = one.start_ms if by_time else np.arange(len(one.iterations), dtype=np.float64)
    edges = np.linspace(0.0, end, _PARTS + 1)
    part = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, _PARTS - 1)
    counts = np.bincount(part, minlength=_PARTS)
    spent_ms = np.bincount(part, one.duration_ms, minlength=_PARTS)
    some = counts > 0
    middles = (edges[:-1] + edges[1:]) / 2
    return middles[some] / unit, 60_000.0 * counts[some] / spent_ms[some]
