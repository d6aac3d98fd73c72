"""Operator times taken apart: mean stage × stage × micro-batch + what a slow operator loses.

What-if analysis takes one of these away and leaves the others. Times stay above zero, and
what is not there has the factor 1 or loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipesim.errors import ScenarioError
from pipesim.scenario import KINDS, TIME_OF, Array, Kind, Scenario
from pipesim.schedule import Op, Schedule

__all__ = ["OUTLIER", "OperatorTimes", "SlowTime"]

OUTLIER = 1.5
"""An operator is slow if it takes more than this many times the median of its stage and kind."""

FEWEST = 3
"""Among fewer operators nobody can tell which one is unusual."""

_SAME = 1e-12
"""Times this near to each other, relatively, differ by rounding alone."""


@dataclass(frozen=True)
class SlowTime:
    """A slow operator: what it takes, and the median of its stage and kind."""

    op: Op
    duration_ms: float
    median_ms: float

    @property
    def excess_ms(self) -> float:
        """How much longer it takes than the median."""
        return self.duration_ms - self.median_ms


@dataclass(frozen=True)
class _Kind:
    """Times of one kind, all of shape [S, N] or, per stage, [S, 1].

    Only operators that the schedule runs count; ``typical`` and ``mean`` are means without
    slow operators, ``mean`` over the stages.
    """

    given: Array
    used: NDArray[np.bool_]
    median: Array
    slow: NDArray[np.bool_]
    typical: Array
    mean: float

    @property
    def capped(self) -> Array:
        """The times, slow ones set to their median."""
        return np.where(self.slow, self.median, self.given)


class OperatorTimes:
    """The operator times that a schedule meets in a scenario, taken apart.

    The time of an operator of kind k on stage s for micro-batch m is the product of three
    factors and, for a slow one, a fourth part on top:

    1. the *mean stage's* time of kind k;
    2. how the *stage's* mean compares with that: stage imbalance;
    3. how the *micro-batch* compares with the mean of its stage: micro-batch variation;
    4. what a *slow operator* takes longer than the median of its stage and kind, as a pause
       does. Means are taken with slow operators set to their medians.

    Parameters
    ----------
    scenario : Scenario
        Operator times.
    schedule : Schedule
        Which kinds run on which stage: B and W, or BW.
    outlier : float
        An operator is slow above this many medians, see ``OUTLIER``. A stage's kind with
        fewer than three operators has no slow ones.

    Raises
    ------
    ScenarioError
        ``outlier`` is below 1 or not finite.
    ScheduleError
        The schedule does not fit the scenario.

    Examples
    --------
    Every time alike, but for one:

    >>> from pipesim import Scenario, plan
    >>> times = np.full((2, 4), 10.0)
    >>> times[1, 2] = 100
    >>> scenario = Scenario(stages=2, microbatches=4, forward_ms=times)
    >>> parts = OperatorTimes(scenario, plan(scenario, "1f1b"))
    >>> [(str(slow.op), slow.duration_ms, slow.median_ms) for slow in parts.slow]
    [('1F2', 100.0, 10.0)]
    >>> parts.without(slow=True).forward_ms[1].tolist()
    [10.0, 10.0, 10.0, 10.0]
    """

    def __init__(self, scenario: Scenario, schedule: Schedule, outlier: float = OUTLIER) -> None:
        if not 1 <= outlier < np.inf:
            raise ScenarioError(f"outlier must be at least 1, not {outlier!r}")
        schedule.check_fits(scenario)
        self.scenario = scenario
        shape = (scenario.stages, scenario.microbatches)
        used = {kind: np.zeros(shape, dtype=np.bool_) for kind in KINDS}
        for order in schedule.orders:
            for op in order:
                used[op.kind][op.stage, op.microbatch] = True
        self._kinds = {
            kind: _taken_apart(scenario.durations_ms(kind), used[kind], outlier)
            for kind in KINDS
            if used[kind].any()
        }

    @cached_property
    def slow(self) -> tuple[SlowTime, ...]:
        """The slow operators, the one with the largest excess first."""
        found = [
            SlowTime(Op(kind, int(s), int(m)), float(k.given[s, m]), float(k.median[s, 0]))
            for kind, k in self._kinds.items()
            for s, m in np.argwhere(k.slow)
        ]
        return tuple(sorted(found, key=lambda slow: (-slow.excess_ms, slow.op)))

    @cached_property
    def stage_ratios(self) -> Array:
        """Work of each stage without its slow operators over the mean stage's, shape [S]."""
        work = sum(
            (np.where(k.used, k.capped, 0.0).sum(axis=1) for k in self._kinds.values()),
            start=np.zeros(self.scenario.stages),
        )
        mean = float(work.mean())
        return work / mean if mean > 0 else np.ones_like(work)

    def without(
        self,
        *,
        slow: bool | Callable[[Op], bool] = False,
        imbalance: bool | Collection[int] = False,
        variation: bool = False,
    ) -> Scenario:
        """Return the scenario with some parts taken out of the operator times.

        Parameters
        ----------
        slow : bool or callable
            All slow operators to their medians, or those that the callable says yes to.
        imbalance : bool or collection of int
            All stages to the mean stage, or these.
        variation : bool
            All micro-batches of a stage to their mean.
        """
        stages = np.zeros((self.scenario.stages, 1), dtype=np.bool_)
        stages[list(range(len(stages)) if isinstance(imbalance, bool) else imbalance)] = (
            imbalance is not False
        )
        fields: dict[str, Array] = {}
        for kind, k in self._kinds.items():
            capped = k.capped
            level = np.where(stages, k.mean, k.typical)
            # Of a stage that takes no time at all every micro-batch is a typical one.
            pattern = np.divide(capped, k.typical, out=np.ones_like(capped), where=k.typical > 0)
            times = level if variation else level * pattern
            times = times + np.where(self._kept(kind, k, slow), k.given - capped, 0.0)
            same = ~k.used | (np.abs(times - k.given) <= _SAME * k.given)
            fields[TIME_OF[kind]] = np.where(same, k.given, times)
        return self.scenario.replaced(**fields)

    @staticmethod
    def _kept(kind: Kind, k: _Kind, slow: bool | Callable[[Op], bool]) -> NDArray[np.bool_]:
        """Which slow operators stay slow."""
        if isinstance(slow, bool):
            return k.slow & (not slow)
        kept = k.slow.copy()
        for s, m in np.argwhere(k.slow):
            kept[s, m] = not slow(Op(kind, int(s), int(m)))
        return kept


def _taken_apart(given: Array, used: NDArray[np.bool_], outlier: float) -> _Kind:
    median = np.zeros((len(given), 1))
    typical = np.zeros_like(median)
    slow = np.zeros_like(used)
    for s, (times, runs) in enumerate(zip(given, used, strict=True)):
        if not runs.any():
            continue
        median[s] = np.median(times[runs])
        if runs.sum() >= FEWEST:
            slow[s] = runs & (times > outlier * median[s] * (1 + _SAME))
        typical[s] = np.where(slow[s], median[s], times)[runs].mean()
    return _Kind(given, used, median, slow, typical, float(typical[used.any(axis=1)].mean()))
