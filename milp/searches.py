"""The two searches: micro-batches in order, and in any order."""

from __future__ import annotations

import math
from dataclasses import replace

from milp.known import Known
from milp.running import Running
from pipesim.analysis import bounds
from pipesim.analysis.windows import TOLERANCE, find_windows, searchable

__all__ = ["search_any_order", "search_in_order"]

_CLOSE = 1.005
"""A schedule within this factor of the horizon is taken into it."""
_FIRST_STEP = 0.0025
"""By which part the horizon grows first; then twice as much each time."""
_ROOM = 0.02
"""By which part it grows after a horizon that the solver could not decide."""
_PREPARING = 0.25
"""Most of the time left that a bound or a horizon's windows may take."""
_HALF = 0.5
"""What a search may take of the time left when another one may have to follow."""


def search_in_order(known: Known, run: Running) -> None:
    """Search the split schedules in which no micro-batch overtakes another.

    The solver first gets the shortest horizon that could hold a schedule. Where it proves
    that none does, it gets a longer one, up to the best known iteration time. Short horizons
    decide most orders beforehand (:mod:`pipesim.analysis.windows`), and so they are solved fast.
    """
    scenario = known.network.scenario
    longest = bounds.serial_ms(scenario)
    bound_ms, horizon = bounds.shortest_horizon_ms(
        scenario, bounds.lower_bound_ms(scenario), known.best_ms, run.within(_PREPARING).over
    )
    known.raise_bound(bound_ms)
    step, undecided = _FIRST_STEP * horizon, 0
    while not run.over():
        most = min(known.best_ms, longest)
        horizon = max(horizon, known.bound_ms)
        last = horizon * _CLOSE >= most
        undecided += not _decided(known, most if last else horizon, run, last=last)
        if last or known.is_proven():
            return
        # What was too hard is tried once more with room, and then with all there is.
        step = max(step, _ROOM * horizon) if undecided else step
        horizon = horizon + step if undecided < 2 else math.inf
        step *= 2


def _decided(known: Known, horizon_ms: float, run: Running, *, last: bool) -> bool:
    """Solve one horizon; return whether that showed its shortest schedule, or that it has none."""
    scenario, windows = known.network.scenario, None
    if searchable(scenario):
        windows = find_windows(scenario, horizon_ms, over=run.within(_PREPARING).over)
    network = replace(known.network, windows=windows)
    hint = known.best if known.best_ms <= horizon_ms * (1 + TOLERANCE) else None
    if last and hint is None:
        hint = network.one_by_one
        known.keep(hint)
    # Half of the time for a horizon that may hold no schedule; the rest for a longer one.
    attempt = (run if last else run.within(_HALF))(network, horizon_ms, hint)
    known.learn(attempt, horizon_ms, empty=hint is None)
    return attempt.status in ("optimal", "infeasible")


def search_any_order(known: Known, run: Running) -> None:
    """Search all schedules, which takes longer.

    First comes a bound that holds for all of them, then the best that is in order to start from.
    """
    scenario = known.network.scenario
    known.raise_bound(
        bounds.horizon_bound_ms(
            scenario, incumbent_ms=known.best_ms, over=run.within(_PREPARING).over
        )
    )
    if known.is_proven() or (known.best is not None and run.over()):
        return
    ordered = Known(replace(known.network, in_order=True))
    if known.best is not None:
        ordered.keep(ordered.network.adapted(known.best))
    search_in_order(ordered, run.within(_HALF))
    if ordered.best is not None:
        known.keep(ordered.best)
    if known.is_proven() or run.over():
        return
    hint = known.network.one_by_one if known.best is None else known.best
    known.keep(hint)
    horizon_ms = known.network.makespan_ms(hint)
    known.learn(run(known.network, horizon_ms, hint), horizon_ms, empty=False)
