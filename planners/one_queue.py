"""The one-queue planner: whole programs for devices that launch all they do through one queue.

Where kernels queue up, when a message is sent, and together with which others, matters as much as
the order of operators: a late message holds up what is launched behind it. The search changes both
at once, and judges each program over the very transport that it is for. It starts from the best
plans of the other planners, lowered as usual.

Simulated annealing over sequences of operators and messages: see
:mod:`pipesim.engine.compiled.sequence_loops`, where no sequence can hang. Few things help as much
as a batch of a late activation and a gradient of the same link: the kernels that delay them run at
the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pipesim.actions import Action, Op, Upkeep
from pipesim.analysis import bound_over_ms
from pipesim.engine import simulate
from pipesim.errors import ScheduleError
from pipesim.lowering import lower
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Schedule
from pipesim.transport import Exchange, Nccl, Transport, transport
from planners.registry import plan, planner

if TYPE_CHECKING:
    from pipesim.engine.compiled.sequences import Sequence

__all__ = ["STARTS", "one_queue"]

STARTS = (
    "1f1b",
    "interleaved-1f1b",
    "zb-h1",
    "zb-h2",
    "zb-auto",
    "zerobubble",
    "pipemorph",
    "search",
)
"""Who makes the plans that the search starts from."""

MOVES_EACH, MOST_MOVES, MOST_STEPS = 700, 200_000, 150_000 * 1_000
"""Moves tried by default: 700 for each operator and message, which takes a second for 4 stages × 12
micro-batches, and fewer for large pipelines, where each takes longer."""

_AT_ONCE = 4
_WARM, _COLD = 1.0, 0.02
"""Temperatures at the start and the end, in mean operator times."""
_SAME = 1e-9


@planner("one-queue")
def one_queue(
    scenario: Scenario,
    *,
    over: str | Transport = "ideal",
    moves: int | None = None,
    seed: int = 0,
) -> Schedule:
    """Search over operators and messages together, for NCCL's one launch queue or for exchanges.

    Half of the moves start from each of the four best plans of other planners, and the other half
    from the best that these lead to. The plan says itself where it sends and receives, and what
    together. It is never longer, over its transport, than those that it started from.

    Parameters
    ----------
    scenario : Scenario
        Its delays are planned for.
    over : str or Transport
        The transport that the plan is for: ``nccl`` or ``exchange``.
    moves : int, optional
        How many moves to try; default: see ``MOVES_EACH``. The plan depends on this and the seed.
    seed : int
        Of the random moves.

    Raises
    ------
    ScheduleError
        No plan fits the scenario or its activation limits, or nothing queues up over the transport.
    """
    route = transport(over)
    if not isinstance(route, Nccl | Exchange):
        raise ScheduleError(
            f"one-queue needs nccl or exchange, where kernels queue up, not {route}"
        )
    from pipesim.engine.compiled.sequences import Sequences  # and with it numba

    plans = sorted(_plans(scenario, route), key=_ms)
    if not plans:
        raise ScheduleError("one-queue: no plan to start from fits this scenario and its limits")
    board, bound_ms = Sequences(scenario, route), bound_over_ms(scenario, route)
    encoded = (board.encoded(lower(one.schedule, scenario, route)) for one in plans)
    starts = list({sequence.key: sequence for sequence in encoded if sequence}.values())
    most = _most_moves(scenario) if moves is None else moves
    found: list[Sequence] = []

    def anneal(begin: list[Sequence], warm: float, seed: int) -> None:
        for start in begin:
            if all(board.makespan_ms(one) > bound_ms * (1 + _SAME) for one in found):
                tried = most // (2 * len(begin))
                found.append(
                    board.annealed(
                        start, tried, warm=warm, cold=_COLD, bound_ms=bound_ms, seed=seed
                    )
                )

    anneal(starts[:_AT_ONCE], _WARM, seed)
    anneal(sorted(found, key=board.makespan_ms)[:1], _WARM / 2, seed + 1)
    assumed = Assumptions(
        delay_ms=scenario.delay_ms.tolist(),
        activation_limit=scenario.activation_limit.tolist(),
        transport=route.name,
    )
    made = [
        Schedule.of_actions(
            [_with_reductions(row, scenario.microbatches) for row in board.actions(one)],
            scenario.placement,
            scenario.microbatches,
            "one-queue",
            assumed,
        )
        for one in found
    ]
    best = min((_timed(one, scenario, route) for one in made), key=_ms, default=plans[0])
    if best.iteration_ms < plans[0].iteration_ms * (1 - _SAME):
        return best.schedule
    return replace(plans[0].schedule, planner="one-queue", assumed=assumed)


class _Timed(NamedTuple):
    """A plan and what it takes."""

    iteration_ms: float
    fits: bool
    schedule: Schedule


def _ms(one: _Timed) -> float:
    return one.iteration_ms


def _timed(schedule: Schedule, scenario: Scenario, over: Transport) -> _Timed:
    timeline = simulate(scenario, schedule, over, engine="compiled")
    fits = bool((timeline.peak_activations <= scenario.activation_limit + _SAME).all())
    return _Timed(timeline.iteration_ms, fits, schedule)


def _plans(scenario: Scenario, over: Nccl | Exchange) -> Iterator[_Timed]:
    """The plans of other planners that fit the scenario and its limits."""
    for name in STARTS:
        with suppress(ScheduleError):
            one = _timed(plan(scenario, name, over=over), scenario, over)
            if one.fits:
                yield one


def _with_reductions(row: list[Action], microbatches: int) -> list[Action]:
    """Reduce a stage's gradients after its last backward: a plan with messages says all itself."""
    result: list[Action] = []
    backwards: Counter[int] = Counter()
    for action in row:
        result.append(action)
        if isinstance(action, Op) and action.kind in ("W", "BW"):
            backwards[action.stage] += 1
            if backwards[action.stage] == microbatches:
                result.append(Upkeep("REDUCE_GRAD", action.stage))
    return result


def _most_moves(scenario: Scenario) -> int:
    """How many moves are tried by default."""
    entries = (5 * scenario.stages - 2) * scenario.microbatches
    return min(MOST_MOVES, MOVES_EACH * entries, MOST_STEPS // entries)
