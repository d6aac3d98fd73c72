"""PipeMorph (NSDI 2026): warm-ups that give slow links the slackness that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipesim.analysis import needed_slackness
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Schedule
from planners.greedy import list_schedule
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


@planner("pipemorph")
def pipemorph(scenario: Scenario) -> Schedule:
    """Algorithms 2–4: re-plan the warm-up for the delays, then list-schedule under them.

    Warm-ups may exceed a device's activation limit: the extra activations go to host memory,
    up to its limit. Past the warm-up a device never holds more than it did then.
    """
    return planned_under_delays(scenario, "pipemorph", replanned_warmup(scenario))


def planned_under_delays(scenario: Scenario, name: str, warmup: Sequence[int]) -> Schedule:
    """List-schedule ``scenario`` under its delays with the given warm-up, shape [S].

    What the warm-up holds beyond a device's limit is meant for host memory.
    """
    limits = scenario.activation_limit.copy()
    for device, stages in enumerate(scenario.stages_of):
        limits[device] = max(limits[device], sum(warmup[s] for s in stages))
    orders = list_schedule(scenario, limits=limits.tolist(), warmup=warmup)
    assumed = Assumptions(
        delay_ms=scenario.delay_ms.tolist(),
        activation_limit=scenario.activation_limit.tolist(),
        host_limit=scenario.host_limit.tolist(),
        warmup=warmup,
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
