"""A plan says its own shape: what contradicts it is refused in one line."""

from __future__ import annotations

from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.text import counted

__all__ = ["check_fits", "check_shape"]


def check_shape(plan: Schedule, chunks: int, stages: int | None, microbatches: int | None) -> None:
    """Refuse numbers on the command line that are not the plan's.

    Parameters
    ----------
    plan : Schedule
        The plan of PLAN.json.
    chunks, stages, microbatches : int
        As given: every stage is cut into ``chunks`` of the plan's. None: not given.

    Raises
    ------
    ScenarioError
        One of them contradicts the plan.
    """
    placed = f"the plan places its stages on devices {list(plan.placement)}"
    if plan.stages % chunks:
        raise ScenarioError(f"{placed}: --chunks {chunks} contradicts it")
    if stages not in (None, plan.stages // chunks):
        raise ScenarioError(f"{placed}: --stages {stages} contradicts it")
    if microbatches not in (None, plan.microbatches):
        raise ScenarioError(
            f"the plan has {counted(plan.microbatches, 'micro-batch')}: --microbatches "
            f"{microbatches} contradicts it"
        )


def check_fits(plan: Schedule, scenario: Scenario, source: str | Path) -> None:
    """Refuse a scenario of another shape.

    Parameters
    ----------
    plan : Schedule
        The plan of PLAN.json.
    scenario : Scenario
        What to run it on.
    source : str or path
        The option or the file that made the scenario so.

    Raises
    ------
    ScenarioError
        The plan is for other devices or another number of micro-batches.
    """
    ours, theirs = list(plan.placement), list(scenario.placement)
    if ours != theirs:
        chunks = len(ours) // len(theirs)
        cut = scenario.is_plain and chunks > 1 and ours == theirs * chunks
        hint = f" (--chunks {chunks} cuts them to fit)" if cut else ""
        raise ScenarioError(
            f"the plan places its stages on devices {ours}, {source} on {theirs}{hint}"
        )
    if plan.microbatches != scenario.microbatches:
        raise ScenarioError(
            f"the plan has {counted(plan.microbatches, 'micro-batch')}, {source} "
            f"{scenario.microbatches}"
        )
