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
        Which runs tell it.
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
        "time after the pipeline: gradient reduction, optimizer",
        "timelines, or runs with delays of unlike length",
        0.0,
        (0, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100),
    ),
    "transfer_gib_per_s": Constant(
        "GiB/s",
        "bandwidth of a rank's messages over NCCL",
        "timelines; runs with a delay hardly do, as healthy times are scaled",
        np.inf,
        (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, np.inf),
    ),
    "overshoot_ms": Constant(
        "ms",
        "time that a delay injected under NCCL takes beyond its nominal one",
        "1f1b and zerobubble runs",
        0.0,
        (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14),
    ),
    "idle_speed": Constant(
        "×",
        "operator times under an NCCL delay over healthy ones: idle GPUs clock higher",
        "1f1b and zerobubble runs",
        1.0,
        (0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0),
    ),
    "copy_gib_per_s": Constant(
        "GiB/s",
        "bandwidth of copies between a device and its host, which delegated operators wait for",
        "pipemorph and pipemorph-cpu runs with short delays, or without any",
        np.inf,
        (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, np.inf),
    ),
    "delegate_ms": Constant(
        "ms",
        "latency of a delegated transfer",
        "pipemorph and pipemorph-cpu runs of single-GPU nodes",
        0.0,
        (0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8),
    ),
    "host_gib_per_s": Constant(
        "GiB/s",
        "bandwidth of delegated transfers, shared by the ranks of a host",
        "pipemorph and pipemorph-cpu runs of hosts with several ranks",
        np.inf,
        (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, np.inf),
    ),
    "replanned_ms": Constant(
        "ms",
        "extra time after the pipeline where a stage behind the first one holds more activations "
        "than its usual plan",
        "pipemorph runs",
        0.0,
        (0, 20, 50, 100, 150, 200, 250, 280, 300, 320, 340, 360, 400),
    ),
}
"""All constants there are.

``replanned_ms`` is what the A10 runs show and nothing explains: their re-planned iterations end
0.3 s after the last operator, all others 0.04 s. It is kept as it was measured.
"""
