"""Which delays a plan absorbs, and what it takes to absorb the others.

A link within its budget adds its delay to the iteration once; above the budget every window
of the steady state stretches (Theorem 1 of the PipeMorph paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipesim import analysis
from pipesim.analysis import smallest_warmup
from pipesim.engine import Engine, Runs
from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from planners import plan
from planners.pipemorph import planned_under_delays

__all__ = ["Budgets", "LinkBudget", "PlanBudgets", "budgets"]

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class LinkBudget:
    """One link under one plan. Times in milliseconds, each way.

    Attributes
    ----------
    slackness : int
        Δ_i under the plan.
    budget_ms, delay_ms : float
        What the plan absorbs, and what the link has: the mean of its two directions.
    needed_slackness : int or None
        The smallest whose budget holds the delay; None where none does.
    """

    link: int
    slackness: int
    budget_ms: float
    delay_ms: float
    needed_slackness: int | None

    @property
    def over_ms(self) -> float:
        """How far the delay exceeds the budget; 0 within it."""
        over = self.delay_ms - self.budget_ms
        return over if over > _TOLERANCE * self.delay_ms else 0.0

    def as_dict(self) -> dict[str, object]:
        """The link in JSON types."""
        return {
            "link": self.link,
            "slackness": self.slackness,
            "budget_ms": self.budget_ms,
            "delay_ms": self.delay_ms,
            "over_ms": self.over_ms,
            "absorbed": self.over_ms == 0,
            "needed_slackness": self.needed_slackness,
        }


@dataclass(frozen=True)
class PlanBudgets:
    """The budgets of a plan's links, its warm-up, its time, and its activations at their peak."""

    planner: str
    warmup: tuple[int, ...]
    links: tuple[LinkBudget, ...]
    iteration_ms: float
    peak_activations: tuple[float, ...]

    @property
    def absorbs(self) -> bool:
        """Whether every link is within its budget."""
        return all(link.over_ms == 0 for link in self.links)

    def as_dict(self) -> dict[str, object]:
        """The plan in JSON types."""
        return {
            "planner": self.planner,
            "warmup": list(self.warmup),
            "absorbs": self.absorbs,
            "links": [link.as_dict() for link in self.links],
            "iteration_ms": self.iteration_ms,
            "peak_activations": list(self.peak_activations),
        }


@dataclass(frozen=True)
class Budgets:
    """The budgets of a plan, and the plan with the smallest warm-up for the delays."""

    scenario: Scenario
    current: PlanBudgets
    smallest: PlanBudgets

    def as_dict(self) -> dict[str, object]:
        """Both plans in JSON types."""
        return {
            "scenario": self.scenario.summary(),
            "plan": self.current.as_dict(),
            "smallest": self.smallest.as_dict(),
        }


def budgets(
    scenario: Scenario, planner: str = "zerobubble", *, engine: Engine | None = None
) -> Budgets:
    """Return each link's budget under ``planner``, and the smallest warm-up for the delays.

    The smallest warm-up within all budgets is list-scheduled under the delays, with a split
    backward. Times and activations are those of the transport ideal.

    Raises
    ------
    ScheduleError
        There is no such planner, it cannot plan this scenario, or a device has more than
        one stage: then a stage also waits for the others on its device, which budgets do
        not cover.

    Examples
    --------
    >>> from pipesim import Scenario
    >>> result = budgets(Scenario().with_delay(20, links=[0]))
    >>> result.current.links[0].budget_ms, result.current.links[0].over_ms
    (10.0, 10.0)
    >>> result.smallest.warmup, result.smallest.absorbs, result.smallest.iteration_ms
    ((6, 3, 2, 1), True, 410.0)
    """
    if not scenario.is_plain:
        raise ScheduleError("delay budgets are known only for one stage on each device, in order")
    smallest = planned_under_delays(scenario, "smallest warm-up", smallest_warmup(scenario))
    current = plan(scenario, planner)
    return Budgets(
        scenario, _examined(scenario, current, engine), _examined(scenario, smallest, engine)
    )


def _examined(scenario: Scenario, schedule: Schedule, engine: Engine | None) -> PlanBudgets:
    warmup = analysis.warmup(schedule)
    fused = bool(schedule.is_fused.any())
    links = []
    for link, slackness in enumerate(analysis.slackness(warmup)):
        # Without room for one activation more, stage i+1 must give one back before each F.
        weighted = bool(scenario.activation_limit[link + 1] - warmup[link + 1] < 1)
        needed = analysis.needed_slackness(
            scenario, link, fused=fused, weight_in_steady_state=weighted
        )
        budget_ms = analysis.delay_budget_ms(
            scenario, link, slackness, fused=fused, weight_in_steady_state=weighted
        )
        links.append(
            LinkBudget(
                link=link,
                slackness=slackness,
                budget_ms=budget_ms,
                delay_ms=float(scenario.delay_ms[link].mean()),
                needed_slackness=int(needed) if math.isfinite(needed) else None,
            )
        )
    timeline = Runs(schedule, "ideal", engine=engine).timeline(scenario)
    return PlanBudgets(
        schedule.planner,
        warmup,
        tuple(links),
        timeline.iteration_ms,
        tuple(timeline.peak_activations.tolist()),
    )
