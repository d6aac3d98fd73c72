"""Operator timelines that the engine makes, in the format of measured ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipesim.engine import simulate
from pipesim.formats.operator_timeline.rows import COLUMNS
from pipesim.scenario import Scenario
from planners import plan
from tests import ROOT

MADE = ROOT / "tests" / "data" / "operator_timeline" / "two-levels.csv"


def timeline_csv(
    scenario_of: Callable[[int], Scenario],
    iterations: Sequence[int] = (5, 6, 7),
    planner: str = "1f1b",
    origin_ms: float = 0.0,
) -> str:
    """Run iterations, and log their operators stage after stage, each split or fused kind.

    The last lines of one stage are not those of another: a host starts an operator when the
    one before it has ended, and the GPU's own time is what it takes.
    """
    lines = [",".join(COLUMNS)]
    for number in iterations:
        scenario = scenario_of(number)
        timeline = simulate(scenario, plan(scenario, planner))
        for spans in timeline.compute:
            free = 0.0
            for (kind, stage, m), start, end in spans:
                op = "B" if kind == "BW" else kind
                times = f"{origin_ms + free:.4f},{origin_ms + end:.4f},{end - start:.4f}"
                lines.append(f"{number},{stage},{op},{m},{times}")
                free = end
    return "\n".join(lines) + "\n"


def made_timeline() -> str:
    """Four stages, eight micro-batches under ZeroBubble; from iteration 12 on a link is slow."""
    chance = np.random.default_rng(5)

    def scenario(iteration: int) -> Scenario:
        times = {
            f"{name}_ms": np.reshape([base, base, base, base * 1.2], (4, 1))
            * chance.normal(1, 0.003, (4, 8))
            for name, base in (("forward", 30), ("backward", 34), ("weight", 26))
        }
        healthy = Scenario(stages=4, microbatches=8, **times, latency_ms=0.5)
        return healthy.with_delay(60, links=[1]) if iteration >= 12 else healthy

    return timeline_csv(scenario, (5, 6, 7, 12, 13, 14), "zerobubble", origin_ms=1.7e12)
