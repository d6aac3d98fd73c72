"""The figure of an attribution: what is drawn, how long, and where nothing is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipesim import Scenario, plan
from pipesim.explain.attribution import attribute
from pipesim.explain.causes import Attribution
from pipesim.plot import save
from pipesim.plot.attribution import bars


def explained(scenario: Scenario, planner: str = "zerobubble", over: str = "nccl") -> Attribution:
    return attribute(scenario, plan(scenario, planner), over)


def drawn(axes: Axes) -> list[tuple[str | None, float]]:
    """Each bar's cause and signed length."""
    return [(bar.get_gid(), round(bar.get_width(), 6)) for bar in axes.patches]  # type: ignore[attr-defined]


def texts(figure: Figure, panel: int) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


WORKED = Scenario().with_delay(20, links=[0])


def test_the_bar_grows_from_work_to_the_iteration() -> None:
    figure = bars(explained(WORKED), title="worked example")
    assert drawn(figure.axes[0]) == [
        ("work", 360), ("warm-up and drain", 30), ("dependency", 50), ("hol", 360),
    ]  # fmt: skip
    said = texts(figure, 0)
    assert "800 ms  (2.05×)" in said
    assert "healthy and balanced: 390 ms" in said
    assert "360\n45.0 %" in said
    assert [text.get_text() for text in figure.texts] == ["worked example"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "work of the average device", "warm-up and drain",
        "link 0: dependency bubbles", "link 0: HOL blocking",
    ]  # fmt: skip


def test_a_bar_for_each_removal() -> None:
    figure = bars(explained(WORKED))
    axes = figure.axes[1]
    assert drawn(axes)[:3] == [("hol", 360), ("dependency", 50), ("slow operators", 0)]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        "link 0: HOL blocking", "link 0: dependency bubbles", "slow operators",
        "stage imbalance", "micro-batch variation", "transport, on healthy links",
    ]  # fmt: skip
    assert "360  (45.0 %)" in texts(figure, 1)
    assert texts(figure, 1).count("0") == 4


def test_parts_below_zero_take_back_what_is_too_much() -> None:
    """The long W of stage 1 hides behind B of stage 0; half of it there would not.

    F 0–10, 10–20; B 20–30, 30–40; W of stage 1 30–40. With equal W: stage 0's ends at 45.
    """
    found = explained(Scenario(stages=2, microbatches=1, weight_ms=[0, 10]), over="ideal")
    assert (found.iteration_ms, found.ideal_ms) == (40, 45)
    figure = bars(found)
    assert drawn(figure.axes[0]) == [
        ("work", 25), ("warm-up and drain", 20), ("stage imbalance", -5),
    ]  # fmt: skip
    last = figure.axes[0].patches[-1]
    assert last.get_x() + last.get_width() == 40  # type: ignore[attr-defined]
    assert figure.axes[1].get_xlim()[0] < -5


def test_a_healthy_run_needs_no_second_mark() -> None:
    figure = bars(explained(Scenario(), "1f1b", "exchange"))
    assert drawn(figure.axes[0]) == [("work", 360), ("warm-up and drain", 90)]
    assert not any("healthy" in text for text in texts(figure, 0))


def test_everything_at_once_and_nothing_at_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    times = 10 + rng.random((8, 24))
    times[2] *= 1.5
    times[5, 7] = 80
    busy = Scenario(stages=8, microbatches=24, forward_ms=times)
    busy = busy.with_delay(5, links=[1, 3, 6])
    save(bars(explained(busy), title="busy"), tmp_path / "busy.png")
    nothing = Scenario(forward_ms=0, backward_ms=0, weight_ms=0)
    save(bars(explained(nothing)), tmp_path / "nothing.svg")
    assert (tmp_path / "busy.png").stat().st_size > 10_000
    assert (tmp_path / "nothing.svg").stat().st_size > 1_000


def test_the_same_attribution_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save(bars(explained(WORKED)), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
