"""A link that is watched: the levels of its transfer times, its baseline, and whether it is slow.

Where a level ends and another begins is all that detectors differ in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from statistics import median

from pipesim.adapt.detectors.decision import Decision
from pipesim.errors import ScenarioError

__all__ = ["Changes", "Watch"]


class Changes(ABC):
    """Says where the level of a series of measurements changes."""

    @abstractmethod
    def begun(self, measured_ms: float, level_ms: float) -> int:
        """Take in a measurement, and return how many measurements ago a new level began.

        Parameters
        ----------
        measured_ms : float
            The latest measurement.
        level_ms : float
            The level before it.

        Returns
        -------
        int
            How many of the latest measurements belong to a new level: 1 is this one alone; 0:
            the level is what it was.
        """

    def level_ms(self, recent_ms: Collection[float]) -> float:
        """Return the level that measurements since the last change tell: their median."""
        return median(recent_ms)


class Watch:
    """A :class:`~pipesim.adapt.detectors.detector.Detector`, given where levels change.

    Parameters
    ----------
    decision : Decision
        When a level counts as slow.
    changes : Changes
        Where levels change; for this link and direction alone.
    """

    def __init__(self, decision: Decision, changes: Changes) -> None:
        self.slow = False
        self.delay_ms = 0.0
        self.baseline_ms = decision.baseline_ms
        self._decision, self._changes = decision, changes
        self._becomes, self._stays = decision.slow, decision.still_slow
        self._recent: deque[float] = deque(maxlen=decision.window)
        self._level = decision.baseline_ms
        self._first: list[float] = []
        self._in_baseline = math.inf  # one that was told weighs as much as any
        self._against = 0  # measurements in a row that speak against what `slow` says
        self._estimated = 0.0  # the level that the estimate is of

    def update(self, measured_ms: float) -> None:
        """Take in one measurement, in ms; see :class:`Detector`."""
        if not 0 <= measured_ms < math.inf:
            if math.isnan(measured_ms):
                return
            raise ScenarioError(f"{measured_ms:g} ms is not a transfer time")
        measured_ms = float(measured_ms)
        level = self._new_level(measured_ms)
        baseline = self._new_baseline(measured_ms, level)
        if baseline is not None:
            self._decide(level, baseline)

    def _new_level(self, measured_ms: float) -> float:
        before = measured_ms if self._level is None else self._level
        begun = self._changes.begun(measured_ms, before)
        self._recent.append(measured_ms)
        if begun:
            for _ in range(len(self._recent) - begun):
                self._recent.popleft()
        self._level = self._changes.level_ms(self._recent)
        return self._level

    def _new_baseline(self, measured_ms: float, level: float) -> float | None:
        told = self._decision
        if self.baseline_ms is None:
            self._first.append(measured_ms)
            if len(self._first) == told.warm_up:
                self.baseline_ms, self._in_baseline = median(self._first), told.warm_up
        elif self._stays.between(level, self.baseline_ms):
            if level < self.baseline_ms and len(self._recent) >= min(told.warm_up, told.window):
                self.baseline_ms, self._in_baseline = level, len(self._recent)
        elif not self.slow and not self._stays.between(measured_ms, self.baseline_ms):
            self._in_baseline += 1
            weight = max(told.follow, 1 / self._in_baseline)
            self.baseline_ms += weight * (measured_ms - self.baseline_ms)
        return self.baseline_ms

    def _decide(self, level: float, baseline: float) -> None:
        told = self._decision
        margin = self._stays if self.slow else self._becomes
        if (level > baseline and margin.between(level, baseline)) == self.slow:
            self._against = 0
        else:
            self._against += 1
            if self._against >= (told.leave if self.slow else told.enter):
                self.slow, self._against, self._estimated = not self.slow, 0, math.inf
        if not self.slow:
            self.delay_ms = 0.0
        elif not abs(level - self._estimated) <= told.tolerance * self._estimated < math.inf:
            self._estimated, self.delay_ms = level, level - baseline
