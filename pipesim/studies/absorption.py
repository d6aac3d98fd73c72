"""What a link's delay adds to an iteration, and the largest delay that adds no more than itself.

The orders of a plan are fixed, so its iteration time over the transport ``ideal`` is a maximum
over paths, T(c) = max(L + k·c): convex in the delay c of one link. T(c) − T(0) ≤ c therefore holds
up to one delay and for none above it. That delay is the link's true budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipesim.engine import Engine, Runs
from pipesim.scenario import KINDS, Array, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Ideal

__all__ = ["Absorption"]

_ROUNDING = 1e-9  # relative to all work and delays: more is a difference


class Absorption:
    """How a plan takes the delays of a scenario, on the engine, over the transport ``ideal``.

    The delay of a link whose directions differ is the larger of both. What a link's delay adds,
    it adds in two settings: beside the delays that the other links have, and alone.

    Parameters
    ----------
    scenario : Scenario
        The delays, and everything else.
    schedule : Schedule
        The plan.
    over : Ideal, optional
        What messages cost besides delays. Default: nothing.
    engine : {"simpy", "compiled"}, optional
        What computes the times.

    Examples
    --------
    >>> from pipesim import Scenario, plan
    >>> scenario = Scenario().with_delay(20, links=[0])
    >>> absorption = Absorption(scenario, plan(scenario, "zerobubble"))
    >>> absorption.growth_ms(0), round(absorption.true_budget_ms(0), 6)
    (50.0, 14.0)
    """

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        over: Ideal | None = None,
        *,
        engine: Engine | None = None,
    ) -> None:
        over = over or Ideal()
        self._scenario = scenario
        self._runs = Runs(schedule, over, engine=engine)
        self._delays: Array = scenario.delay_ms
        work = sum(float(scenario.durations_ms(kind).sum()) for kind in KINDS)
        messages = float(self._delays.sum() + 2 * over.costs_ms(scenario).sum())
        self._all = work + messages * scenario.microbatches or 1.0

    def delay_ms(self, link: int) -> float:
        """The delay of a link: the larger of its two directions."""
        return float(self._delays[link].max())

    def growth_ms(self, link: int, delay_ms: float | None = None) -> float:
        """What a delay of the link adds to the iteration, in the setting where it adds more.

        Default: the delay that the link has.
        """
        delay = self.delay_ms(link) if delay_ms is None else delay_ms
        return max(time(delay) - time(0.0) for time in self._settings(link))

    def absorbs(self, link: int, delay_ms: float | None = None) -> bool:
        """Whether a delay of the link adds no more than itself, up to rounding."""
        delay = self.delay_ms(link) if delay_ms is None else delay_ms
        return self._within(self.growth_ms(link, delay), delay)

    def joint_growth_ms(self) -> float:
        """What all delays add to the iteration together."""
        return self._time(self._delays) - self._time(0 * self._delays)

    def absorbs_jointly(self) -> bool:
        """Whether all delays together add no more than their sum."""
        return self._within(
            self.joint_growth_ms(), float(self._delays.max(axis=1, initial=0.0).sum())
        )

    def true_budget_ms(self, link: int) -> float:
        """The largest delay of the link that adds no more than itself in either setting.

        Both directions of a slow link keep their proportion; those of a healthy link get the same
        delay. ``inf`` if no delay adds more than itself, as may be where only one direction is
        slow: for example, if the stage before the link runs all its forwards first.
        """
        pair = self._pair(link)
        # From here on, a trip down and one up outlast all work and other delays by more than one.
        far = self._all / float(pair[pair > _ROUNDING].min())
        return min(self._largest_within(time, far) for time in self._settings(link))

    def _within(self, growth_ms: float, delay_ms: float) -> bool:
        return growth_ms <= delay_ms + _ROUNDING * (delay_ms + self._all)

    def _pair(self, link: int) -> Array:
        """Both directions of a link's delay, for a larger one of 1."""
        pair = self._delays[link]
        return pair / pair.max() if pair.any() else np.ones(2)

    def _settings(self, link: int) -> list[Callable[[float], float]]:
        """The iteration time as a function of the link's delay: beside the others, and alone."""
        pair = self._pair(link)

        def time(others: Array) -> Callable[[float], float]:
            return lambda delay: self._time(
                np.where(np.arange(len(others))[:, None] == link, delay * pair, others)
            )

        others = self._delays.copy()
        others[link] = 0
        return [time(others), time(0 * others)] if others.any() else [time(others)]

    def _time(self, delays_ms: Array) -> float:
        return self._runs.makespan_ms(
            self._scenario.replaced(latency_ms=delays_ms, occupancy_ms=0.0)
        )

    def _largest_within(self, time: Callable[[float], float], far: float) -> float:
        """The largest c with time(c) − time(0) ≤ c, from above by the secant method.

        A chord between two delays over it, drawn on to the left, lies below a convex function:
        where it meets 0 is over the budget again, or the budget itself.

        Parameters
        ----------
        time : function from float to float
            Convex.
        far : float
            If this delay adds no more than itself, none adds more.
        """
        healthy = time(0.0)
        last, delay = 2 * far, far
        last_growth, growth = time(last) - healthy, time(delay) - healthy
        if self._within(growth, delay):
            return math.inf
        while not self._within(growth, delay):
            excess = growth - delay
            rise = last_growth - last - excess
            if rise <= 0:
                break  # the rest is rounding
            nearer = max(0.0, delay - excess * (last - delay) / rise)
            last, last_growth, delay = delay, growth, nearer
            growth = time(delay) - healthy
        return delay
