"""The search planner: orders that no rule makes, found by compiled local search.

List schedules never wait for a better operator and never go against B before F before W.
Under activation limits both cost time. The search starts from the best of them and shifts
operators on the critical path, within the limits, until its plan meets a lower bound or its
moves are used up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from pipesim.analysis import lower_bound_ms
from pipesim.engine import simulate
from pipesim.scenario import DOWN, UP, Kind, Scenario
from pipesim.schedule import Op, Schedule
from pipesim.transport import Transport, transport
from planners.greedy import list_schedule
from planners.pipemorph import initial_warmup, replanned_warmup
from planners.registry import planner
from planners.zerobubble import jsonable

__all__ = ["MOST_MOVES", "MOVES_EACH", "list_schedules", "search"]

MOST_MOVES, MOVES_EACH = 80_000, 500
"""Moves tried by default: 500 for each operator, which takes 60 ms for 4 stages × 12
micro-batches, up to 80,000, which take half a second for 8 × 32."""

_KINDS: tuple[Kind, ...] = ("F", "B", "W")


@planner("search")
def search(
    scenario: Scenario,
    *,
    over: str | Transport = "ideal",
    moves: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Schedule:
    """Local search over orders under the delays, within the activation limits.

    Parameters
    ----------
    scenario : Scenario
        Its delays are planned for.
    over : str or Transport
        The transport that the plan is for. Moves are judged where nothing blocks; of what
        they lead to and the list schedules, the plan is the best over this transport.
    moves : int, optional
        How many moves to try. Without ``seconds`` the plan depends on this and the seed
        alone. Default: see ``MOST_MOVES``.
    seconds : float, optional
        Search again from the best orders, with other moves, for about this long.
    seed : int
        Of the random moves.

    Raises
    ------
    ScheduleError
        A limit is below what one micro-batch needs.
    """
    started = perf_counter()
    operators = 3 * scenario.stages * scenario.microbatches
    tried = min(MOST_MOVES, MOVES_EACH * operators) if moves is None else moves
    candidates = [_schedule(scenario, orders) for orders in list_schedules(scenario)]

    def time_ms(schedule: Schedule) -> float:
        return simulate(scenario, schedule, over).iteration_ms

    best = min(candidates, key=lambda schedule: simulate(scenario, schedule).iteration_ms)
    bound_ms = lower_bound_ms(scenario) * (1 + 1e-9)
    for turn in count():
        best = _schedule(scenario, _annealed(scenario, best, tried, bound_ms, seed + turn))
        candidates.append(best)
        out_of_time = seconds is None or perf_counter() - started >= seconds
        if out_of_time or simulate(scenario, best).iteration_ms <= bound_ms:
            break
    best = min(reversed(candidates), key=time_ms)
    assumed = {
        "delay_ms": scenario.delay_ms.tolist(),
        "activation_limit": jsonable(scenario.activation_limit.tolist()),
        "transport": transport(over).name,
    }
    return replace(best, planner="search", assumed=assumed)


def _schedule(scenario: Scenario, orders: Sequence[Sequence[Op]]) -> Schedule:
    return Schedule(orders, scenario.placement, scenario.microbatches)


def list_schedules(scenario: Scenario) -> Iterator[list[list[Op]]]:
    """List schedules within the limits: several warm-ups, planned for the delays or without."""
    limits = scenario.activation_limit.tolist()
    capped = [
        [int(min(x, limits[d])) for x, d in zip(warmup, scenario.placement, strict=True)]
        for warmup in (replanned_warmup(scenario), initial_warmup(scenario))
    ]
    for warmup in (None, *capped):
        for delays in (scenario, scenario.without_delay()):
            yield list_schedule(delays, limits=limits, warmup=warmup)


def _annealed(
    scenario: Scenario, start: Schedule, moves: int, bound_ms: float, seed: int
) -> list[list[Op]]:
    from planners._order_search import anneal

    sequence, lengths = _encoded(start)
    durations = np.stack([scenario.durations_ms(kind) for kind in _KINDS])
    mean = float(durations.mean())
    if mean > 0:
        anneal(
            sequence,
            lengths,
            durations,
            scenario.delay_ms[:, DOWN].copy(),
            scenario.delay_ms[:, UP].copy(),
            np.array(scenario.placement),
            scenario.activation_limit.copy(),
            scenario.released_by_b,
            moves,
            _WARM * mean,
            _COLD * mean,
            bound_ms,
            np.random.default_rng(seed),
        )
    return _decoded(sequence, lengths, scenario.stages)


_WARM, _COLD = 1.0, 0.01
"""Temperatures at the start and the end, in mean operator times."""

Codes = NDArray[np.int64]


def _encoded(schedule: Schedule) -> tuple[Codes, Codes]:
    """Orders as codes ``kind · S + stage``, shape [D, L], and the length of each."""
    lengths = np.array([len(order) for order in schedule.orders])
    sequence = np.zeros((len(lengths), lengths.max()), np.int64)
    for device, order in enumerate(schedule.orders):
        codes = [_KINDS.index(op.kind) * schedule.stages + op.stage for op in order]
        sequence[device, : len(codes)] = codes
    return sequence, lengths


def _decoded(sequence: Codes, lengths: Codes, stages: int) -> list[list[Op]]:
    orders = []
    for row, length in zip(sequence.tolist(), lengths.tolist(), strict=True):
        microbatch = [0] * (3 * stages)
        order = []
        for code in row[:length]:
            kind, stage = divmod(code, stages)
            order.append(Op(_KINDS[kind], stage, microbatch[code]))
            microbatch[code] += 1
        orders.append(order)
    return orders
