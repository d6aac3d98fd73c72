"""A replay that trained its model wrongly fails, and says where."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pipesim.engine import simulate
from pipesim.errors import ReplayError
from pipesim.replay.prepare import prepare
from pipesim.replay.report import Replayed
from pipesim.replay.run.measured import ClockFacts, Measured
from pipesim.scenario import Scenario
from planners import plan
from tests.processes import PATIENCE_S
from tests.replay.replays import replaying

WRONG = """\
import os
if os.environ.get("RANK") == "1":
    from pipesim.replay.compute.training import Training
    right = Training.finish
    def finish(self):
        if len(self.losses) == 2:
            self.parameters()["1.blocks.0.mlp_in"].grad *= float(os.environ["WRONG"])
        right(self)
    Training.finish = finish
"""
"""What workers import first; the optimizer then spreads what is wrong to all later iterations."""


@pytest.mark.skipif(sys.platform != "linux", reason="Background looks into /proc")
@pytest.mark.parametrize(
    ("factor", "says"),
    [
        ("1.62", r"it differs from the unpipelined model's by 0\.62 of its length"),
        pytest.param("nan", "it is not finite", marks=pytest.mark.slow),
        pytest.param("inf", "it is not finite", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_gradient_ends_a_replay_with_its_name(
    tmp_path: Path, factor: str, says: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    options = ["--stages", "3", "--planner", "zerobubble", "--microbatches", "3"]
    options += ["--compute", "model", "--transport", "nccl", "--warmup", "1", "--iterations", "2"]
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    env = {"PYTHONPATH": path, "WRONG": factor}
    with replaying(tmp_path, *options, "--timeout", f"{PATIENCE_S:g}s", env=env) as run:
        run.ended()
        assert re.fullmatch(
            r"rank 1: the gradient of blocks\.0\.mlp_in in stage 1 is wrong in iteration 0: "
            rf"{says} \(\d+ other gradients wrong too\)",
            run.complaint,
        ), run.complaint
        assert run.process.returncode == 2
        assert (run.output, run.leftovers) == ("", [])


def measured(*wrong: tuple[int, int, int, str, float | None]) -> Measured:
    """A finished run in which a rank says of an iteration, a stage and a parameter how wrong."""
    scenario = Scenario(stages=3, microbatches=2)
    run = prepare(scenario, plan(scenario, "1f1b"), "nccl", compute="model", iterations=2, warmup=1)
    timeline = simulate(scenario, run.schedule, run.transport)
    reports = [{"wrong_gradients": [row for at, *row in wrong if at == r]} for r in range(3)]
    return Measured(run, 3 * [timeline], 3 * [ClockFacts(0, 0, 0)], [], reports)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([(1, 1, 1, "a", 0.5)], "rank 1: the gradient of a in stage 1 is wrong in iteration 0: .*"),
        ([(1, 0, 1, "a", 0.5)], "rank 1: .* is wrong in warm-up iteration 0: .*"),
        # Earlier iterations, later stages, larger errors, and most of all what is not finite.
        ([(2, 2, 2, "a", 0.5), (0, 1, 0, "b", 0.1)], "rank 0: the gradient of b .*1 other .*"),
        ([(0, 1, 0, "a", 0.5), (2, 1, 2, "b", 0.1)], "rank 2: the gradient of b .*"),
        ([(0, 1, 0, "a", 0.5), (0, 1, 0, "b", 0.6)], "rank 0: the gradient of b .* by 0.6 .*"),
        ([(0, 1, 0, "a", None), (0, 1, 0, "b", 1e9)], "rank 0: .* of a .* it is not finite .*"),
    ],
)
def test_the_one_to_name(wrong: list[tuple[int, int, int, str, float | None]], says: str) -> None:
    with pytest.raises(ReplayError) as caught:
        Replayed(measured(*wrong))
    assert re.fullmatch(says, str(caught.value)), caught.value


def test_right_gradients_are_nothing_to_complain_about() -> None:
    Replayed(measured())
