"""The figure of a validation: predicted against measured."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from pipesim.fidelity.validation import Validation
from pipesim.plot._style import GRID, INK, MUTED

__all__ = ["scatter"]

_COLOURS = {
    "1f1b": "#E69F00",
    "zerobubble": "#D55E00",
    "pipemorph-cpu": "#56B4E9",
    "pipemorph": "#0072B2",
}
_MARKERS = "os^Dv"
_BAND = 0.06
"""Half the width of the shaded band, as part of the measured time."""


def scatter(validation: Validation, *, title: str | None = None) -> Figure:
    """Draw every run: measured time across, predicted time up; on the diagonal they agree.

    Colours are systems, markers testbeds; the band is ± 6 %.
    """
    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    axes = figure.subplots()
    times = [time for one in validation.predictions for time in (one.predicted_ms, one.measured_ms)]
    ends = [min(times) / 1.15, max(times) * 1.15]
    axes.fill_between(
        ends,
        [end * (1 - _BAND) for end in ends],
        [end * (1 + _BAND) for end in ends],
        color=GRID,
        linewidth=0,
        label=f"± {100 * _BAND:.0f} %",
    )
    axes.plot(ends, ends, color=MUTED, linewidth=0.8)
    for marker, (testbed, own) in zip(_MARKERS * 20, validation.by_testbed().items(), strict=False):
        for system, runs in own.by_system().items():
            axes.scatter(
                [one.measured_ms for one in runs.predictions],
                [one.predicted_ms for one in runs.predictions],
                marker=marker,
                s=36,
                color=_COLOURS.get(system, MUTED),
                edgecolors="white",
                linewidths=0.6,
                label=f"{system} on {testbed} ({100 * runs.mape:.1f} %)",
                zorder=3,
            )
    for scale, limits in ((axes.set_xscale, axes.set_xlim), (axes.set_yscale, axes.set_ylim)):
        scale("log")
        limits(*ends)
    ticks = [t for t in (100, 200, 500, 1000, 2000, 5000, 10_000) if ends[0] <= t <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)
        axis.set_major_formatter(ScalarFormatter())
    axes.set_aspect("equal")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("measured iteration (ms)", color=INK)
    axes.set_ylabel("predicted iteration (ms)", color=INK)
    axes.legend(loc="upper left", fontsize=8, frameon=False, title="mean absolute error")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(
        title
        or f"{len(validation.predictions)} runs: mean absolute error "
        f"{100 * validation.mape:.1f} %, bias {100 * validation.bias:+.1f} %",
        loc="left",
        color=INK,
        fontsize=11,
    )
    return figure
