"""The budget that the formula gives a link, and why the engine gives it another one.

The formula looks at one window of a long steady state. Each reason is a trial on the engine: in a
scenario with one thing changed, the link absorbs what the formula then promises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from pipesim import analysis
from pipesim.engine import Engine
from pipesim.scenario import KINDS, TIME_OF, Scenario
from pipesim.schedule import Schedule
from pipesim.studies.absorption import Absorption
from pipesim.text import links, listed
from pipesim.transport import Ideal
from planners import plan

__all__ = ["formula_budget_ms", "why"]

_SAME = 1e-6
"""Budgets that differ by less than this part are the same up to rounding."""

_NEW_PLAN = "a new plan"
_MANY = 16
"""Micro-batches for each stage that are many."""


def formula_budget_ms(
    scenario: Scenario, link: int, slackness: int, *, fused: bool = False, cost_ms: float = 0.0
) -> float:
    """What the formula says that a link absorbs: a delay as the larger of its directions.

    What a message takes besides, ``cost_ms`` each way, uses up its part first.

    Both directions share what :func:`~pipesim.analysis.delay_budget_ms` gives each way, in the
    proportion that they have; those of a healthy link share it equally.

    Examples
    --------
    >>> formula_budget_ms(Scenario(), 0, 2)
    10.0
    >>> formula_budget_ms(Scenario().with_delay(5, [0], directions=["down"]), 0, 2)
    20.0
    >>> formula_budget_ms(Scenario(), 0, 2, cost_ms=3)
    7.0
    """
    pair = scenario.delay_ms[link]
    share = 2 / (1 + float(pair.min() / pair.max())) if pair.any() else 1.0
    each_way = analysis.delay_budget_ms(scenario, link, slackness, fused=fused)
    return share * max(0.0, each_way - cost_ms)


def why(
    scenario: Scenario,
    schedule: Schedule,
    planner: str,
    budgets_ms: Sequence[tuple[float, float]],
    over: Ideal,
    engine: Engine | None = None,
) -> str:
    """Return sentences that say why the formula and the engine differ; empty if they agree.

    Parameters
    ----------
    scenario : Scenario
        What the plan was made for.
    schedule : Schedule
        The plan.
    planner : str
        What made it, and would make it for more micro-batches.
    budgets_ms : sequence of (float, float)
        The formula's budget and the true one of each link.
    over : Ideal
        What messages cost besides delays.
    """
    more = [link for link, (formula, true) in enumerate(budgets_ms) if _above(true, formula)]
    less = [link for link, (formula, true) in enumerate(budgets_ms) if _above(formula, true)]
    found = [f"{_absorb(more)} more than it says"] if more else []
    found += _reasons(scenario, schedule, planner, less, over, engine) if less else []
    describes = "The formula describes one window of a long steady state"
    return " ".join(f"{sentence}." for sentence in (describes, *found)) if found else ""


def _above(one: float, other: float) -> bool:
    return one > other * (1 + _SAME) + _SAME


def _absorb(which: Sequence[int]) -> str:
    return f"{links(which).capitalize()} {'absorbs' if len(which) == 1 else 'absorb'}"


def _reasons(
    scenario: Scenario,
    schedule: Schedule,
    planner: str,
    less: list[int],
    over: Ideal,
    engine: Engine | None,
) -> list[str]:
    """Why each of the links absorbs less: with that changed, it absorbs what the formula says."""
    reasons, words = [], ""
    others = any(set(scenario.slow_links) - {link} for link in less)
    for words, trial in _trials(scenario, schedule, planner, over, others):
        kept = [link for link in less if _keeps(*trial(link), link, over, engine)]
        if kept:
            replanned = words.startswith(_NEW_PLAN)
            clause = f"but would not under {words}" if replanned else f"because {words}"
            reasons.append(f"{_absorb(kept)} less than it says, {clause}")
        less = [link for link in less if link not in kept]
        if not less:
            return reasons
    order = f"because of the order of operators, and would even under {words}"
    return [*reasons, f"{_absorb(less)} less than it says {order}"]


def _keeps(
    scenario: Scenario, schedule: Schedule, link: int, over: Ideal, engine: Engine | None
) -> bool:
    """Whether a plan's link absorbs what the formula says."""
    slackness = analysis.slackness(analysis.warmup(schedule))[link]
    fused = bool(schedule.is_fused.any())
    cost_ms = float(over.costs_ms(scenario)[link])
    promised = formula_budget_ms(scenario, link, slackness, fused=fused, cost_ms=cost_ms)
    return Absorption(scenario, schedule, over, engine=engine).absorbs(link, promised)


Trial: TypeAlias = Callable[[int], tuple[Scenario, Schedule]]
"""From a link to a scenario with something changed, and the plan that is tried there."""


def _trials(
    scenario: Scenario, schedule: Schedule, planner: str, over: Ideal, others: bool
) -> Iterator[tuple[str, Trial]]:
    """What may be to blame, in words, and a trial without it; at last one without any of them.

    ``others``: whether the links in question have other slow links beside them.
    """
    equal = scenario.replaced(
        **{TIME_OF[kind]: float(scenario.durations_ms(kind).mean()) for kind in KINDS}
    )
    ideal, changes = equal, ["equal operator times"]
    if others:
        yield "other links are slow", lambda link: (_alone(scenario, link), schedule)
        changes.append("no other delay")
    if scenario.microbatches < _MANY * scenario.stages:
        many = _with_many_microbatches(scenario)
        few = f"{scenario.microbatches}, where {many.microbatches} would do"
        yield (
            f"there are too few micro-batches: {few}",
            _tried(many, plan(many, planner, over=over)),
        )
        ideal = _with_many_microbatches(ideal)
        changes.append(f"{many.microbatches} micro-batches")
    if np.isfinite(scenario.activation_limit).any():
        unlimited = scenario.replaced(activation_limit=np.inf)
        yield "activations are limited", _tried(unlimited, plan(unlimited, planner, over=over))
        ideal = ideal.replaced(activation_limit=np.inf)
        changes.append("no activation limit")
    if not schedule.is_fused.all():
        yield "W takes time", _tried(scenario.replaced(weight_ms=0.0), schedule)
    yield "operator times differ", _tried(equal, schedule)
    replanned = plan(ideal, planner, over=over)
    yield f"{_NEW_PLAN} for {listed(changes)}", lambda link: (_alone(ideal, link), replanned)


def _tried(scenario: Scenario, schedule: Schedule) -> Trial:
    return lambda link: (scenario, schedule)


def _alone(scenario: Scenario, link: int) -> Scenario:
    """The scenario with the delay of one link only."""
    others = np.arange(scenario.stages - 1) != link
    return scenario.replaced(
        **{
            field: np.where(others[:, None], 0.0, getattr(scenario, field))
            for field in ("latency_ms", "occupancy_ms")
        }
    )


def _with_many_microbatches(scenario: Scenario) -> Scenario:
    """The scenario with its micro-batches repeated until they are many."""
    repeats = math.ceil(_MANY * scenario.stages / scenario.microbatches)
    return scenario.replaced(
        microbatches=repeats * scenario.microbatches,
        **{TIME_OF[kind]: np.tile(scenario.durations_ms(kind), repeats) for kind in KINDS},
    )
