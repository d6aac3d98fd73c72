"""The slackness window and Theorem 1's curves, as they are drawn."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from pipesim import Scenario, Timeline, plan, simulate
from pipesim.errors import PipesimError, ScenarioError
from pipesim.plot.slackness import Curve, growth, window

EXAMPLE = Scenario()


def run(delay_ms: float, planner: str = "zerobubble") -> Timeline:
    slow = EXAMPLE.with_delay(delay_ms, links=[0])
    return simulate(slow, plan(EXAMPLE, planner))


def texts(figure: Figure, panel: int = 0) -> str:
    return "\n".join(text.get_text() for text in figure.axes[panel].texts)


@pytest.mark.parametrize(
    ("delay_ms", "trip", "rest"),
    [
        (5, "round trip: 5 + 20 + 5 = 30 ms", "F10 waits 10 ms"),
        (10, "round trip: 10 + 20 + 10 = 40 ms", ""),
        (20, "round trip: 20 + 20 + 20 = 60 ms", "idle 20 ms"),
    ],
)
def test_a_trip_is_measured_against_the_work_of_the_stage_below(
    delay_ms: float, trip: str, rest: str
) -> None:
    said = texts(window({"": run(delay_ms)}, link=0, microbatch=3))
    assert trip in said
    assert "stage 1's own work: 2 F + 2 B = 40 ms" in said
    assert rest in said
    assert ("waits" in said, "idle" in said) == (delay_ms < 10, delay_ms > 10)


@pytest.mark.parametrize("microbatch", [2, 3])
def test_a_window_of_fused_backwards(microbatch: int) -> None:
    """Where slackness is 1, every second window idles before the work, not after it."""
    said = texts(window({"": run(5, "1f1b")}, link=0, microbatch=microbatch))
    assert "round trip: 5 + 30 + 5 = 40 ms" in said
    assert "stage 1's own work: 1 F + 1 BW = 30 ms" in said
    assert said.count("idle 10 ms") == 1


def test_windows_share_one_axis_and_keep_their_names() -> None:
    figure = window({f"{c} ms": run(c) for c in (5, 20)}, link=0, microbatch=3)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["5 ms", "20 ms"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_what_has_no_window_is_refused() -> None:
    with pytest.raises(PipesimError, match="nothing to draw"):
        window({}, link=0, microbatch=3)
    with pytest.raises(ScenarioError, match="no link 3"):
        window({"": run(5)}, link=3, microbatch=3)
    with pytest.raises(PipesimError, match="no micro-batch 12 on stage 0"):
        window({"": run(5)}, link=0, microbatch=12)
    with pytest.raises(PipesimError, match="no forward of stage 0 follows the backward of 11"):
        window({"": run(5)}, link=0, microbatch=11)


def test_growth_has_a_panel_for_each_n_and_marks_each_budget() -> None:
    curves = [Curve(2, n, 10, [0, 10, 20], [0, 10, 10 + n]) for n in (96, 24)]
    figure = growth([*curves, Curve(1, 24, 0, [0, 20], [0, 480])], top_ms=200)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["N = 24 micro-batches", "N = 96 micro-batches"]
    budgets = [
        [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_gid() == "budget"]
        for axes in figure.axes
    ]
    assert budgets == [[(10, 10), (0, 0)], [(10, 10)]]
    assert "Δ = 1\nslope 24" in texts(figure)


def test_rates_need_two_delays() -> None:
    curve = Curve(2, 12, 10, [0, 10, 20], [0, 10, 90])
    assert (curve.rate(0), curve.rate(0, 10), curve.rate(10)) == (4.5, 1, 8)
    with pytest.raises(PipesimError, match="no two delays"):
        curve.rate(15)
    with pytest.raises(PipesimError, match="nothing to draw"):
        growth([], top_ms=1)
