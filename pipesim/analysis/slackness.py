"""What can be said about a schedule and a scenario without running anything.

Warm-up, slackness and delay budgets are those of the PipeMorph paper (NSDI 2026); the
budget for unequal times and one-way delays, and the bounds, are derived in the docstrings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule

__all__ = [
    "check_lemma_1",
    "delay_budget_ms",
    "growth_rate",
    "needed_slackness",
    "slackness",
    "smallest_warmup",
    "warmup",
]

_TOLERANCE = 1e-9  # relative; a delay that equals its budget up to rounding is within it


def warmup(schedule: Schedule) -> tuple[int, ...]:
    """Warm-up x_i of each stage: the forwards it runs before its first backward, shape [S].

    Examples
    --------
    >>> import pipesim
    >>> warmup(pipesim.plan(Scenario(), "1f1b"))
    (4, 3, 2, 1)
    """
    counts = [0] * schedule.stages
    for order in schedule.orders:
        began: set[int] = set()
        for op in order:
            if op.kind == "F":
                counts[op.stage] += op.stage not in began
            else:
                began.add(op.stage)
    return tuple(counts)


def slackness(warmup: Sequence[int]) -> tuple[int, ...]:
    """Slackness Δ_i = x_i − x_{i+1} of each link, shape [S−1].

    Examples
    --------
    >>> slackness((7, 5, 3, 1))
    (2, 2, 2)
    """
    return tuple(int(delta) for delta in -np.diff(warmup))


def check_lemma_1(schedule: Schedule) -> None:
    """Raise :class:`ScheduleError` if a link's slackness is negative.

    Lemma 1: the first backward of stage i comes after that of stage i+1, and each of stage
    i+1's warm-up forwards has passed through stage i. It holds for every schedule whose
    micro-batches start their backward in the order of their forward.
    """
    for link, delta in enumerate(slackness(warmup(schedule))):
        if delta < 0:
            raise ScheduleError(f"link {link} has slackness {delta}, which Lemma 1 rules out")


def delay_budget_ms(
    scenario: Scenario,
    link: int,
    slackness: float,
    *,
    fused: bool = False,
    weight_in_steady_state: bool = False,
) -> float:
    """The largest delay of a link, each way, that a long steady state hides but for one trip.

    After B_k ends on stage i+1, its gradient goes up, stage i runs B_k and one F, and the
    activation comes down; meanwhile stage i+1 has Δ_i forwards and backwards of its own:

        c_up + t_B,i + t_F,i + c_down ≤ Δ_i · (t_F,i+1 + t_B,i+1)

    The budget is half of what this leaves for both ways. With equal times t it is
    (Δ_i − 1)·t, as in the paper. Times are means over the micro-batches. A plan may absorb more or
    less: it may have few micro-batches, or weights in these windows. What it does absorb,
    :mod:`pipesim.studies.budgets` finds on the engine.

    Parameters
    ----------
    scenario : Scenario
        Operator times.
    link : int
        Link i joins stages i and i+1.
    slackness : float
        Δ_i.
    fused : bool
        The backward is fused (BW) instead of split.
    weight_in_steady_state : bool
        A memory limit forces one W for each B in the steady state of stage i+1.

    Examples
    --------
    >>> delay_budget_ms(Scenario(), link=0, slackness=3)
    20.0
    """
    turnaround, period = _turnaround_and_period(scenario, link, fused, weight_in_steady_state)
    return max(0.0, (slackness * period - turnaround) / 2)


def needed_slackness(
    scenario: Scenario, link: int, *, fused: bool = False, weight_in_steady_state: bool = False
) -> float:
    """Smallest slackness whose budget holds the delay that ``scenario`` has on ``link``.

    The inverse of :func:`delay_budget_ms`; ``inf`` if stage i+1 has no work to fill the wait.

    Examples
    --------
    >>> needed_slackness(Scenario().with_delay(20, links=[0]), link=0)
    3
    """
    turnaround, period = _turnaround_and_period(scenario, link, fused, weight_in_steady_state)
    wait = float(scenario.delay_ms[link].sum()) + turnaround
    if period == 0:
        return math.inf if wait else 0
    return math.ceil(wait / period * (1 - _TOLERANCE))


def smallest_warmup(scenario: Scenario) -> tuple[int, ...]:
    """Smallest warm-up of each stage, shape [S], with every delay within its link's budget.

    Each link gets the slackness that it needs and not less than 1, so that stages overlap;
    no stage runs more forwards than there are micro-batches.

    Examples
    --------
    >>> smallest_warmup(Scenario().with_delay(20, links=[0]))
    (6, 3, 2, 1)
    """
    warmup = [1]
    for link in reversed(range(scenario.stages - 1)):
        needed = needed_slackness(scenario, link) if scenario.crosses(link) else 0
        warmup.append(int(min(warmup[-1] + max(1, needed), scenario.microbatches)))
    return tuple(warmup[::-1])


def _turnaround_and_period(
    scenario: Scenario, link: int, fused: bool, weight_in_steady_state: bool
) -> tuple[float, float]:
    scenario.check_link(link)
    backward = scenario.fused_backward_ms if fused else scenario.backward_ms
    pair = (scenario.forward_ms + backward).mean(axis=1)
    period = pair[link + 1]
    if weight_in_steady_state and not fused:
        period = period + scenario.weight_ms[link + 1].mean()
    return float(pair[link]), float(period)


def growth_rate(microbatches: int, slackness: int) -> float:
    """Growth of the iteration per millisecond of delay above the budget: 2N / (Δ_i + 1).

    From the end of B_k on stage i+1 a gradient goes up, B_k and a forward run on stage i, the
    activation comes down, and stage i+1 runs that forward and B_(k+Δ+1): Δ + 1 micro-batches
    take 2c + 4t once 2c + 4t > 2(Δ + 1)t, which is c > (Δ − 1)t, the budget. This is the
    limit for many micro-batches and holds where every F waits for its turn between two
    backwards, as it does in the plans made for the budget's delay.

    The paper's Theorem 1 says N/Δ_i. The two agree for 1F1B (Δ = 1); for Δ ≥ 2 measurement on
    the engine sides with 2N / (Δ + 1). With few micro-batches the first and last windows
    count: the worked example (N = 12, Δ = 2) grows by 8 on links 1 and 2, as this says, and
    by 6 on link 0.

    Examples
    --------
    >>> growth_rate(12, 1), growth_rate(12, 2)
    (12.0, 8.0)
    """
    return 2 * microbatches / (slackness + 1)
