"""Figures hold what the timelines hold, and files appear whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import pipesim
from pipesim.errors import FormatError, PipesimError
from pipesim.plot import gantt, in_flight, save
from pipesim.program import Message
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from pipesim.timeline import CommSpan, OpSpan, Timeline


def drawn(figure: Figure, panel: int, gid: str) -> list[Artist]:
    """The artists of one sort in one panel."""
    return figure.axes[panel].findobj(lambda artist: artist.get_gid() == gid)


def boxes(figure: Figure, panel: int) -> int:
    (collection,) = drawn(figure, panel, "operators")
    return len(collection.get_paths())  # type: ignore[attr-defined]


def line_x(figure: Figure, panel: int) -> float:
    (line,) = drawn(figure, panel, "iteration")
    assert isinstance(line, Line2D)
    return float(np.asarray(line.get_xdata())[0])


def texts(figure: Figure, panel: int) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


@pytest.fixture(scope="module")
def timelines() -> dict[str, Timeline]:
    slow = Scenario(microbatches=6, activation_limit=[4, np.inf, 4, 4]).with_delay(20, links=[0])
    zb = pipesim.plan(slow.without_delay(), "zerobubble")
    return {
        "1F1B": pipesim.simulate(slow, pipesim.plan(slow, "1f1b"), "exchange"),
        "zero-bubble": pipesim.simulate(slow, zb, "nccl"),
        "delegated": pipesim.simulate(slow, zb, "delegated"),
    }


@pytest.fixture(scope="module")
def chart(timelines: dict[str, Timeline]) -> Figure:
    return gantt(timelines, title="20 ms on link 0")


def test_one_panel_a_timeline_and_one_box_an_operator(
    chart: Figure, timelines: dict[str, Timeline]
) -> None:
    assert [axes.get_title(loc="left") for axes in chart.axes] == list(timelines)
    assert [boxes(chart, panel) for panel in range(3)] == [4 * 6 * 2, 4 * 6 * 3, 4 * 6 * 3]


def test_panels_share_one_time_axis_that_holds_the_longest(
    chart: Figure, timelines: dict[str, Timeline]
) -> None:
    assert len({axes.get_xlim() for axes in chart.axes}) == 1
    assert chart.axes[0].get_xlim()[1] > max(t.iteration_ms for t in timelines.values())


def test_iteration_time_is_marked_and_printed(
    chart: Figure, timelines: dict[str, Timeline]
) -> None:
    for panel, timeline in enumerate(timelines.values()):
        assert line_x(chart, panel) == timeline.iteration_ms
        assert f"{timeline.iteration_ms:.0f} ms" in texts(chart, panel)


def test_times_count_from_the_first_start() -> None:
    scenario = Scenario(stages=1, microbatches=1)
    late = Timeline(
        scenario, [[OpSpan(Op("F", 0, 0), 100, 110), OpSpan(Op("BW", 0, 0), 110, 130.25)]]
    )
    figure = gantt({"late": late})
    assert line_x(figure, 0) == 30.25
    assert texts(figure, 0)[:2] == ["0", "0"]
    assert "30.2 ms" in texts(figure, 0)
    (collection,) = drawn(figure, 0, "operators")
    first = collection.get_paths()[0].get_extents()  # type: ignore[attr-defined]
    assert (first.x0, first.x1) == (0, 10)


def test_each_way_of_a_message_looks_different(chart: Figure) -> None:
    looks = {}
    for panel, gid in ((0, "busy"), (1, "kernel"), (2, "delegate")):
        (shape,) = drawn(chart, panel, gid)
        looks[gid] = (shape.get_facecolor(), shape.get_hatch())  # type: ignore[attr-defined]
    assert len(set(looks.values())) == 3
    labels = {text.get_text() for legend in chart.legends for text in legend.get_texts()}
    assert {"busy kernel (injected delay)", "communication kernel (holds its stream)"} <= labels


def test_wires_are_thinner_than_kernels() -> None:
    message = Message(Op("F", 0, 0), Op("F", 1, 0))
    spans = [[OpSpan(Op(kind, s, 0), 10 * s, 10 * s + 10) for kind in ("F",)] for s in (0, 1)]
    comm = [CommSpan(message, "wire", 0, 10, 20), CommSpan(message, "kernel", 1, 0, 10)]
    figure = gantt({"hand-made": Timeline(Scenario(stages=2, microbatches=1), spans, comm)})
    height = {}
    for gid in ("wire", "kernel"):
        (shape,) = drawn(figure, 0, gid)
        height[gid] = shape.get_path().get_extents().height  # type: ignore[attr-defined]
    assert height["wire"] < height["kernel"] / 2


def test_chunks_of_one_device_have_shades_of_their_own() -> None:
    scenario = Scenario(
        stages=4, microbatches=4, placement=Scenario.place("v", devices=2, chunks=2)
    )
    timeline = pipesim.simulate(scenario, pipesim.plan(scenario, "zerobubble"))
    figure = gantt({"V": timeline})
    (collection,) = drawn(figure, 0, "operators")
    colours = {tuple(c) for c in collection.get_facecolor()}  # type: ignore[attr-defined]
    assert len(colours) == 3 * 2
    assert boxes(figure, 0) == 4 * 4 * 3


def test_a_large_timeline_has_no_numbers_and_no_more_artists_than_a_small_one() -> None:
    scenario = Scenario(stages=8, microbatches=256)
    schedule = pipesim.plan(scenario, "1f1b")
    timeline = pipesim.simulate(scenario, schedule, "exchange")
    figure = gantt({"large": timeline})
    figure.savefig(io.BytesIO(), format="png")
    assert boxes(figure, 0) == 8 * 256 * 2
    assert len(figure.axes[0].get_children()) < 20  # an artist an operator would take minutes
    assert len(texts(figure, 0)) == 2


def test_activations_end_at_zero_and_show_their_limits(timelines: dict[str, Timeline]) -> None:
    figure = in_flight(timelines)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    for panel, timeline in enumerate(timelines.values()):
        lines = drawn(figure, panel, "held")
        assert len(lines) == 4
        assert len(drawn(figure, panel, "limit")) == 3
        for device, line in enumerate(lines):
            assert isinstance(line, Line2D)
            heights = device + 1 - np.asarray(line.get_ydata(), dtype=float)
            assert heights[0] == heights[-1] == 0
            assert 0 < heights.max() < 1
            assert f"{timeline.peak_activations[device]:g}" in texts(figure, panel)


def test_nothing_to_draw_is_an_error() -> None:
    for draw in (gantt, in_flight):
        with pytest.raises(PipesimError, match="nothing to draw"):
            draw({})


# -- files -------------------------------------------------------------------------------


def test_png_opens(chart: Figure, tmp_path: Path) -> None:
    save(chart, tmp_path / "chart.png", dpi=50)
    height, width, _ = matplotlib.image.imread(tmp_path / "chart.png").shape
    assert width == 600
    assert height > 100


def test_svg_is_xml(chart: Figure, tmp_path: Path) -> None:
    save(chart, tmp_path / "chart.svg")
    assert ElementTree.parse(tmp_path / "chart.svg").getroot().tag.endswith("svg")


def test_pdf_has_its_header(chart: Figure, tmp_path: Path) -> None:
    save(chart, tmp_path / "chart.PDF")
    assert (tmp_path / "chart.PDF").read_bytes().startswith(b"%PDF-")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_timelines_give_the_same_bytes(
    ending: str, timelines: dict[str, Timeline], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        save(gantt(timelines), tmp_path / f"{name}.{ending}", dpi=40)
    one, two = (tmp_path / f"{name}.{ending}" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("name", ["chart.jpeg", "chart"])
def test_unknown_endings_are_named(name: str, chart: Figure, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"unknown ending '.*': one of \.png, \.svg, \.pdf") as e:
        save(chart, tmp_path / name)
    assert e.value.file == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(chart: Figure, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be written: there is no folder"):
        save(chart, tmp_path / "nowhere" / "chart.svg")
