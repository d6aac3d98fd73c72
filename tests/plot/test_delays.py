"""The figure of a delay trace: what it draws is what the trace holds."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from pipesim.delays import DelayTrace
from pipesim.errors import PipesimError
from pipesim.plot.delays import over_time

INF = float("inf")


def mesh(figure: Figure, gid: str) -> np.ma.MaskedArray:
    (found,) = [m for m in figure.axes[1].get_children() if m.get_gid() == gid]
    assert isinstance(found, QuadMesh)
    return np.ma.asarray(found.get_array())


def test_rows_are_links_and_the_slowest_stands_above() -> None:
    trace = DelayTrace([10, 30], [[5, 0], [0, 20]], by="iteration", end=100)
    figure = over_time(trace, start=100, title="mine")
    above, below = figure.axes[:2]
    assert mesh(figure, "delays").filled(0).tolist() == [[0, 5, 0], [0, 0, 20]]
    assert [label.get_text() for label in below.get_yticklabels()] == ["link 0", "link 1"]
    assert (below.get_xlabel(), below.get_xlim()) == ("iteration", (100, 200))
    assert above.get_title(loc="left") == "mine"
    lines = {line.get_gid(): line.get_ydata()[0] for line in above.lines}  # type: ignore[index]
    assert lines == {"median": 20, "P99": 20}


def test_directions_and_failures() -> None:
    trace = DelayTrace([0, 60e3], [[[5, 0]], [[INF, 3]]], end=360e3)
    figure = over_time(trace)
    below = figure.axes[1]
    labels = [label.get_text() for label in below.get_yticklabels()]
    assert labels == ["link 0 down", "link 0 up"]
    assert mesh(figure, "delays").filled(0).tolist() == [[0, 5, 0], [0, 0, 3]]
    assert mesh(figure, "failed").filled(0).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert below.get_xlabel() == "time (min)"
    legend = below.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["no delay", "failed"]


@pytest.mark.parametrize("links", [1, 30])
def test_no_delay_and_any_number_of_links(links: int) -> None:
    figure = over_time(DelayTrace([], np.zeros((0, links)), end=1))
    assert mesh(figure, "delays").mask.all()
    figure.draw_without_rendering()
    with pytest.raises(PipesimError, match="no end"):
        over_time(DelayTrace([0], [[1]]))
