"""Which delays a plan absorbs, and a warm-up that absorbs the others.

A link absorbs its delay if it adds no more than itself to the iteration. What counts is the engine
(:mod:`.absorption`); beside it stands the formula's budget, which comes from Theorem 1 of the
PipeMorph paper and looks at one window of a long steady state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipesim import analysis
from pipesim.analysis import smallest_warmup
from pipesim.engine import Engine, Runs
from pipesim.errors import ScheduleError
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.studies.absorption import Absorption
from pipesim.studies.advice import NEGLIGIBLE
from pipesim.studies.budget_formula import formula_budget_ms, why
from pipesim.timeline import Timeline
from pipesim.transport import Ideal
from planners import plan
from planners.pipemorph import planned_under_delays

__all__ = ["Budgets", "LinkBudget", "PlanBudgets", "budgets"]

_MOST_OPERATORS = 2_000_000
"""So many operators are planned in the search for a warm-up, but at least one plan."""


@dataclass(frozen=True)
class LinkBudget:
    """One link under one plan. Times in milliseconds; a delay is the larger of its directions.

    Attributes
    ----------
    slackness : int
        Δ_i under the plan.
    budget_ms : float
        The largest delay that the plan absorbs by the formula.
    true_budget_ms : float
        The largest that it absorbs on the engine; ``inf`` (in JSON null) if it absorbs any.
    delay_ms, growth_ms : float
        What the link has, and what this adds to the iteration: beside the other delays, or alone,
        whichever is more.
    absorbed : bool
        Whether the engine says that the growth is no more than the delay.
    needed_slackness : int or None
        The smallest whose budget by the formula holds the delay; None where none does.
    """

    link: int
    slackness: int
    budget_ms: float
    true_budget_ms: float
    delay_ms: float
    growth_ms: float
    absorbed: bool
    needed_slackness: int | None

    @property
    def over_ms(self) -> float:
        """How far the delay exceeds the true budget; 0 if it is absorbed."""
        return 0.0 if self.absorbed else self.delay_ms - self.true_budget_ms

    def as_dict(self) -> dict[str, object]:
        """The link in JSON types."""
        return {
            "link": self.link,
            "slackness": self.slackness,
            "budget_ms": self.budget_ms,
            "true_budget_ms": self.true_budget_ms if math.isfinite(self.true_budget_ms) else None,
            "delay_ms": self.delay_ms,
            "growth_ms": self.growth_ms,
            "over_ms": self.over_ms,
            "absorbed": self.absorbed,
            "needed_slackness": self.needed_slackness,
        }


@dataclass(frozen=True)
class PlanBudgets:
    """The budgets of a plan's links, its warm-up, its time, and what it holds.

    Attributes
    ----------
    schedule : Schedule
        The plan.
    growth_ms : float
        What all delays add to the iteration together.
    absorbs : bool
        Whether every link absorbs its delay and all add no more than their sum.
    peak_activations, host_activations : tuple of float
        What each device holds at most, and how much of it is over the device's own limit.
    """

    schedule: Schedule
    warmup: tuple[int, ...]
    links: tuple[LinkBudget, ...]
    growth_ms: float
    absorbs: bool
    iteration_ms: float
    peak_activations: tuple[float, ...]
    host_activations: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        """The plan in JSON types."""
        return {
            "planner": self.schedule.planner,
            "warmup": list(self.warmup),
            "absorbs": self.absorbs,
            "growth_ms": self.growth_ms,
            "links": [link.as_dict() for link in self.links],
            "iteration_ms": self.iteration_ms,
            "peak_activations": list(self.peak_activations),
            "host_activations": list(self.host_activations),
        }


@dataclass(frozen=True)
class Budgets:
    """The budgets of a plan, and those of a plan with another warm-up, made for the delays.

    Attributes
    ----------
    smallest : PlanBudgets
        The smallest warm-up that was tried, absorbs all delays and is faster than the plan; where
        there is none, the fastest that was tried.
    over : Ideal
        What messages cost.
    why : str
        Why the formula and the engine differ about the current plan; empty if they do not.
    pipemorph : Timeline
        How the plan of ``pipemorph`` runs, which need not absorb any delay.
    """

    scenario: Scenario
    current: PlanBudgets
    smallest: PlanBudgets
    why: str
    pipemorph: Timeline
    over: Ideal = field(default_factory=Ideal)

    @property
    def costs_ms(self) -> Array:
        """What a message of each link takes besides the delay, shape [S−1]."""
        return self.over.costs_ms(self.scenario)

    @property
    def recommended(self) -> bool:
        """Whether the other warm-up is worth it: delays are not absorbed, and it is faster."""
        faster = self.smallest.iteration_ms < self.current.iteration_ms * (1 - NEGLIGIBLE)
        return faster and not self.current.absorbs

    @property
    def pipemorph_is_faster(self) -> bool:
        """Whether ``pipemorph`` is worth it beside the plan and the recommended warm-up."""
        other = self.smallest if self.recommended else self.current
        return self.pipemorph.iteration_ms < other.iteration_ms * (1 - NEGLIGIBLE)

    def as_dict(self) -> dict[str, object]:
        """The plans in JSON types."""
        return {
            "scenario": self.scenario.summary(),
            "plan": self.current.as_dict(),
            "why": self.why,
            "smallest": self.smallest.as_dict(),
            "recommended": self.recommended,
            "pipemorph": {
                "iteration_ms": self.pipemorph.iteration_ms,
                "host_activations": self.pipemorph.peak_host_activations.tolist(),
            },
        }


def budgets(
    scenario: Scenario,
    planner: str = "zerobubble",
    over: Ideal | None = None,
    *,
    engine: Engine | None = None,
) -> Budgets:
    """Return each link's budget under ``planner``, and a warm-up for the delays.

    A delay is what comes on top of the time that a message takes over ``over`` anyway, by default
    none. Plans are made for both.

    Times and activations are those of the transport ideal. Warm-ups are tried from the smallest
    up whose budgets by the formula hold the delays, see :func:`~pipesim.analysis.smallest_warmup`;
    they are list-scheduled under the delays, with a split backward.

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
    >>> slow = result.current.links[0]
    >>> slow.budget_ms, round(slow.true_budget_ms, 6), slow.growth_ms, slow.absorbed
    (10.0, 14.0, 50.0, False)
    >>> result.smallest.warmup, result.smallest.absorbs, result.smallest.iteration_ms
    ((6, 3, 2, 1), True, 410.0)
    """
    if not scenario.is_plain:
        raise ScheduleError("delay budgets are known only for one stage on each device, in order")
    over = over or Ideal()
    schedule = plan(scenario, planner, over=over)
    current = _examined(scenario, schedule, over, engine)
    pairs = [(link.budget_ms, link.true_budget_ms) for link in current.links]
    reason = why(scenario, schedule, planner, pairs, over, engine)
    other = _smallest(scenario, current.iteration_ms * (1 - NEGLIGIBLE), over, engine)
    pipemorph = plan(scenario, "pipemorph", over=over)
    return Budgets(
        scenario,
        current,
        _examined(scenario, other, over, engine),
        reason,
        Runs(pipemorph, over, engine=engine).timeline(scenario),
        over,
    )


def _examined(
    scenario: Scenario, schedule: Schedule, over: Ideal, engine: Engine | None
) -> PlanBudgets:
    warmup = analysis.warmup(schedule)
    absorption = Absorption(scenario, schedule, over, engine=engine)
    links = tuple(
        _link(scenario, link, slackness, bool(schedule.is_fused.any()), over, absorption)
        for link, slackness in enumerate(analysis.slackness(warmup))
    )
    timeline = Runs(schedule, over, engine=engine).timeline(scenario)
    return PlanBudgets(
        schedule,
        warmup,
        links,
        absorption.joint_growth_ms(),
        absorption.absorbs_jointly() and all(link.absorbed for link in links),
        timeline.iteration_ms,
        tuple(timeline.peak_activations.tolist()),
        tuple(timeline.peak_host_activations.tolist()),
    )


def _link(
    scenario: Scenario,
    link: int,
    slackness: int,
    fused: bool,
    over: Ideal,
    absorption: Absorption,
) -> LinkBudget:
    costs_ms = over.costs_ms(scenario)
    needed = analysis.needed_slackness(scenario.with_message_cost(costs_ms), link, fused=fused)
    return LinkBudget(
        link=link,
        slackness=slackness,
        budget_ms=formula_budget_ms(
            scenario, link, slackness, fused=fused, cost_ms=float(costs_ms[link])
        ),
        true_budget_ms=absorption.true_budget_ms(link),
        delay_ms=absorption.delay_ms(link),
        growth_ms=absorption.growth_ms(link),
        absorbed=absorption.absorbs(link),
        needed_slackness=int(needed) if math.isfinite(needed) else None,
    )


def _smallest(scenario: Scenario, enough_ms: float, over: Ideal, engine: Engine | None) -> Schedule:
    """The plan with the first warm-up that absorbs all delays in less than ``enough_ms``.

    If there is none: the fastest plan that was tried.
    """
    fastest, least_ms = None, math.inf
    for schedule, absorbs, iteration_ms in _tried(scenario, over, engine):
        if absorbs and iteration_ms < enough_ms:
            return schedule
        if iteration_ms < least_ms:
            fastest, least_ms = schedule, iteration_ms
    assert fastest is not None
    return fastest


def _tried(
    scenario: Scenario, over: Ideal, engine: Engine | None
) -> Iterator[tuple[Schedule, bool, float]]:
    """Plans with growing warm-ups, whether each absorbs all delays, and its iteration time.

    Each has one more slackness on the links that were over, or, where only their sum was, on all
    slow links. No stage warms up with more forwards than there are micro-batches, or than fit on
    its device and host.
    """
    room = np.floor(scenario.activation_limit + scenario.host_limit)
    most = np.minimum.accumulate(np.minimum(room, scenario.microbatches))
    told = scenario.with_message_cost(over.costs_ms(scenario))
    warmup = np.minimum(smallest_warmup(told), most)
    operators, slow = 3 * scenario.stages * scenario.microbatches, scenario.slow_links
    for _ in range(1 + _MOST_OPERATORS // operators):
        schedule = planned_under_delays(
            told, "smallest warm-up", [int(forwards) for forwards in warmup]
        )
        absorption = Absorption(scenario, schedule, over, engine=engine)
        exceeded = [link for link in slow if not absorption.absorbs(link)]
        absorbs = not exceeded and absorption.absorbs_jointly()
        yield schedule, absorbs, Runs(schedule, over, engine=engine).makespan_ms(scenario)
        # A link's slackness grows with the warm-ups of all stages up to it.
        above = np.arange(scenario.stages)[:, None] <= np.array(exceeded or slow, dtype=int)
        raised = np.minimum(warmup + above.sum(axis=1), most)
        if absorbs or (raised == warmup).all():
            return
        warmup = raised
