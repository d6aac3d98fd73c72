"""A data-parallel step: D pipelines whose stages meet in all-reduces of their gradients.

Node (r, s) runs stage s of rank r. Once all D nodes of a stage have run their last operator, they
all-reduce the stage's gradients in a ring (:mod:`.ring`). *Overlapped*, a stage starts as soon as
it can, while others still cool down; else all wait for the end of all pipelines. Megatron-LM
reduces a stage's gradients when that stage has ended its pipeline, so overlapped in this sense
even without ``--overlap-grad-reduce``, which lets buckets start in the last backward already.
All-reduces of different stages share no link, and none shares one with pipeline messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.scenario import Array
from pipesim.timeline import Timeline

__all__ = ["Ended", "Step", "step"]


class Ended(NamedTuple):
    """When one rank's pipeline was through. Times in ms from the start of the step.

    ``stages_ms`` has shape [S]: the end of the last operator of each stage's node.
    """

    iteration_ms: float
    stages_ms: Array

    @classmethod
    def of(cls, timeline: Timeline) -> Ended:
        """Return the ends of a timeline, whose first operator starts the step."""
        ends = np.array([device[-1].end_ms for device in timeline.compute])
        return cls(timeline.iteration_ms, ends - timeline.start_ms)


@dataclass(frozen=True)
class Step:
    """One training step of a data-parallel job. Times in ms from its start.

    Parameters
    ----------
    pipelines_ms : array, shape [D]
        Iteration time of each rank's pipeline.
    reduce_start_ms, reduce_end_ms : array, shape [S]
        The all-reduce of each stage.
    """

    pipelines_ms: Array
    reduce_start_ms: Array
    reduce_end_ms: Array

    @property
    def pipeline_ms(self) -> float:
        """The slowest rank's pipeline."""
        return float(self.pipelines_ms.max())

    @property
    def step_ms(self) -> float:
        """From the start to the end of the last pipeline and the last all-reduce."""
        return max(self.pipeline_ms, float(self.reduce_end_ms.max()))

    @property
    def exposed_ms(self) -> float:
        """What the step takes longer than its slowest pipeline: all-reduce that is not hidden."""
        return self.step_ms - self.pipeline_ms

    def as_dict(self) -> dict[str, object]:
        """The step in JSON types."""
        return {
            "step_ms": self.step_ms,
            "pipeline_ms": self.pipeline_ms,
            "exposed_ms": self.exposed_ms,
            "pipelines_ms": self.pipelines_ms.tolist(),
            "reduce_start_ms": self.reduce_start_ms.tolist(),
            "reduce_end_ms": self.reduce_end_ms.tolist(),
        }


def step(ranks: Sequence[Ended], reduce_ms: Array, *, overlap: bool = True) -> Step:
    """Put D pipelines and the all-reduces of their S stages together.

    Parameters
    ----------
    ranks : sequence of Ended, shape [D]
        The pipelines, all started at once.
    reduce_ms : array, shape [S]
        How long each stage's all-reduce takes.
    overlap : bool
        Whether a stage's all-reduce may start while other stages still run.

    Raises
    ------
    ScenarioError
        There is no rank, or ranks differ in the number of stages.

    Examples
    --------
    >>> early, late = Ended(50.0, np.array([50.0, 40.0])), Ended(60.0, np.array([60.0, 45.0]))
    >>> one = step([early, late], np.array([5.0, 30.0]))
    >>> one.reduce_start_ms.tolist(), one.step_ms, one.exposed_ms
    ([60.0, 45.0], 75.0, 15.0)
    >>> step([early, late], np.array([5.0, 30.0]), overlap=False).step_ms
    90.0
    """
    if not ranks or any(one.stages_ms.shape != reduce_ms.shape for one in ranks):
        raise ScenarioError("a data-parallel step needs pipelines of as many stages each")
    pipelines = np.array([one.iteration_ms for one in ranks])
    ready = np.max([one.stages_ms for one in ranks], axis=0)
    start = ready if overlap else np.full_like(ready, pipelines.max())
    return Step(pipelines, start, start + reduce_ms)
