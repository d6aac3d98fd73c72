"""A measured run: the one type that every importer of runs returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipesim.formats.tally import Tally
from pipesim.scenario import KINDS, Array, Kind, Scenario
from pipesim.schedule import Schedule
from pipesim.text import counted, decimals, plain
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
    """What the files of a measured run hold.

    Parameters
    ----------
    scenario : Scenario
        Medians of each operator's time over the used iterations; delays only of links that were
        found to be slower than the others.
    iterations : sequence of MeasuredIteration
        All complete iterations whose operators were timed one by one, used or not.
    notes : tuple of str
        For people: what was found, guessed or shared.
    iteration_ms : tuple of float
        Measured time of each used iteration that ran in the order of ``schedule``, with all that
        follows the pipeline where the source counts it in; empty where the source does not tell.
    spread_ms : mapping of kind to array, shape [S, N]
        Where the source has them, the quartile ranges that belong to the medians.
    tallies : tuple of Tally
        What the files hold, from lines down to operators, and what became of it.
    schedule : Schedule, optional
        The order in which the operators of the used iterations ran. Default: not told.
    guessed : bool
        Whether operator times were computed from the iteration time, with which they agree
        then whatever it is.
    after_ms : float
        Part of the iteration time that follows the pipeline (gradients reduced, the optimizer)
        as far as the source timed it.
    """

    scenario: Scenario
    iterations: Sequence[MeasuredIteration]
    notes: tuple[str, ...]
    iteration_ms: tuple[float, ...] = ()
    spread_ms: Mapping[Kind, Array] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()
    schedule: Schedule | None = None
    guessed: bool = False
    after_ms: float = 0.0


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
        The medians with their spread, where there are several samples; what was guessed.
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
        >>> for note in times.notes:
        ...     print(note)
        F 4 ms ± 1.5, BW 8 ms ± 0 (medians over the operators; ±: half their quartile range)
        B and W were not measured: each guessed to be half of the fused backward
        """
        shape = next(iter(samples_ms.values())).shape
        samples = {kind: samples_ms.get(kind, np.full(shape, np.nan)) for kind in KINDS}
        quartiles = {kind: _quartiles(values) for kind, values in samples.items()}
        median = {kind: np.round(ms[1], _DIGITS) for kind, ms in quartiles.items()}
        spread = {
            kind: np.round(ms[2] - ms[0], _DIGITS)
            for kind, ms in quartiles.items()
            if np.isfinite(median[kind]).all()
        }
        notes = [_spreads(samples, median, quartiles)] if shape[0] > 1 else []
        split = np.isfinite(median["B"]) & np.isfinite(median["W"])
        fused = np.isfinite(median["BW"])
        share = _share_of_b(median["B"], median["W"])
        shared, halved = ~split & np.isfinite(share), ~split & np.isnan(share)
        if shared.any():
            notes.append(
                f"B and W{_partly(shared)} were not measured: the fused backward was shared "
                "between them as on the rest of their stage"
            )
        if halved.any():
            notes.append(
                f"B and W{_partly(halved)} were not measured: each guessed to be half "
                "of the fused backward"
            )
        if not fused.all():
            notes.append(
                f"the fused backward{_partly(~fused)} was not measured: guessed to take B + W"
            )
        parts: dict[Kind, Array] = {"B": share, "W": 1 - share}
        for half, part in parts.items():
            guess = np.where(halved, median["BW"] / 2, np.round(median["BW"] * part, _DIGITS))
            median[half] = np.where(split, median[half], guess)
        median["BW"] = np.where(fused, median["BW"], median["B"] + median["W"])
        return cls(median, spread, tuple(notes))

    def fields(self) -> dict[str, Any]:
        """Return the medians as the fields of a :class:`~pipesim.scenario.Scenario`."""
        return {
            "forward_ms": self.median_ms["F"],
            "backward_ms": self.median_ms["B"],
            "weight_ms": self.median_ms["W"],
            "fused_backward_ms": self.median_ms["BW"],
        }


def _quartiles(samples: Array) -> Array:
    """Return the quartiles over the iterations, shape [3, S, N]; NaN for what never ran."""
    present = ~np.isnan(samples)
    samples = samples[present.any(axis=(1, 2))]
    result = np.full((3, *samples.shape[1:]), np.nan)
    ran = present.any(axis=0)
    if ran.any():
        # Without NaN there is a much faster way.
        quantile = np.nanquantile if np.isnan(samples).any() else np.quantile
        result[:, ran] = quantile(samples[:, ran], (0.25, 0.5, 0.75), axis=0)
    return result


def _share_of_b(b_ms: Array, w_ms: Array) -> Array:
    """Return the usual share of B in B + W, shape [S, 1]; NaN for stages that ran neither."""
    share = np.full((len(b_ms), 1), np.nan)
    ran = b_ms + w_ms > 0  # not where one is NaN
    for stage in np.flatnonzero(ran.any(axis=1)):
        b, w = b_ms[stage, ran[stage]], w_ms[stage, ran[stage]]
        share[stage] = np.median(b / (b + w))
    return share


def _spreads(
    samples: Mapping[Kind, Array], median: Mapping[Kind, Array], quartiles: Mapping[Kind, Array]
) -> str:
    """Describe the median time of each measured kind, and how far apart its samples are."""
    parts = []
    for kind in KINDS:
        ran = np.isfinite(median[kind])
        if ran.any():
            usual_ms = float(np.median(median[kind][ran]))
            text = f"{kind} {plain(usual_ms)} ms"
            if np.isfinite(samples[kind]).sum(axis=0).max() > 1:
                half_ms = float(np.median((quartiles[kind][2] - quartiles[kind][0])[ran])) / 2
                text += f" ± {plain(half_ms, decimals(usual_ms))}"
            parts.append(text)
    return f"{', '.join(parts)} (medians over the operators; ±: half their quartile range)"


def _partly(missing: NDArray[np.bool_]) -> str:
    """Say how many operators lack a time, if not all do."""
    return "" if missing.all() else f" of {counted(int(missing.sum()), 'operator')}"
