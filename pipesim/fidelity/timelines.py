"""When each operator of a delayed iteration started, measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.engine import simulate
from pipesim.errors import ScenarioError
from pipesim.formats.measurement import Measurement
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Transport

__all__ = ["StartErrors", "start_errors"]


@dataclass(frozen=True)
class StartErrors:
    """One delayed iteration.

    Attributes
    ----------
    file, label : str
        Where it comes from.
    measured_ms, predicted_ms : float
        First start to last end.
    median_start_error : float
        Median, over the operators, of how far the start is off, as part of ``measured_ms``;
        both count from their own first start.
    """

    file: str
    label: str
    measured_ms: float
    predicted_ms: float
    median_start_error: float

    @property
    def error(self) -> float:
        """Relative error of the iteration, signed: above 0 the prediction is too long."""
        return self.predicted_ms / self.measured_ms - 1

    def as_dict(self) -> dict[str, object]:
        """The iteration in JSON types."""
        return {
            "file": self.file,
            "iteration": self.label,
            "measured_ms": self.measured_ms,
            "predicted_ms": self.predicted_ms,
            "error": self.error,
            "median_start_error": self.median_start_error,
        }


def start_errors(
    timelines: Measurement, scenario: Scenario, transport: Transport
) -> Sequence[StartErrors]:
    """Compare every delayed iteration of some timelines with the engine.

    Parameters
    ----------
    timelines : Measurement
        Its healthy iterations gave the operator times; the others are compared.
    scenario : Scenario
        The measurement's, with the delays that were injected.
    transport : Transport
        That of the delayed iterations.

    Raises
    ------
    ScenarioError
        There is no delayed iteration.
    """
    delayed = [one for one in timelines.iterations if not one.used]
    if not delayed:
        raise ScenarioError("the timelines hold no delayed iteration")
    results = []
    for one in delayed:
        measured = one.timeline
        orders = [[span.op for span in device] for device in measured.compute]
        schedule = Schedule(orders, scenario.placement, scenario.microbatches)
        predicted = simulate(scenario, schedule, transport)
        off = [
            abs(
                (predicted.spans[op].start_ms - predicted.start_ms)
                - (span.start_ms - measured.start_ms)
            )
            for op, span in measured.spans.items()
        ]
        results.append(
            StartErrors(
                one.file,
                one.label,
                measured.iteration_ms,
                predicted.iteration_ms,
                float(np.median(off)) / measured.iteration_ms,
            )
        )
    return results
