"""The figure of a measured job: its step, and what it would be without each thing that is slow."""

from __future__ import annotations

from matplotlib.figure import Figure

from pipesim.fidelity.jobs.stragglers import JobExplanation
from pipesim.plot._style import GRID, INK, KIND_COLOURS, MUTED

__all__ = ["steps"]


def steps(found: JobExplanation, *, title: str | None = None) -> Figure:
    """Draw the job's step as it is, and without each suspect: bars that are shorter, gain more.

    Returns
    -------
    Figure
        With one axes. Bars have the gid of what is left out.
    """
    labels = ["as it is", *(f"without {one.what.partition(':')[0]}" for one in found.suspects)]
    times = [found.simulated_ms, *(one.without_ms for one in found.suspects)]
    if len(found.suspects) > 1:
        labels.append("without all of them")
        times.append(found.healthy_ms)
    figure = Figure(figsize=(8.0, 1.4 + 0.34 * len(times)), layout="constrained")
    axes = figure.subplots()
    colours = [MUTED, *[KIND_COLOURS["F"]] * (len(times) - 1)]
    for place, (label, ms, colour) in enumerate(zip(labels, times, colours, strict=True)):
        axes.barh(place, ms, color=colour, height=0.66).patches[0].set_gid(label)
        axes.annotate(
            f"{ms:,.1f} ms", (ms, place), xytext=(4, 0), textcoords="offset points",
            va="center", color=INK, fontsize=9,
        )  # fmt: skip
    axes.axvline(found.measured_ms, color=INK, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(times)), labels, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(*times, found.measured_ms) * 1.15)
    axes.set_xlabel("step (ms); dashed: as measured", color=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=11)
    return figure
