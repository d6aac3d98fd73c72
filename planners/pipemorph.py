"""PipeMorph (NSDI 2026): warm-ups that give slow links the slackness that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipesim.analysis import lower_bound_ms, needed_slackness
from pipesim.engine import Runs, evaluate
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from pipesim.transport import Ideal, Transport, transport
from planners.greedy import ListSchedule, list_schedule
from planners.ladder import rungs
from planners.registry import planner
from planners.zerobubble import planned_without_delay

__all__ = [
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
    """The best of the published plan, those for longer delays, and not re-planning at all.

    The published plan is taken where it meets the lower bound. Otherwise it is not always the
    shortest: a warm-up for the delays can be worse than that of ``zerobubble``, and worse than
    one for longer delays. Compared is over the transport, under the scenario's delays; of
    equals the one that holds least is taken. Where nothing blocks and along one ratio of delays
    between links, a longer delay never gets a shorter iteration (:mod:`planners.ladder`).

    Parameters
    ----------
    scenario : Scenario
        Its delays are planned for.
    over : str or Transport
        The transport that the plan is for.
    """
    route = transport(over)
    bound_ms = lower_bound_ms(scenario) * (1 + _SAME)
    warmup = replanned_warmup(scenario)
    listed = _listed(scenario, warmup)
    published = _assuming(scenario, "pipemorph", listed.orders, warmup, route)
    blocks = route != Ideal()
    time_ms = float(evaluate(scenario, published, route)) if blocks else listed.makespan_ms
    if time_ms <= bound_ms:
        return published
    limits = scenario.activation_limit.tolist()
    unplanned = list_schedule(scenario.without_delay(), limits=limits)
    candidates = [_assuming(scenario, "pipemorph", unplanned.orders, None, route)]
    for rung in rungs(scenario, per_doubling=_rungs_per_doubling(scenario)):
        warmup = replanned_warmup(rung)
        orders = _listed(rung, warmup).orders
        candidates.append(_assuming(scenario, "pipemorph", orders, warmup, route))
    if blocks or len(candidates) == 1:
        candidates.append(published)
    return _shortest(scenario, candidates, route)


_SAME = 1e-9
_MOST_OPERATORS = 16_000
"""To list-schedule for rungs: a tenth of a second."""


def _rungs_per_doubling(scenario: Scenario) -> int:
    """Rungs as narrow as time allows; the same for all delays."""
    operators = 3 * scenario.stages * scenario.microbatches
    doublings = math.log2(4 * scenario.microbatches)
    return max(1, min(8, int(_MOST_OPERATORS / (operators * doublings))))


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
    orders: list[list[Op]],
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


def _shortest(scenario: Scenario, candidates: Sequence[Schedule], over: Transport) -> Schedule:
    """Of the plans that are the shortest over a transport, the one that holds least."""
    runs = [Runs(schedule, over).timeline(scenario) for schedule in candidates]
    enough_ms = min(run.iteration_ms for run in runs) * (1 + _SAME)
    _, best = min(
        (float(run.peak_activations.sum()), index)
        for index, run in enumerate(runs)
        if run.iteration_ms <= enough_ms
    )
    return candidates[best]


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
