"""When a link counts as slow: the options that all detectors share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from pipesim.errors import ScenarioError

__all__ = ["Decision", "Margin", "at_least", "over", "under"]


class Margin(NamedTuple):
    """How far two transfer times must be apart to count as different.

    Parameters
    ----------
    ratio : float
        The longer is at least this many times the shorter,
    least_ms : float
        and at least this much longer: a transfer time may be next to nothing.
    """

    ratio: float
    least_ms: float

    def between(self, one_ms: float, other_ms: float) -> bool:
        """Whether two times are that far apart, whichever is longer.

        Examples
        --------
        >>> margin = Margin(1.35, 1.0)
        >>> [margin.between(*pair) for pair in ((10, 14), (14, 10), (10, 13), (0.1, 0.9))]
        [True, True, False, False]
        """
        short, long = (one_ms, other_ms) if one_ms < other_ms else (other_ms, one_ms)
        return long >= self.ratio * short and long - short >= self.least_ms


@dataclass(frozen=True)
class Decision:
    """When a link counts as slow, and what its estimate is, once it is known where levels change.

    Parameters
    ----------
    threshold : float
        A link becomes slow where its level is this many times the baseline,
    lower : float
        and healthy again below this many times. Between the two it stays what it is.
    least_ms : float
        It must also be this much longer than the baseline to become slow, and half of it to stay
        so.
    enter, leave : int
        Consecutive measurements that must say so.
    warm_up : int
        Measurements whose median is the first baseline. A level below the baseline that has lasted
        for as many becomes the baseline: nothing is faster than a healthy link.
    baseline_ms : float, optional
        The first baseline, instead of a warm-up.
    follow : float
        Weight of a new measurement in the baseline of a healthy link. Measurements that are
        ``lower`` times the baseline or more have none: it follows a drift, not a straggler.
    window : int
        A level is the median of the measurements since its beginning, of at most the last so many.
    tolerance : float
        The estimate is left as it is while the level is within this part of it.

    Raises
    ------
    ScenarioError
        One of them is out of its range.
    """

    threshold: float = 1.35
    lower: float = 1.15
    least_ms: float = 1.0
    enter: int = 1
    leave: int = 1
    warm_up: int = 5
    baseline_ms: float | None = None
    follow: float = 0.005
    window: int = 15
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        over("threshold", self.threshold, 1)
        over("lower", self.lower, 1)
        if self.lower > self.threshold:
            raise ScenarioError(
                f"lower must not be over threshold, {self.threshold:g}, not {self.lower:g}"
            )
        over("least_ms", self.least_ms, 0)
        for name in ("enter", "leave", "warm_up"):
            at_least(name, getattr(self, name), 1)
        at_least("window", self.window, 1, most=10_000)
        if self.baseline_ms is not None:
            at_least("baseline_ms", self.baseline_ms, 0)
        for name in ("follow", "tolerance"):
            at_least(name, getattr(self, name), 0, most=1)

    @property
    def slow(self) -> Margin:
        """How far over the baseline a link becomes slow."""
        return Margin(self.threshold, self.least_ms)

    @property
    def still_slow(self) -> Margin:
        """How far over the baseline a slow link stays slow; nearer is the same level."""
        return Margin(self.lower, self.least_ms / 2)


def over(name: str, value: float, bound: float) -> None:
    """Raise ScenarioError unless an option is a number over a bound."""
    if not bound < value < math.inf:
        raise ScenarioError(f"{name} must be over {bound:g}, not {value:g}")


def under(name: str, value: float, bound: float) -> None:
    """Raise ScenarioError unless an option is under a bound."""
    if not value < bound:
        raise ScenarioError(f"{name} must be under {bound:g}, not {value:g}")


def at_least(name: str, value: float, bound: float, *, most: float = math.inf) -> None:
    """Raise ScenarioError unless an option is a number of at least a bound, and at most another."""
    if not (bound <= value <= most and value < math.inf):
        limit = f"{bound:g}" if most == math.inf else f"{bound:g} and at most {most:g}"
        raise ScenarioError(f"{name} must be at least {limit}, not {value:g}")
