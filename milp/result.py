"""What an exact solver answers: the best schedule it has and how good any could be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipesim.schedule import Schedule

__all__ = ["Result", "Status"]

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""*optimal*: proven; *feasible*: a schedule, but the time ran out before a proof;
*infeasible*: proven that there is none; *unknown*: the time ran out before either."""


@dataclass(frozen=True)
class Result:
    """The outcome of a search for the shortest iteration.

    Parameters
    ----------
    status : {"optimal", "feasible", "infeasible", "unknown"}
        What is proven.
    objective_ms : float
        Iteration time of ``schedule`` under the ideal transport; ``inf`` without one.
    bound_ms : float
        No schedule is shorter; ``inf`` when there is none at all.
    seconds : float
        How long the solver ran, building the model included.
    solver : str
        Its name.
    schedule : Schedule or None
        The best schedule found.
    interrupted : bool
        Ctrl-C ended the search.
    """

    status: Status
    objective_ms: float
    bound_ms: float
    seconds: float
    solver: str
    schedule: Schedule | None = None
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Part of the objective that is not proven necessary; ``inf`` without a schedule.

        Examples
        --------
        >>> Result("feasible", objective_ms=400, bound_ms=390, seconds=1, solver="highs").gap
        0.025
        """
        if math.isinf(self.objective_ms):
            return math.inf
        return (self.objective_ms - self.bound_ms) / self.objective_ms if self.objective_ms else 0.0
