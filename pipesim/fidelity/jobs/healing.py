"""A job of which a part is healed: its durations are replaced by ideal ones, and it runs again.

Ideal is what the published what-if analysis takes for it: the mean of its kind for an operator,
the median of its kind for communication, over all steps, workers and stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipesim.fidelity.jobs.job import Job, Times
from pipesim.fidelity.jobs.whole_step import Durations, pipeline_ends_ms, steps_ms
from pipesim.scenario import Array

__all__ = ["KINDS", "Cells", "Healing", "ideal_durations", "lost", "mixed"]

KINDS = ("forward", "backward", "messages", "outside")
"""Parts of a step by kind; ``outside``: what ranks do before and after their pipelines."""

_COMPUTES = ("gc", "optimizer")
"""Operations outside the pipeline that are no communication."""

_NOTHING = 1e-3
"""Where less than this part of the step is lost, shares of it would be noise over noise."""

Cells = NDArray[np.bool_]
"""Which ranks, shape [D, W]."""


def lost(step_ms: float, ideal_ms: float) -> bool:
    """Whether a step loses enough for shares of it to mean something."""
    return step_ms - ideal_ms > _NOTHING * step_ms


@dataclass(frozen=True, eq=False)
class Healing:
    """A job with measured durations, of which some are replaced by ideal ones, or all but some.

    Parameters
    ----------
    job : Job
        Whose orders the operators run in.
    measured : Durations
        What everything took.
    """

    job: Job
    measured: Durations

    @property
    def placement(self) -> Sequence[int]:
        """The device of each stage."""
        return self.job.schedules[0][0].placement

    @cached_property
    def ideal(self) -> Durations:
        """What everything takes without stragglers."""
        return ideal_durations(self.measured)

    @cached_property
    def step_ms(self) -> float:
        """The mean step as measured, simulated."""
        return float(steps_ms(self.job, self.measured.outside, self._measured_ends).mean())

    @cached_property
    def ideal_ms(self) -> float:
        """The mean step without stragglers."""
        return float(steps_ms(self.job, self.ideal.outside, self._ideal_ends).mean())

    def healed(self, cells: Cells, kind: str | None = None) -> float:
        """Return the share of the lost time that comes back if some ranks are ideal.

        0 where hardly anything is lost, see :func:`lost`.

        Parameters
        ----------
        cells : array of bool, shape [D, W]
            Which.
        kind : str, optional
            Only operations of this one of :data:`KINDS`.
        """
        if not lost(self.step_ms, self.ideal_ms):
            return 0.0
        healed_ms = self._part_ms(self.measured, self.ideal, cells, kind, self._measured_ends)
        return (self.step_ms - healed_ms) / (self.step_ms - self.ideal_ms)

    def alone(self, cells: Cells) -> float:
        """Return the slowdown if all ranks but some are ideal."""
        alone_ms = self._part_ms(self.ideal, self.measured, cells, None, self._ideal_ends)
        return alone_ms / self.ideal_ms

    @cached_property
    def _measured_ends(self) -> Array:
        return pipeline_ends_ms(self.job, self.measured)

    @cached_property
    def _ideal_ends(self) -> Array:
        return pipeline_ends_ms(self.job, self.ideal)

    def _part_ms(
        self, base: Durations, part: Durations, cells: Cells, kind: str | None, ends_ms: Array
    ) -> float:
        """The mean step where a part of ``base``, which ends at ``ends_ms``, is from ``part``."""
        changed = np.flatnonzero(cells.any(axis=0))
        own = mixed(base.of(changed), part.of(changed), cells[:, changed], self.placement, kind)
        ends, outside = ends_ms.copy(), {name: of.copy() for name, of in base.outside.items()}
        ends[:, changed] = pipeline_ends_ms(self.job, own, changed)
        for name, of in outside.items():
            of[:, changed] = own.outside[name]
        return float(steps_ms(self.job, outside, ends).mean())


def ideal_durations(measured: Durations) -> Durations:
    """Return durations without stragglers: means of operators, medians of communication.

    Each is over all steps, workers and stages, and forward and backward are told apart.
    """
    operators, messages = measured.times.operators_ms, measured.times.messages_ms
    typical = np.median(messages, axis=(0, 1, 3), keepdims=True) if messages.size else messages
    return Durations(
        Times(
            np.broadcast_to(operators.mean(axis=(0, 1, 3, 4), keepdims=True), operators.shape),
            np.broadcast_to(typical, messages.shape),
        ),
        {
            name: np.where(
                np.isnan(own), np.nan, (np.nanmean if name in _COMPUTES else np.nanmedian)(own)
            )
            for name, own in measured.outside.items()
        },
    )


def mixed(
    base: Durations,
    part: Durations,
    cells: Cells,
    placement: Sequence[int],
    kind: str | None = None,
) -> Durations:
    """Return durations of which a part is taken from others.

    Parameters
    ----------
    base, part : Durations
        Where the rest and where the part is from.
    cells : array of bool, shape [D, W]
        The ranks that are the part.
    placement : tuple of int, shape [S]
        The device of each stage.
    kind : str, optional
        One of :data:`KINDS`; only this kind of operation is the part. Default: all.
    """
    of_stage = cells[list(placement)].T  # [W, S]
    kinds = np.array([kind in (None, name) for name in ("forward", "backward")])
    computes = kinds[:, None, None] & of_stage[:, None, :, None]  # [W, 2, S, 1]
    receives = np.stack([of_stage[:, 1:], of_stage[:, :-1]], axis=1) & (kind in (None, "messages"))
    around = cells.T[:, :, None] & (kind in (None, "outside"))
    return Durations(
        Times(
            np.where(computes, part.times.operators_ms, base.times.operators_ms),
            np.where(receives, part.times.messages_ms, base.times.messages_ms),
        ),
        {name: np.where(around, part.outside[name], own) for name, own in base.outside.items()},
    )
