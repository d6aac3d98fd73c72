"""What a measured run says: the one type that every importer of runs returns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipesim.scenario import KINDS, Array, Kind, Scenario
from pipesim.timeline import Timeline

__all__ = ["MeasuredIteration", "Measurement", "OperatorTimes"]

_DIGITS = 4
"""Times are kept to 0.1 µs; logs have 1 µs."""


@dataclass(frozen=True)
class MeasuredIteration:
    """One complete iteration of a file.

    Parameters
    ----------
    file, label : str
        Where it comes from; ``5/2`` is the second pass of iteration 5.
    used : bool
        Whether the scenario's medians are over it.
    timeline : Timeline
        When its operators ran, from 0 ms on, and its messages where the source has them.
        Its scenario is the measurement's, or has the iteration's own operator times.
    """

    file: str
    label: str
    used: bool
    timeline: Timeline


@dataclass(frozen=True)
class Measurement:
    """What the files of a measured run say.

    Parameters
    ----------
    scenario : Scenario
        Medians of each operator's time over the used iterations; no delays.
    iterations : tuple of MeasuredIteration
        All complete iterations whose operators were timed one by one, used or not.
    notes : tuple of str
        For people: what was dropped, guessed or shared.
    iteration_ms : tuple of float
        Measured time of each used iteration, with all that follows the pipeline where the
        source counts it in; empty where the source does not tell.
    spread_ms : mapping of kind to array, shape [S, N]
        Where the source has them, the quartile ranges that belong to the medians.
    """

    scenario: Scenario
    iterations: tuple[MeasuredIteration, ...]
    notes: tuple[str, ...]
    iteration_ms: tuple[float, ...] = ()
    spread_ms: Mapping[Kind, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorTimes:
    """Medians and spreads of operator times; kinds that were not measured are guessed.

    Parameters
    ----------
    median_ms : mapping of kind to array, shape [S, N]
        All four kinds.
    spread_ms : mapping of kind to array, shape [S, N]
        Distance between the quartiles, for the kinds that were measured.
    notes : tuple of str
        What was guessed.
    """

    median_ms: Mapping[Kind, Array]
    spread_ms: Mapping[Kind, Array]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, samples_ms: Mapping[Kind, Array]) -> OperatorTimes:
        """Summarise samples.

        Parameters
        ----------
        samples_ms : mapping of kind to array, shape [iterations, S, N]
            NaN where an operator did not run. Every micro-batch has F, and BW or both B
            and W, in some iteration.

        Examples
        --------
        >>> import numpy as np
        >>> samples = {"F": np.array([[[3.0]], [[4.0]], [[9.0]]]), "BW": np.full((3, 1, 1), 8.0)}
        >>> times = OperatorTimes.of(samples)
        >>> {kind: float(ms[0, 0]) for kind, ms in times.median_ms.items()}
        {'F': 4.0, 'B': 4.0, 'W': 4.0, 'BW': 8.0}
        >>> float(times.spread_ms["F"][0, 0])
        3.0
        >>> times.notes
        ('B and W were not measured: guessed to be half of the fused backward each',)
        """
        shape = next(iter(samples_ms.values())).shape
        samples = {kind: samples_ms.get(kind, np.full(shape, np.nan)) for kind in KINDS}
        low, median, high = ({k: _quantile(v, q) for k, v in samples.items()} for q in _QUARTILES)
        spread = {k: high[k] - low[k] for k in KINDS if np.isfinite(median[k]).all()}
        notes = []
        split = np.isfinite(median["B"]) & np.isfinite(median["W"])
        fused = np.isfinite(median["BW"])
        if not split.all():
            notes.append(
                f"B and W{_partly(~split)} were not measured: guessed to be half of the "
                "fused backward each"
            )
        if not fused.all():
            notes.append(
                f"the fused backward{_partly(~fused)} was not measured: guessed to take B + W"
            )
        for half in ("B", "W"):
            median[half] = np.where(split, median[half], median["BW"] / 2)
        median["BW"] = np.where(fused, median["BW"], median["B"] + median["W"])
        return cls(
            {kind: np.round(ms, _DIGITS) for kind, ms in median.items()},
            {kind: np.round(ms, _DIGITS) for kind, ms in spread.items()},
            tuple(notes),
        )

    def fields(self) -> dict[str, Any]:
        """Return the medians as the fields of a :class:`~pipesim.scenario.Scenario`."""
        return {
            "forward_ms": self.median_ms["F"],
            "backward_ms": self.median_ms["B"],
            "weight_ms": self.median_ms["W"],
            "fused_backward_ms": self.median_ms["BW"],
        }


_QUARTILES = (0.25, 0.5, 0.75)


def _quantile(samples: Array, part: float) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of operators that never ran: NaN
        result: Array = np.nanquantile(samples, part, axis=0)
    return result


def _partly(missing: NDArray[np.bool_]) -> str:
    """Say how many operators lack a time, if not all do."""
    return "" if missing.all() else f" of {missing.sum()} operators"
