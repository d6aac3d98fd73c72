"""Re-planning for a job that really runs: transfer times in, plans for its runtime out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipesim.adapt.detectors import Detector, detector
from pipesim.adapt.estimation import Estimator, differs
from pipesim.adapt.strategy import Planning, Prepared, Strategy
from pipesim.formats.torch_csv import torch_csv
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.target import target
from pipesim.transport import Delegated, Transport

__all__ = ["Replanner", "TorchPlan"]

_WAYS = ("down", "up")


@dataclass(frozen=True)
class TorchPlan:
    """What :class:`pipesim.runtime.Adaptive` runs from one boundary to another.

    Parameters
    ----------
    schedule : Schedule
        The order of operators.
    delegated : frozenset of (link, direction)
        The messages that delegates carry; the direction is ``"down"`` or ``"up"``.
    expected_ms : float
        How long an iteration is expected to take.
    """

    schedule: Schedule
    delegated: frozenset[tuple[int, str]]
    expected_ms: float

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """A line of torch's schedule CSV for each rank, with its sends and receives."""
        return tuple(torch_csv(self.schedule, "compute_comms").splitlines())


class Replanner:
    """Takes in each iteration's transfer times, and plans where they have changed.

    It is the loop of :func:`pipesim.adapt.loop.run_job` for a job that somebody else runs.

    Parameters
    ----------
    scenario : Scenario
        The job, with healthy links.
    planner : str
        Who plans.
    runtime : str
        What runs the plans, see :data:`pipesim.target.TARGETS`.
    direct : Transport, optional
        How messages travel without delegates, and what they cost; default: as the runtime does it
        on GPUs. Over gloo, ``Ideal(base_ms=…)``.
    delegated : Delegated
        How they travel with them.
    detect : callable, optional
        Makes a detector for each link and direction.

    Raises
    ------
    ScenarioError, ScheduleError
        The planner has no plan for the scenario.

    Examples
    --------
    >>> replan = Replanner(Scenario())
    >>> healthy = np.full((3, 2), 0.5)
    >>> slow = healthy + [[20.0], [0.0], [0.0]]
    >>> plans = [replan.after(times) for times in [healthy] * 5 + [slow] * 2]
    >>> [plan is not None for plan in plans], sorted(plans[5].delegated)
    ([False, False, False, False, False, True, False], [(0, 'down'), (0, 'up')])
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        planner: str = "pipemorph",
        runtime: str = "torch",
        direct: Transport | None = None,
        delegated: Delegated = Delegated(),  # noqa: B008  frozen
        detect: Callable[[], Detector] | None = None,
    ) -> None:
        there = target(runtime)
        direct = direct or there.transport()
        strategy = Strategy("adaptive", "Adaptive", planner, direct, delegated)
        self._planning = Planning(there.adapted(scenario), strategy)
        self._estimator = Estimator(detect or detector("ratio"), scenario.stages - 1)
        self._planned_ms = np.zeros((scenario.stages - 1, 2))

    def first(self) -> TorchPlan:
        """Return the plan for healthy links."""
        return self._for(self._planning.healthy)

    def after(self, measured_ms: Array) -> TorchPlan | None:
        """Take in an iteration's transfer times, and return a plan where another one is due.

        Parameters
        ----------
        measured_ms : array, shape [S−1, 2]
            Of each link's activations and gradients; NaN where nothing was sent.
        """
        delay_ms = self._estimator.observe(measured_ms)
        if not differs(delay_ms, self._planned_ms):
            return None
        self._planned_ms = delay_ms
        return self._for(self._planning.plan(delay_ms))

    def _for(self, made: Prepared) -> TorchPlan:
        delegated = frozenset(
            (int(link), _WAYS[way]) for link, way in np.argwhere(made.plan.delegates)
        )
        expected_ms = self._planning.iteration_ms(made.runs, made.plan.delay_ms)
        return TorchPlan(made.schedule, delegated, expected_ms)
