from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from tests.palette import TOLERANCE, few_colours


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def png(figure: Figure) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def test_areas_keep_their_colour_and_edges_change_little() -> None:
    figure = Figure()
    axes = figure.add_subplot(title="two pale areas, and a line between")
    axes.axvspan(0, 1, color="#DCE9F6")
    axes.axvspan(1, 2, color="#D8EFE8")  # closer to the first than the tolerance
    axes.plot([0, 2], [0, 1], color="#B91C1C")
    full = png(figure)
    small = few_colours(full)
    assert len(small) < 0.6 * len(full)
    assert np.abs(pixels(small) - pixels(full)).max() <= TOLERANCE
    shown = {tuple(colour) for colour in pixels(small).reshape(-1, 3).tolist()}
    assert {(0xDC, 0xE9, 0xF6), (0xD8, 0xEF, 0xE8), (255, 255, 255)} <= shown
    assert few_colours(full) == small


def test_a_picture_of_more_colours_than_a_palette_holds_is_left_alone() -> None:
    steps = np.arange(0, 256, 24, dtype=np.uint8)
    cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(len(steps), -1, 3)
    drawn = io.BytesIO()
    Image.fromarray(cube).save(drawn, "PNG")
    assert few_colours(drawn.getvalue()) == drawn.getvalue()
