"""Seeded random scenarios to measure planners and solvers on.

The same seed gives the same scenario everywhere: the names say which.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipesim.scenario import Array, Scenario

__all__ = ["BASES_MS", "CAPPED_SHAPES", "PAPER_SHAPES", "capped", "capped_suite", "paper",
           "paper_suite"]  # fmt: skip

PAPER_SHAPES = ((3, 6), (4, 12), (6, 18), (8, 32))
"""Stages and micro-batches."""
BASES_MS = (10, 15, 20, 25, 30)
CAPPED_SHAPES = {(3, 6): 8, (4, 12): 30, (5, 15): 10, (6, 18): 8, (8, 32): 4}
"""How many instances of each shape the suite has."""

_SPREAD = 0.3


def paper(stages: int, microbatches: int, base_ms: float, seed: int) -> Scenario:
    """Return a scenario as in the paper's Fig. 19: unequal times and delays, no memory limit.

    Each operator takes the base time ± 30 %, by stage and kind; each link is delayed by up to
    twice the base, the same both ways. All in whole milliseconds.
    """
    rng = np.random.default_rng([stages, microbatches, int(base_ms), seed])
    forward, backward, weight = _times(rng, base_ms, stages)
    return Scenario(
        stages=stages,
        microbatches=microbatches,
        forward_ms=forward,
        backward_ms=backward,
        weight_ms=weight,
        latency_ms=_both_ways(np.round(rng.uniform(0, 2 * base_ms, stages - 1))),
        name=f"paper {stages}x{microbatches} base {base_ms:g} seed {seed}",
    )


def paper_suite() -> Iterator[Scenario]:
    """Yield 100 scenarios: each of the shapes with each of the bases, five of each."""
    for stages, microbatches in PAPER_SHAPES:
        for base_ms in BASES_MS:
            for seed in range(5):
                yield paper(stages, microbatches, base_ms, seed)


def capped(stages: int, microbatches: int, seed: int) -> Scenario:
    """Return a scenario under an activation limit from S to 2S, the same on every device.

    Each operator takes 10 ms ± 30 %, by stage and kind; one to three links are slow by 5 to
    40 ms, the same both ways. All in whole milliseconds.
    """
    rng = np.random.default_rng([stages, microbatches, seed])
    forward, backward, weight = _times(rng, 10, stages)
    delays = np.zeros(stages - 1)
    count = rng.integers(1, min(3, stages - 1) + 1)
    for link in rng.choice(stages - 1, count, replace=False):
        delays[link] = rng.integers(5, 41)
    return Scenario(
        stages=stages,
        microbatches=microbatches,
        forward_ms=forward,
        backward_ms=backward,
        weight_ms=weight,
        latency_ms=_both_ways(delays),
        activation_limit=float(rng.integers(stages, 2 * stages + 1)),
        name=f"capped {stages}x{microbatches} seed {seed}",
    )


def capped_suite() -> Iterator[Scenario]:
    """Yield 60 scenarios, of :data:`CAPPED_SHAPES`."""
    for (stages, microbatches), count in CAPPED_SHAPES.items():
        for seed in range(count):
            yield capped(stages, microbatches, seed)


def _times(rng: np.random.Generator, base_ms: float, stages: int) -> Array:
    return np.round(base_ms * rng.uniform(1 - _SPREAD, 1 + _SPREAD, (3, stages)))


def _both_ways(delays: Array) -> Array:
    return np.stack([delays, delays], axis=1)
