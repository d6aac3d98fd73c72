"""What memory buys: every point is a plan, and none beats another in both."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from pipesim import Scenario, evaluate, simulate
from pipesim.analysis import lower_bound_ms
from pipesim.plot.pareto import trade_off
from pipesim.studies.pareto import pareto
from pipesim.transport import Ideal
from tests.cli.running import error, stdout

pytestmark = pytest.mark.usefixtures("in_folder")

EXAMPLE = Scenario(activation_limit=4).with_delay(20, [0])


def test_points_trade_memory_for_time_down_to_the_bound() -> None:
    points = pareto(EXAMPLE)
    for less, more in pairwise(points):
        assert less.peak < more.peak
        assert less.iteration_ms > more.iteration_ms
    assert points[0].peak_activations == (1, 1, 1, 1)
    assert points[0].iteration_ms == 12 * (4 * 20 + 2 * 20 + 10)  # one micro-batch at a time
    assert points[-1].iteration_ms == lower_bound_ms(EXAMPLE) == 410
    for point in points:
        timeline = simulate(EXAMPLE, point.schedule)
        assert timeline.iteration_ms == point.iteration_ms
        assert timeline.peak_activations.tolist() == list(point.peak_activations)
        assert point.host == max(0.0, point.peak - 4)


def test_what_messages_cost_is_planned_for() -> None:
    """At 2 ms a message the plans made for instant ones are slower than these."""
    instant, costly = pareto(EXAMPLE), pareto(EXAMPLE, Ideal(base_ms=2))
    bound_ms = lower_bound_ms(EXAMPLE.with_message_cost(2))
    assert costly[-1].iteration_ms == bound_ms == 416
    by_peak = {point.peak: point for point in costly}
    for point in instant:
        late_ms = evaluate(EXAMPLE, point.schedule, Ideal(base_ms=2))
        assert late_ms > point.iteration_ms
        assert by_peak[point.peak].iteration_ms <= late_ms
    for point in costly:
        assert evaluate(EXAMPLE, point.schedule, Ideal(base_ms=2)) == point.iteration_ms


def test_the_picture_has_a_mark_for_each_point() -> None:
    points = pareto(Scenario(microbatches=4), moves=200)
    axes = trade_off(points, 1.0, title="t").axes[0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(marks) == len(points)


def test_the_command() -> None:
    args = ["plan", "--pareto", "--delay", "20ms", "--link", "0", "--microbatches", "6"]
    text = stdout(*args, "--csv", "p.csv", "--plot", "p.png")
    assert "Lower bound" in text
    assert Path("p.csv").read_text().startswith("peak,host,iteration_ms,warmup")
    document = json.loads(stdout(*args, "--json"))
    times = [point["iteration_ms"] for point in document["points"]]
    assert times == sorted(times, reverse=True)
    assert "Times hold where nothing blocks and messages cost nothing (--message-cost)." in text
    assert "Times hold" not in stdout(*args, "--quiet")
    cost = ("--message-cost", "2ms")
    assert "messages cost 2 ms.\n" in stdout(*args, *cost)
    costly = json.loads(stdout(*args, *cost, "--json"))
    assert costly["message_cost_ms"] == 2
    assert costly["lower_bound_ms"] > document["lower_bound_ms"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "--csv", "p.csv"], "--csv is for --pareto"),
        (["plan", "--pareto", "-o", "p.json"], "--output is for one"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], message: str) -> None:
    assert message in error(*args)
