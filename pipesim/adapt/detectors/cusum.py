"""Detection by cumulative sums: small deviations to one side add up until they tell a change.

Source: E. S. Page, Continuous Inspection Schemes, Biometrika 41 (1954); the tabular form with two
sides.
"""

from __future__ import annotations

from pipesim.adapt.detectors.decision import Decision, at_least, over
from pipesim.adapt.detectors.deviations import Deviations
from pipesim.adapt.detectors.watch import Changes

__all__ = ["Cusum"]


class Cusum(Changes):
    """A level ends where deviations from it, less an allowance, sum up to more than a limit.

    The two sums, S⁺ ← max(0, S⁺ + z − k) and S⁻ ← max(0, S⁻ − z − k), start again at 0 after a
    change, which began where the sum was last 0.

    Parameters
    ----------
    decision : Decision
        When a level counts as slow.
    jitter : float
        Standard deviation of a healthy link's measurements, as a part of them.
    allowance, limit : float
        k and h, in standard deviations. Half of the smallest jump worth finding is the usual k.
    """

    def __init__(
        self,
        decision: Decision,
        *,
        jitter: float = 0.05,
        allowance: float = 2.0,
        limit: float = 5.0,
    ) -> None:
        at_least("allowance", allowance, 0)
        over("limit", limit, 0)
        self._scale, self._allowance, self._limit = Deviations(decision, jitter), allowance, limit
        self._sums, self._counts = [0.0, 0.0], [0, 0]

    def begun(self, measured_ms: float, level_ms: float) -> int:
        """Return how many measurements ago a new level began."""
        above = self._scale.between(measured_ms, level_ms)
        for side, deviation in enumerate((above, -above)):
            self._sums[side] = max(0.0, self._sums[side] + deviation - self._allowance)
            self._counts[side] = self._counts[side] + 1 if self._sums[side] else 0
            if self._sums[side] > self._limit:
                count = self._counts[side]
                self._sums, self._counts = [0.0, 0.0], [0, 0]
                return count
        return 0
