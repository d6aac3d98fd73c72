"""PipeMorph (NSDI 2026): warm-ups that give slow links the slackness that they need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np

from pipesim.analysis import delay_budget_ms, lower_bound_ms, needed_slackness
from pipesim.engine import Runs
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Ideal, Transport, transport
from planners.greedy import ListSchedule, list_schedule
from planners.registry import planner
from planners.zerobubble import planned_without_delay

__all__ = [
    "MOST_OPERATORS",
    "initial_warmup",
    "pipemorph",
    "pipemorph_initial",
    "planned_under_delays",
    "replanned_warmup",
]


@planner("pipemorph-initial")
def pipemorph_initial(scenario: Scenario) -> Schedule:
    """Algorithm 1: spread the activations that fit as evenly as possible over the links."""
    return planned_without_delay(
        scenario,
        "pipemorph-initial",
        limits=scenario.activation_limit.tolist(),
        warmup=initial_warmup(scenario),
    )


@planner("pipemorph-published")
def pipemorph_published(scenario: Scenario) -> Schedule:
    """Algorithms 2–4 as published: a warm-up for the delays, list-scheduled under them.

    Warm-ups may exceed a device's activation limit: the extra activations go to host memory,
    up to its limit. Past the warm-up a device never holds more than it did then.
    """
    return planned_under_delays(scenario, "pipemorph-published", replanned_warmup(scenario))


@planner("pipemorph")
def pipemorph(scenario: Scenario, *, over: str | Transport = "ideal") -> Schedule:
    """The shortest of the published plans for these and longer delays, and of no re-planning.

    A warm-up for the delays can be worse than that of ``zerobubble``, and worse than one for
    longer delays. Compared is over the transport, under the scenario's delays; of equals the
    plan that holds least is taken.

    Plans for the delays alone are tried beside those for the delays and what messages cost, so that
    to know the latter never hurts. Where something blocks, which takes longer to try, only the best
    of the former is.

    Where nothing blocks, delays that are stretched alike never make the iteration shorter: for
    every slackness of the slowest link there is one plan, made for all that it absorbs, and a
    shorter delay has the same ones to choose from and more. That may fail for pipelines that are
    too large to try them all (:data:`MOST_OPERATORS`) and for delays of many iterations.

    Parameters
    ----------
    scenario : Scenario
        Its delays are planned for.
    over : str or Transport
        The transport that the plan is for.
    """
    route = transport(over)
    told = scenario.with_message_cost(route.costs_ms(scenario))
    where, under = (route, scenario) if route.blocks else (Ideal(), told)
    enough_ms = lower_bound_ms(told) * (1 + _SAME)
    tried: list[tuple[Timeline, Schedule]] = []
    for orders, warmup, made_ms in _candidates(scenario, told, blocks=route.blocks):
        schedule = _assuming(told, "pipemorph", orders, warmup, route)
        if made_ms <= enough_ms and not route.blocks:
            return schedule  # without running it, which takes long for large pipelines
        run = Runs(schedule, where).timeline(under)
        tried.append((run, schedule))
        if run.iteration_ms <= enough_ms:
            break
    shortest_ms = min(run.iteration_ms for run, _ in tried) * (1 + _SAME)
    shortest = [one for one in tried if one[0].iteration_ms <= shortest_ms]
    return min(shortest, key=lambda one: float(one[0].peak_activations.sum()))[1]


MOST_OPERATORS = 20_000
"""To list-schedule for one plan, all plans that it is chosen from together: a tenth of a second."""

_SAME = 1e-9
_PER_DOUBLING, _BEYOND = 4, 12


def _most_plans(scenario: Scenario) -> int:
    """How many plans there may be to choose from; not only the first, which may be worst."""
    return max(2, MOST_OPERATORS // (3 * scenario.stages * scenario.microbatches))


_Plan: TypeAlias = tuple[Sequence[Sequence[Op]], Sequence[int] | None, float]
"""Orders, their warm-up, and how long they take."""


def _candidates(scenario: Scenario, told: Scenario, *, blocks: bool) -> Iterator[_Plan]:
    """Plans to choose from: for delays and messages, and, where these cost, for delays alone.

    The time of the latter is infinite: it is not that under all that the scenario has.
    """
    yield from islice(_plans(told), _most_plans(told))
    if (told.delay_ms == scenario.delay_ms).all():
        return
    if blocks:
        best = pipemorph(scenario)
        yield best.orders, best.assumed.warmup, math.inf
    else:
        for orders, warmup, _ in islice(_plans(scenario), _most_plans(scenario)):
            yield orders, warmup, math.inf


def _plans(scenario: Scenario) -> Iterator[_Plan]:
    """Plans to choose from: the published one, that of ``zerobubble``, and those for longer delays.

    With each comes how long it takes, in ms, where nothing blocks and under the delays that it is
    made for, which are no shorter than the scenario's; infinite where it is made for none.
    """
    for place, longer in enumerate(_budgets(scenario)):
        warmup = replanned_warmup(longer)
        listed = _listed(longer, warmup)
        yield listed.orders, warmup, listed.makespan_ms
        if not place:
            limits = scenario.activation_limit.tolist()
            unplanned = list_schedule(scenario.without_delay(), limits=limits)
            yield unplanned.orders, None, math.inf


def _budgets(scenario: Scenario) -> Iterator[Scenario]:
    """Yield the scenario with its delays stretched to what each slackness absorbs.

    It is that of the link which is the first to need more slackness than there are micro-batches:
    from the slackness that its delay needs up to that, and then 19 % longer delays each time, up
    to eight times as long. Between two slacknesses small pipelines get up to three more. Without
    slow links the scenario alone is yielded.
    """
    most = scenario.microbatches + 1

    def absorbed(link: int, slackness: float) -> float:
        """How often the link's delay fits into what a slackness absorbs."""
        with np.errstate(over="ignore"):
            twice_ms = 2 * delay_budget_ms(scenario, link, slackness)
            return float(twice_ms / scenario.delay_ms[link].sum())

    last, link = min(((absorbed(i, most), i) for i in scenario.slow_links), default=(0.0, 0))
    if not 0 < last < math.inf:  # no delay worth the name, or no work to absorb one
        yield scenario
        return
    steps = min(4, max(1, _most_plans(scenario) // (most + _BEYOND)))
    parts = [absorbed(link, step / steps) for step in range(steps + 1, most * steps)]
    first = max(0, math.ceil(-_PER_DOUBLING * math.log2(last) - _SAME))
    beyond = range(first, max(first, _BEYOND) + 1)
    parts += [last * 2.0 ** (k / _PER_DOUBLING) for k in beyond]
    for part in parts:
        if part > 1 - _SAME:
            yield scenario.replaced(latency_ms=scenario.delay_ms * part, occupancy_ms=0.0)


def planned_under_delays(scenario: Scenario, name: str, warmup: Sequence[int]) -> Schedule:
    """List-schedule ``scenario`` under its delays with the given warm-up, shape [S].

    What the warm-up holds beyond a device's limit is meant for host memory.
    """
    return _assuming(scenario, name, _listed(scenario, warmup).orders, warmup, None)


def _listed(scenario: Scenario, warmup: Sequence[int]) -> ListSchedule:
    limits = scenario.activation_limit.copy()
    for device, stages in enumerate(scenario.stages_of):
        limits[device] = max(limits[device], sum(warmup[s] for s in stages))
    return list_schedule(scenario, limits=limits.tolist(), warmup=warmup)


def _assuming(
    scenario: Scenario,
    name: str,
    orders: Sequence[Sequence[Op]],
    warmup: Sequence[int] | None,
    over: Transport | None,
) -> Schedule:
    assumed = Assumptions(
        delay_ms=scenario.delay_ms.tolist(),
        activation_limit=scenario.activation_limit.tolist(),
        host_limit=scenario.host_limit.tolist(),
        warmup=warmup,
        transport=over.name if over else None,
    )
    return Schedule(orders, scenario.placement, scenario.microbatches, name, assumed)


def initial_warmup(scenario: Scenario) -> list[int]:
    """Algorithm 1: the warm-up of each stage when no link is slow, shape [S].

    M activations fit on the first stage: x_{S−1} = 1, x_0 = M, M − 1 = q·(S−1) + r, and the
    first r links get slackness q + 1, the others q. Without a limit, M = 2S − 1.
    """
    links = scenario.stages - 1
    if not links:
        return [1]
    limit = float(scenario.activation_limit[scenario.placement[0]])
    fits = min(limit, scenario.microbatches) if math.isfinite(limit) else 2 * links + 1
    q, r = divmod(int(min(fits, scenario.microbatches)) - 1, links)
    slackness = [q + 1] * r + [q] * (links - r)
    return [1 + sum(slackness[i:]) for i in range(scenario.stages)]


def replanned_warmup(scenario: Scenario) -> list[int]:
    """Algorithm 2: the warm-up of each stage for the scenario's delays, shape [S].

    From the last stage up, Δ_i is the smallest slackness whose budget holds c_i, not over
    N − x_{i+1} − 2i, which leaves two forwards of slack for each link above, and not under 2.
    Where N is too small for both, the links below come first. No x_i is over N.
    """
    n = scenario.microbatches
    warmup = [1]
    for link in reversed(range(scenario.stages - 1)):
        below = warmup[-1]
        need = 2.0
        if scenario.crosses(link):
            need = max(need, needed_slackness(scenario, link))
        slack = max(2, min(need, n - below - 2 * link))
        device = scenario.placement[link]
        room = float(scenario.activation_limit[device] + scenario.host_limit[device])
        warmup.append(int(max(below if room >= below else 1, min(below + slack, n, room))))
    return warmup[::-1]
