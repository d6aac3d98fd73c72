"""The search planner: compiled local search for orders that no rule produces.

List schedules never wait for a better operator and never go against B before F before W.
Under activation limits both cost time. The search starts from the best of them and shifts
operators on the critical path, within the limits, until its plan meets a lower bound or its
moves are used up. It runs in whole numbers, so that the unit of time decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice, pairwise
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from pipesim.analysis import lower_bound_ms
from pipesim.engine import evaluate
from pipesim.scenario import Kind, Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from pipesim.transport import Transport, transport
from pipesim.units import in_whole_units
from planners.greedy import list_schedule
from planners.ladder import rungs
from planners.pipemorph import initial_warmup, replanned_warmup
from planners.registry import planner

__all__ = ["MOST_MOVES", "MOVES_EACH", "list_schedules", "quick_search", "search"]

MOST_MOVES, MOVES_EACH, MOST_STEPS = 140_000, 1_000, 140_000 * 768
"""Moves tried by default: 1,000 for each operator, which takes 0.15 s for 4 stages × 12
micro-batches, up to 140,000, which take a second for 8 × 32. A move costs a step for each
operator; of larger pipelines fewer moves are tried, so that they take no more steps than that."""

_PER_DOUBLING, _RUNGS = 16, 8
_SPLIT: tuple[Kind, ...] = ("F", "B", "W")
_SAME = 1e-9


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

    Moves are judged under delays a little longer than the scenario's: at each of eight rungs of
    :mod:`planners.ladder`, 4 % apart. So delays that differ less lead to the same plans, and a
    plan found for a longer delay is there for a shorter one. Of what was found and the list
    schedules, the plan is the shortest under the scenario's own delays. Where messages cost
    something, the plan for the delays alone is one of them, so that to know the costs never hurts.

    Parameters
    ----------
    scenario : Scenario
        Its delays are planned for.
    over : str or Transport
        The transport that the plan is for. Moves are judged where nothing blocks and messages
        cost what they do there; of what they lead to and the list schedules, the plan is the best
        over this transport.
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
    route = transport(over)
    told = scenario.with_message_cost(route.costs_ms(scenario))
    operators = 3 * scenario.stages * scenario.microbatches
    most = min(MOST_MOVES, MOVES_EACH * operators, MOST_STEPS // operators)
    tried = most if moves is None else moves
    home = _Board(told)
    candidates = [home.encoded(orders) for orders in list_schedules(told)]
    if (told.delay_ms != scenario.delay_ms).any():
        candidates += map(home.encoded, list_schedules(scenario))
        candidates.append(home.encoded(search(scenario, moves=moves, seed=seed).orders))
    best = min(map(home.time, candidates))
    starts = _starts(told) if best > home.bound else []
    for turn in count():
        for index, (board, start) in enumerate(starts):
            if best <= home.bound:
                break
            found = board.annealed(start, tried // len(starts), seed + turn)
            starts[index] = board, found
            candidates.append(found)
            best = min(best, home.time(found))
        out_of_time = seconds is None or perf_counter() - started >= seconds
        if out_of_time or best <= home.bound:
            break
    if not route.blocks:
        return home.schedule(min(candidates, key=home.time), "search", route)
    schedules = [home.schedule(codes, "search", route) for codes in reversed(candidates)]
    times = np.array([evaluate(scenario, schedule, route) for schedule in schedules])
    return schedules[int(np.argmax(times <= times.min() * (1 + _SAME)))]


@planner("quick-search")
def quick_search(scenario: Scenario) -> Schedule:
    """A search of about 20 ms: 1,000 moves from the best of three list schedules.

    One has PipeMorph's warm-up, as far as it fits on the devices; one runs forwards as they
    come, and one is that for healthy links.

    Raises
    ------
    ScheduleError
        A limit is below what one micro-batch needs.
    """
    home = _Board(scenario)
    board = _Board(next(rungs(scenario, per_doubling=_PER_DOUBLING), scenario))
    limits = scenario.activation_limit.tolist()
    starts = [
        home.encoded(list_schedule(delays, limits=limits, warmup=warmup).orders)
        for delays, warmup in (
            (scenario, None),
            (scenario, replanned_warmup(scenario)),
            (scenario.without_delay(), None),
        )
    ]
    found = board.annealed(min(starts, key=board.time), QUICK_MOVES, seed=0)
    return home.schedule(min((found, *starts), key=home.time), "quick-search", "ideal")


QUICK_MOVES = 1_000


def _starts(scenario: Scenario) -> list[tuple[_Board, Codes]]:
    """The best list schedule at each rung, or under the delays where there is no rung."""
    targets = list(islice(rungs(scenario, per_doubling=_PER_DOUBLING), _RUNGS)) or [scenario]
    boards = [_Board(target) for target in targets]
    return [
        (board, min(map(board.encoded, list_schedules(board.scenario)), key=board.time))
        for board in boards
    ]


def list_schedules(scenario: Scenario) -> Iterator[list[list[Op]]]:
    """List schedules within the limits: several warm-ups, planned for the delays or without."""
    limits = scenario.activation_limit.tolist()
    warmups = (replanned_warmup(scenario), initial_warmup(scenario))
    for warmup in (None, *warmups):
        for delays in (scenario, scenario.without_delay()):
            yield list_schedule(delays, limits=limits, warmup=warmup).orders


Codes = NDArray[np.int32]


class _Board:
    """A scenario in the arrays of the compiled search, where orders are codes."""

    def __init__(self, scenario: Scenario) -> None:
        from pipesim.engine.compiled.orders import OrderEvaluator  # and with it numba

        self.scenario = scenario
        self._whole, _ = in_whole_units(scenario)
        self.bound = lower_bound_ms(self._whole) * (1 + 1e-9)
        self._evaluator = OrderEvaluator(self._whole)
        lengths = [3 * scenario.microbatches * len(own) for own in scenario.stages_of]
        self._first = np.cumsum([0, *lengths], dtype=np.int32)

    def encoded(self, orders: Sequence[Sequence[Op]]) -> Codes:
        """Orders of all devices as codes, device after device."""
        codes = [self._evaluator.code(op) for order in orders for op in order]
        assert len(codes) == self._first[-1], "machine code takes complete orders alone"
        return np.array(codes, dtype=np.int32)

    def time(self, codes: Codes) -> float:
        """The makespan of orders where nothing blocks."""
        return self._evaluator.makespan_ms(codes, self._first)

    def annealed(self, codes: Codes, moves: int, seed: int) -> Codes:
        """Orders that moves lead to; never worse ones."""
        from pipesim.engine.compiled.order_loops import anneal, scratch

        scenario, result = self._whole, codes.copy()
        mean = float(np.stack([scenario.durations_ms(kind) for kind in _SPLIT]).mean())
        if mean > 0:
            anneal(
                result,
                self._first,
                self._evaluator.constants,
                scratch(self._evaluator.constants),
                scenario.activation_limit.copy(),
                moves,
                _WARM * mean,
                _COLD * mean,
                self.bound,
                np.random.default_rng(seed),
            )
        return result

    def schedule(self, codes: Codes, name: str, over: str | Transport) -> Schedule:
        """The schedule of orders, and what it assumed."""
        scenario = self.scenario
        ops = [self._evaluator.op(code) for code in codes.tolist()]
        orders = [ops[a:b] for a, b in pairwise(self._first.tolist())]
        assumed = Assumptions(
            delay_ms=scenario.delay_ms.tolist(),
            activation_limit=scenario.activation_limit.tolist(),
            transport=transport(over).name,
        )
        return Schedule(orders, scenario.placement, scenario.microbatches, name, assumed)


_WARM, _COLD = 1.0, 0.01
"""Temperatures at the start and the end, in mean operator times."""
