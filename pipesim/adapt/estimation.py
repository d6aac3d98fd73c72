"""What the detectors of all links make of an iteration's measurements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipesim.adapt.detectors import Detector
from pipesim.scenario import Array

__all__ = ["Estimator", "differs"]


class Estimator:
    """A detector for each link and direction.

    Parameters
    ----------
    detector : callable
        Makes one.
    links : int
        Number of links, S − 1.
    """

    def __init__(self, detector: Callable[[], Detector], links: int) -> None:
        self._detectors = [(detector(), detector()) for _ in range(links)]

    def observe(self, measured_ms: Array) -> Array:
        """Take in an iteration's transfer times, and return what each link is thought to add.

        Parameters
        ----------
        measured_ms : array, shape [S−1, 2]
            NaN where nothing was sent.

        Returns
        -------
        array, shape [S−1, 2]
            Delays in ms, rounded to 0.1; 0 for links that are not taken as slow.
        """
        for both, times_ms in zip(self._detectors, measured_ms.tolist(), strict=True):
            for detector, time_ms in zip(both, times_ms, strict=True):
                detector.update(time_ms)
        delays = [[one.delay_ms for one in both] for both in self._detectors]
        return np.round(np.array(delays, dtype=np.float64).reshape(-1, 2), 1)


def differs(
    delay_ms: Array, planned_ms: Array, *, least_ms: float = 1.0, part: float = 0.1
) -> bool:
    """Whether delays differ so much from those of a plan that another is worth its while.

    Links have become slow or healthy, or a delay has changed by more than ``least_ms`` and more
    than this part of it.

    Examples
    --------
    >>> old = np.array([[20.0, 20.0]])
    >>> [differs(np.array([[new, 20.0]]), old) for new in (0.0, 18.5, 23.0)]
    [True, False, True]
    """
    if ((delay_ms > 0) != (planned_ms > 0)).any():
        return True
    apart = np.abs(delay_ms - planned_ms)
    return bool((apart > np.maximum(least_ms, part * planned_ms)).any())
