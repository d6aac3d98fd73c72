"""Figures read off a timeline."""

from __future__ import annotations

import pytest

from pipesim import Scenario, plan, simulate

EXAMPLE = Scenario(stages=2, microbatches=2, activation_limit=[1, 2], activation_bytes=100.0)


def test_iteration_and_stage_span_are_two_figures() -> None:
    timeline = simulate(EXAMPLE, plan(EXAMPLE, "gpipe"))
    assert timeline.iteration_ms == 90
    assert timeline.stage_spans_ms.tolist() == [90, 60]
    assert timeline.stage_span_ms == 90
    assert timeline.busy_ms.tolist() == [60, 60]
    assert timeline.bubble_fraction == pytest.approx(1 - 120 / 180)


def test_in_flight_activations_step_up_and_down() -> None:
    scenario = EXAMPLE.replaced(activation_limit=float("inf"))
    timeline = simulate(scenario, plan(scenario, "zerobubble"))
    order = [str(span.op) for span in timeline.compute[1]]
    assert order == ["1F0", "1B0", "1F1", "1B1", "1W0", "1W1"]
    times, held = timeline.in_flight(1)
    # B gives back a half, W the rest; a start at the same moment comes after.
    assert times.tolist() == [10, 30, 50, 60, 70]
    assert held.tolist() == [1, 1.5, 1, 0.5, 0]
    assert timeline.peak_activations.tolist() == [2, 1.5]


def test_activations_over_the_limit_live_on_the_host() -> None:
    timeline = simulate(EXAMPLE, plan(EXAMPLE, "gpipe"))
    assert timeline.peak_activations.tolist() == [2, 2]
    assert timeline.peak_host_activations.tolist() == [1, 0]
    assert timeline.peak_host_bytes.tolist() == [100, 0]


def test_a_pipeline_of_no_time_has_no_bubbles() -> None:
    scenario = Scenario(forward_ms=0, backward_ms=0, weight_ms=0)
    timeline = simulate(scenario, plan(scenario, "zerobubble"), "nccl")
    assert (timeline.iteration_ms, timeline.bubble_fraction) == (0, 0)
