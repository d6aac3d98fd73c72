"""Searches end as soon as they are asked to, and keep what they know."""

from __future__ import annotations

import math
import os
import signal
import threading
from typing import Any

import pytest

from milp import ctrl_c, solve
from milp.attempt import Attempt
from milp.model import Model
from milp.network import Network
from milp.running import Running
from pipesim.analysis import bounds
from pipesim.analysis.over import OutOfTime
from pipesim.analysis.windows import find_windows
from pipesim.scenario import Scenario
from planners import plan
from tests.processes import PATIENCE_S

SCENARIO = Scenario(stages=4, microbatches=12, activation_limit=4).with_delay(25, links=[1])


class Asked:
    """Says that it is over from the ``last`` time on that it is asked."""

    def __init__(self, last: int) -> None:
        self.last, self.times = last, 0

    def __call__(self) -> bool:
        self.times += 1
        return self.times >= self.last


@pytest.mark.parametrize("last", [1, 5, 30])
def test_windows_end_within_a_pass(last: int) -> None:
    horizon_ms = bounds.serial_ms(SCENARIO)
    over = Asked(last)
    windows = find_windows(SCENARIO, horizon_ms, over=over)
    assert over.times == last  # a pass asks 48 times
    first = find_windows(SCENARIO, horizon_ms, over=lambda: True)
    assert windows is not None
    assert first is not None
    assert (windows.forward_head_ms == first.forward_head_ms).all()


@pytest.mark.parametrize("last", [1, 100, 400])
def test_horizons_are_tried_until_it_is_over(last: int) -> None:
    low_ms = bounds.lower_bound_ms(SCENARIO)
    proven_ms, _ = bounds.shortest_horizon_ms(SCENARIO, low_ms)
    over = Asked(last)
    bound_ms, horizon_ms = bounds.shortest_horizon_ms(SCENARIO, low_ms, over=over)
    assert last <= over.times <= last + 1  # by the windows, and before a next horizon
    assert low_ms <= bound_ms <= horizon_ms
    assert bound_ms <= proven_ms


@pytest.mark.parametrize("last", [1, 10, 300])
def test_a_model_is_not_made_to_the_end(last: int) -> None:
    over = Asked(last)
    with pytest.raises(OutOfTime):
        Model(Network(SCENARIO, over=over), bounds.serial_ms(SCENARIO))
    assert over.times == last


def test_ctrl_c_before_a_solver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def pressing(scenario: Scenario, horizon_ms: float, **more: Any) -> object:
        tried.append(horizon_ms)
        if len(tried) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return find_windows(scenario, horizon_ms, **more)

    monkeypatch.setattr(bounds, "find_windows", pressing)
    monkeypatch.setattr("milp.mip.highs", lambda *_, **__: pytest.fail("the solver was asked"))
    incumbent = plan(SCENARIO, "zerobubble")
    result = solve(SCENARIO, incumbent=incumbent)
    assert result.interrupted
    assert result.status == "feasible"
    assert len(tried) == 2
    assert bounds.lower_bound_ms(SCENARIO) <= result.bound_ms < result.objective_ms


def test_who_does_not_stop_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctrl_c, "_PATIENCE_S", 0.0)
    pressed, released, asked = ctrl_c.Pressed(), threading.Event(), []
    pressed.set()
    try:
        with pytest.raises(OutOfTime):
            ctrl_c.run(lambda: released.wait(PATIENCE_S), lambda: asked.append(1), pressed)
    finally:
        released.set()
    assert asked


def test_a_solver_without_time_says_nothing() -> None:
    def hurried(network: Network, *_: Any, **__: Any) -> Attempt:
        assert network.over()
        raise OutOfTime

    run = Running(hurried, 1, ctrl_c.Pressed(), deadline=0.0)
    assert run(Network(SCENARIO), 1e3, None) == Attempt("unknown", -math.inf)
