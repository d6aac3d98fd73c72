"""The constants of a testbed: physical, each with a unit, few values, and the runs that fix it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["CONSTANTS", "GIB_PER_S", "MOST_FITTED", "Constant"]

GIB_PER_S = 2**30 / 1e3
"""Bytes per millisecond."""

MOST_FITTED = 4
"""Constants of one testbed that a fit may choose; what was read off timelines comes on top."""


@dataclass(frozen=True)
class Constant:
    """A constant of a testbed.

    The values that a fit may choose are few and round, so that it cannot claim more than the
    runs show.

    Parameters
    ----------
    unit, meaning : str
        For people.
    fixed_by : str
        Which runs tell it; *delegated* are pipemorph and pipemorph-cpu.
    neutral : float
        Where it changes nothing.
    candidates : tuple of float
        What a fit may choose from, in order.
    """

    unit: str
    meaning: str
    fixed_by: str
    neutral: float
    candidates: tuple[float, ...]


CONSTANTS = {
    "after_ms": Constant(
        "ms",
        "after the pipeline: gradients, optimizer",
        "timelines",
        0.0,
        (0, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100),
    ),
    "transfer_gib_per_s": Constant(
        "GiB/s",
        "messages of a rank over NCCL",
        "timelines",
        np.inf,
        (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, np.inf),
    ),
    "overshoot_ms": Constant(
        "ms",
        "an NCCL delay beyond its nominal one",
        "1f1b, zerobubble",
        0.0,
        (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14),
    ),
    "idle_speed": Constant(
        "×",
        "operators under an NCCL delay; healthy: 1",
        "timelines, 1f1b, zerobubble",
        1.0,
        (0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0),
    ),
    "copy_gib_per_s": Constant(
        "GiB/s",
        "host copies that operators wait for",
        "delegated, short delays",
        np.inf,
        (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, np.inf),
    ),
    "delegate_ms": Constant(
        "ms",
        "latency of a delegated transfer",
        "delegated, one rank a host",
        0.0,
        (0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8),
    ),
    "host_gib_per_s": Constant(
        "GiB/s",
        "delegated, shared by a host's ranks",
        "delegated, more ranks a host",
        np.inf,
        (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, np.inf),
    ),
    "replanned_ms": Constant(
        "ms",
        "after re-planned pipelines",
        "pipemorph",
        0.0,
        tuple(range(0, 420, 20)),
    ),
}
"""All constants there are.

- ``transfer_gib_per_s`` is a rank's own: ranks of a host do not share it. Runs with a delay hardly
  tell it, nor ``after_ms``, because operator times are scaled to the healthy iteration.
- ``idle_speed``: GPUs that often wait clock higher, so operators are faster under a delay.
- ``replanned_ms`` counts where a stage behind the first one holds more activations than in its
  usual plan. It is what the A10 runs show and nothing explains: their re-planned iterations end
  0.3 s after the last operator, all others 0.04 s. It is kept as it was measured.
"""
