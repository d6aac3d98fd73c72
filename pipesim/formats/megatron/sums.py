"""What the ways to find operator times share: their result, and how sums become operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipesim.formats.measurement import OperatorTimes
from pipesim.formats.megatron.dialects import OPERATORS
from pipesim.formats.megatron.layout import Layout
from pipesim.formats.megatron.record import LoggedIteration, MegatronLog
from pipesim.formats.tally import Tally
from pipesim.scenario import Array, Kind
from pipesim.text import counted

__all__ = ["Chosen", "Operators", "alike", "both", "divided", "spread"]

Chosen: TypeAlias = Sequence[tuple[MegatronLog, LoggedIteration]]


@dataclass(frozen=True)
class Operators:
    """Operator times, and how they were found.

    Parameters
    ----------
    times : OperatorTimes
        Of each virtual stage and micro-batch.
    notes : tuple of str
        For people.
    guessed : bool
        Whether they come from the iteration time.
    ranks : Tally, optional
        Which ranks count, where the timers are of all.
    after_ms : float
        What follows the pipeline, by its own timers, where the times are not from the iteration's.
    """

    times: OperatorTimes
    notes: tuple[str, ...]
    guessed: bool = False
    ranks: Tally | None = None
    after_ms: float = 0.0


def both(whose: str, timers: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the names of the timers of F and BW, if both are there."""
    names = [next((n for n in known if n in timers), None) for known in OPERATORS[whose]]
    forward, backward = names
    return None if forward is None or backward is None else (forward, backward)


def spread(sums_ms: Mapping[Kind, Array], layout: Layout, microbatches: int) -> OperatorTimes:
    """Share sums of each device, shape [iterations, D], among its micro-batches and chunks."""
    part = np.full(layout.stages, 1 / layout.chunks)
    if layout.layers:
        layers = np.reshape(layout.layers, (-1, layout.devices))
        whole = layers.sum(axis=0)
        part = np.where(
            whole > 0, layers / np.where(whole > 0, whole, 1), 1 / layout.chunks
        ).ravel()
    each_ms = {
        kind: np.tile(ms, (1, layout.chunks)) * part / microbatches for kind, ms in sums_ms.items()
    }
    return alike(each_ms, microbatches)


def alike(each_ms: Mapping[Kind, Array], microbatches: int) -> OperatorTimes:
    """Summarise times of each stage, shape [iterations, S], that all micro-batches share."""
    one = OperatorTimes.of({kind: ms[:, :, None] for kind, ms in each_ms.items()})
    stages = next(iter(each_ms.values())).shape[1]
    median_ms, spread_ms = (
        {kind: np.broadcast_to(ms, (stages, microbatches)) for kind, ms in of_one.items()}
        for of_one in (one.median_ms, one.spread_ms)
    )
    return OperatorTimes(median_ms, spread_ms, one.notes)


def divided(layout: Layout, microbatches: int) -> str:
    """Say by what a sum of a device is divided."""
    chunks = f" and {layout.chunks} chunks" if layout.chunks > 1 else ""
    return counted(microbatches, "micro-batch") + chunks
