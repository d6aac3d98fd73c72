"""Causes of an iteration's time, as :func:`pipesim.explain.attribution.attribute` finds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.transport import Transport

__all__ = [
    "CAUSES",
    "Attribution",
    "Cause",
    "CauseName",
    "LinkEffect",
    "SlowOperator",
    "StageEffect",
]

CauseName = Literal[
    "hol",
    "dependency",
    "slow operators",
    "stage imbalance",
    "micro-batch variation",
    "transport",
    "warm-up and drain",
    "work",
]
CAUSES: tuple[CauseName, ...] = get_args(CauseName)
"""The order in which the cumulative decomposition removes them; the last three remain."""


@dataclass(frozen=True)
class Cause:
    """A cause and its share of the iteration. Times in milliseconds.

    Parameters
    ----------
    name : str
        One of ``CAUSES``.
    removal_ms : float or None
        How much shorter the iteration is without this cause alone. None for what cannot be
        removed: warm-up and drain, and work.
    cumulative_ms : float
        The same after all causes before it have been removed: these add up to the iteration.
    """

    name: CauseName
    removal_ms: float | None
    cumulative_ms: float


@dataclass(frozen=True)
class LinkEffect:
    """What the iteration gains, in milliseconds, if this slow link alone becomes healthy."""

    link: int
    dependency_ms: float
    hol_ms: float

    @property
    def removal_ms(self) -> float:
        """Both parts together."""
        return self.dependency_ms + self.hol_ms


@dataclass(frozen=True)
class SlowOperator:
    """A slow operator. Times in milliseconds.

    ``removal_ms`` is what the iteration gains if this one alone takes the median of its
    stage and kind; None where that was not tried, because others are worse.
    """

    op: Op
    duration_ms: float
    median_ms: float
    removal_ms: float | None


@dataclass(frozen=True)
class StageEffect:
    """What the iteration gains, in milliseconds, if this stage alone is changed.

    ``imbalance_ms`` is the gain if its mean times become those of the mean stage; for a faster
    stage it is often below zero. ``slow_operators_ms`` is the gain if its slow operators take
    their medians. ``ratio`` is its work, slow operators aside, over the mean stage's.
    """

    stage: int
    ratio: float
    imbalance_ms: float
    slow_operators: int
    slow_operators_ms: float


@dataclass(frozen=True)
class Attribution:
    """An iteration, split into its causes. Times in milliseconds.

    Attributes
    ----------
    iteration_ms : float
        T, as it is.
    ideal_ms : float
        T_ideal: with healthy links and every operator of a kind taking the same time.
    causes : tuple of Cause
        In the order of ``CAUSES``.
    links : tuple of LinkEffect
        The slow links.
    stages : tuple of StageEffect
        All stages.
    slow_operators : tuple of SlowOperator
        All of them, the one with the largest excess over its median first.
    """

    scenario: Scenario = field(repr=False)
    schedule: Schedule = field(repr=False)
    transport: Transport
    iteration_ms: float
    ideal_ms: float
    causes: tuple[Cause, ...]
    links: tuple[LinkEffect, ...]
    stages: tuple[StageEffect, ...]
    slow_operators: tuple[SlowOperator, ...]

    def cause(self, name: CauseName) -> Cause:
        """Return the cause of that name."""
        return self.causes[CAUSES.index(name)]

    @property
    def links_ms(self) -> float:
        """What the iteration gains if all slow links are healthy: dependency and HOL."""
        return self.cause("dependency").cumulative_ms + self.cause("hol").cumulative_ms

    @property
    def slowdown(self) -> float | None:
        """S = T / T_ideal; None where nothing takes time."""
        return self.iteration_ms / self.ideal_ms if self.ideal_ms > 0 else None

    @property
    def waste(self) -> float:
        """1 − 1/S, the part of the GPU hours that stragglers cost."""
        return 1 - self.ideal_ms / self.iteration_ms if self.iteration_ms > 0 else 0.0

    def fraction(self, time_ms: float) -> float:
        """Return a time as part of the iteration, 0 … 1."""
        return time_ms / self.iteration_ms if self.iteration_ms > 0 else 0.0

    def recovered(self, removal_ms: float) -> float | None:
        """Return M = gain / (T − T_ideal), the part of the slowdown that a removal recovers.

        None where nothing is slow.
        """
        slow_ms = self.iteration_ms - self.ideal_ms
        return removal_ms / slow_ms if slow_ms > 1e-9 * self.iteration_ms else None

    def as_dict(self) -> dict[str, object]:
        """The attribution in JSON types; fractions are of the iteration."""
        return {
            "scenario": self.scenario.summary(),
            "planner": self.schedule.planner,
            "transport": self.transport.name,
            "iteration_ms": self.iteration_ms,
            "ideal_ms": self.ideal_ms,
            "slowdown": self.slowdown,
            "waste": self.waste,
            "causes": [
                {
                    "cause": cause.name,
                    **self._removal(cause.removal_ms),
                    "cumulative_ms": cause.cumulative_ms,
                    "cumulative_fraction": self.fraction(cause.cumulative_ms),
                }
                for cause in self.causes
            ],
            "links": [
                {
                    "link": link.link,
                    "dependency_ms": link.dependency_ms,
                    "hol_ms": link.hol_ms,
                    **self._removal(link.removal_ms),
                }
                for link in self.links
            ],
            "stages": [
                {
                    "stage": stage.stage,
                    "ratio": stage.ratio,
                    "imbalance_ms": stage.imbalance_ms,
                    "slow_operators": stage.slow_operators,
                    "slow_operators_ms": stage.slow_operators_ms,
                }
                for stage in self.stages
            ],
            "slow_operators": [
                {
                    "operator": str(slow.op),
                    "duration_ms": slow.duration_ms,
                    "median_ms": slow.median_ms,
                    "removal_ms": slow.removal_ms,
                }
                for slow in self.slow_operators
            ],
        }

    def _removal(self, removal_ms: float | None) -> dict[str, float | None]:
        if removal_ms is None:
            return {"removal_ms": None, "removal_fraction": None, "recovered": None}
        return {
            "removal_ms": removal_ms,
            "removal_fraction": self.fraction(removal_ms),
            "recovered": self.recovered(removal_ms),
        }
