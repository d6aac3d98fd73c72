"""The sanity check of an import: its scenario, simulated, should take as long as the file says.

The operators run in the file's own order where it tells one, and otherwise as Megatron-LM would
run them, 1F1B or its interleaved form, over its exchange. Messages cost nothing, and what follows
the pipeline (gradients reduced, the optimizer) takes no time unless the files have timers of it: a
few percent are missing from a right scenario. More says that a number was misread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipesim.engine import simulate
from pipesim.errors import ScheduleError
from pipesim.formats.measurement import Measurement
from pipesim.text import milliseconds
from planners import plan

__all__ = ["DOUBTFUL", "ImportCheck", "check_import"]

DOUBTFUL = 0.1
"""Over this relative error an import is not to be trusted."""


@dataclass(frozen=True)
class ImportCheck:
    """A scenario's iteration, measured and simulated.

    Parameters
    ----------
    measured_ms : float
        Median of the used iterations.
    simulated_ms : float
        Of the scenario, with what follows the pipeline by the files' own timers.
    how : str
        Order and transport, for people.
    guessed : bool
        Whether the scenario was computed from the measured time: then they agree, and nothing
        is checked but the arithmetic.
    """

    measured_ms: float
    simulated_ms: float
    how: str
    guessed: bool

    @property
    def error(self) -> float:
        """Simulated over measured − 1."""
        return self.simulated_ms / self.measured_ms - 1

    @property
    def doubtful(self) -> bool:
        """Whether the two are so far apart that something is wrong."""
        return abs(self.error) > DOUBTFUL


def check_import(measurement: Measurement) -> ImportCheck | None:
    """Simulate a measurement's scenario; None: the files do not tell how long an iteration takes.

    Examples
    --------
    >>> from pipesim import Scenario
    >>> found = check_import(Measurement(Scenario(), (), (), iteration_ms=(470.0, 473.0)))
    >>> found.how, found.simulated_ms, f"{found.error:.1%}"
    ('1F1B over exchange', 450.0, '-4.6%')
    """
    if not measurement.iteration_ms:
        return None
    scenario, schedule = measurement.scenario, measurement.schedule
    if schedule is not None:
        how, over = "the file's own order", "ideal"
    elif scenario.is_plain:
        schedule, how, over = plan(scenario, "1f1b"), "1F1B over exchange", "exchange"
    else:
        try:
            schedule = plan(scenario, "interleaved-1f1b")
        except ScheduleError:
            schedule, how = plan(scenario, "zerobubble"), "ZeroBubble over ideal"
        else:
            how = "interleaved 1F1B over ideal"
        over = "ideal"
    return ImportCheck(
        float(np.median(measurement.iteration_ms)),
        simulate(scenario, schedule, over).iteration_ms + measurement.after_ms,
        f"{how}, and {milliseconds(measurement.after_ms)} after it"
        if measurement.after_ms
        else how,
        measurement.guessed,
    )
