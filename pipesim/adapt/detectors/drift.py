"""Detection by tests for concept drift, as the package river has them.

Neither tells when the change began: the measurement that showed it is taken as the first of the
new level, and the test starts again with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipesim.adapt.detectors.decision import Decision, at_least, over, under
from pipesim.adapt.detectors.deviations import Deviations
from pipesim.adapt.detectors.watch import Changes

if TYPE_CHECKING:  # river takes half a second to load
    from river.base import DriftDetector

__all__ = ["Adwin", "PageHinkley"]


class _Drift(Changes):
    """A level ends where a test for drift says so.

    Parameters
    ----------
    scale : Deviations
        What turns measurements into what the test is given.
    test : callable
        Returns a fresh test.
    """

    def __init__(self, scale: Deviations, test: Callable[[], DriftDetector]) -> None:
        self._scale, self._fresh, self._test = scale, test, test()

    def begun(self, measured_ms: float, level_ms: float) -> int:
        """Return 1 where the test finds a drift."""
        value = self._scale.of(measured_ms)
        self._test.update(value)
        if not self._test.drift_detected:
            return 0
        self._test = self._fresh()
        self._test.update(value)
        return 1


class PageHinkley(_Drift):
    """A level ends where deviations from the mean since it began sum up to more than a limit.

    So it is a cumulative sum as in :mod:`~pipesim.adapt.detectors.cusum`, but what is deviated
    from is the mean of all measurements, not the median of recent ones.

    Parameters
    ----------
    decision : Decision
        When a level counts as slow.
    jitter : float
        Standard deviation of a healthy link's measurements, as a part of them.
    allowance, limit : float
        δ and λ, in standard deviations.
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

        def test() -> DriftDetector:
            from river.drift import PageHinkley

            # Without forgetting (alpha = 1): that would wear the allowance away.
            return PageHinkley(min_instances=1, delta=allowance, threshold=limit, alpha=1.0)

        super().__init__(Deviations(decision, jitter), test)


class Adwin(_Drift):
    """A level ends where the means of two parts of an adaptive window differ significantly.

    Source: A. Bifet and R. Gavaldà, Learning from Time-Changing Data with Adaptive Windowing, SIAM
    Data Mining (2007).

    Parameters
    ----------
    decision : Decision
        When a level counts as slow.
    jitter : float
        Standard deviation of a healthy link's measurements, as a part of them.
    delta : float
        Probability of a false change that its bound allows for.
    """

    def __init__(self, decision: Decision, *, jitter: float = 0.05, delta: float = 0.002) -> None:
        over("delta", delta, 0)
        under("delta", delta, 1)

        def test() -> DriftDetector:
            from river.drift import ADWIN

            # It looks at each measurement at once, and for parts of any length.
            return ADWIN(  # type: ignore[no-untyped-call]
                delta=delta, clock=1, min_window_length=1, grace_period=1
            )

        super().__init__(Deviations(decision, jitter), test)
