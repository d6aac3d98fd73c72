"""Detection by ratio: a level changes where measurements are a multiple or a fraction of it."""

from __future__ import annotations

from pipesim.adapt.detectors.decision import Decision, at_least
from pipesim.adapt.detectors.watch import Changes

__all__ = ["Ratio"]


class Ratio(Changes):
    """A jump by ``threshold`` is a new level at once; one by ``lower`` is, if it is confirmed.

    Parameters
    ----------
    decision : Decision
        Its ratios are also those between levels.
    confirm : int
        Consecutive measurements on one side of the level, ``lower`` times it away, that make a
        new level.
    """

    def __init__(self, decision: Decision, *, confirm: int = 2) -> None:
        at_least("confirm", confirm, 1)
        self._confirm = confirm
        self._jump, self._step = decision.slow, decision.still_slow
        self._outside = 0  # measurements in a row; negative: below the level

    def begun(self, measured_ms: float, level_ms: float) -> int:
        """Return how many measurements ago a new level began."""
        if not self._step.between(measured_ms, level_ms):
            self._outside = 0
            return 0
        side = 1 if measured_ms > level_ms else -1
        self._outside = self._outside + side if self._outside * side > 0 else side
        if self._jump.between(measured_ms, level_ms):
            self._outside = 0
            return 1
        if abs(self._outside) < self._confirm:
            return 0
        self._outside = 0
        return self._confirm
