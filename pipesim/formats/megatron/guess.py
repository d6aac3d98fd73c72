"""How long Megatron-LM's pipeline takes by its operator times; in reverse, a guess at these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["one_f_one_b_ms", "pair_ms"]


def pair_ms(
    iteration_ms: float, microbatches: int, devices: int, layers: Sequence[float]
) -> list[float]:
    """Return F + BW of each virtual stage from the time of an iteration, with BW = 2 F.

    Parameters
    ----------
    iteration_ms : float
        Time of N micro-batches.
    microbatches, devices : int
        N and D.
    layers : sequence of float
        How the times of the v·D virtual stages are to each other, in model order.

    Notes
    -----
    By 1F1B where v = 1, see :func:`one_f_one_b_ms`. By interleaved 1F1B otherwise: the busiest
    device d works N micro-batches through, after the first chunks above it and around the last
    chunks below it, N·t_d + Σ_{j<d} t_j + Σ_{j>d} t_{(v−1)D+j}. That is exact where all chunks
    are equal, N·t + (D − 1)·t/v for stages of time t, and N is a multiple of D.

    Examples
    --------
    >>> pair_ms(450, 12, 4, [1, 1, 1, 1])
    [30.0, 30.0, 30.0, 30.0]
    >>> pair_ms(285, 8, 4, [1] * 8)[0]
    15.0
    """
    weights = np.asarray(layers, dtype=float)
    if len(weights) == devices:
        whole = one_f_one_b_ms(weights / 3, weights * 2 / 3, microbatches)
    else:
        first, last = weights[:devices], weights[-devices:]
        work = microbatches * weights.reshape(-1, devices).sum(axis=0)
        above = np.cumsum(first) - first
        below = last.sum() - np.cumsum(last)
        whole = float((work + above + below).max())
    result: list[float] = (weights * (iteration_ms / whole)).tolist()
    return result


def one_f_one_b_ms(forward_ms: ArrayLike, backward_ms: ArrayLike, microbatches: int) -> float:
    """Return the time of an iteration of 1F1B whose messages cost nothing.

    Parameters
    ----------
    forward_ms, backward_ms : array-like, shape [S]
        F and BW of each stage.
    microbatches : int
        N.

    Notes
    -----
    Stage s runs S − s forwards before its first backward. In the k-th of N + S − 1 rounds it
    runs F of micro-batch k, once that has come from above, then BW of micro-batch k − (S − 1 − s),
    once that has come from below in the round before. With equal times this gives
    (N + S − 1)·(F + BW).

    Examples
    --------
    >>> one_f_one_b_ms([10] * 4, [20] * 4, 12)
    450.0
    """
    forward = np.asarray(forward_ms, dtype=float).tolist()
    backward = np.asarray(backward_ms, dtype=float).tolist()
    stages = len(forward)
    if len(set(forward)) == len(set(backward)) == 1:
        return float((microbatches + stages - 1) * (forward[0] + backward[0]))
    free = [0.0] * stages
    gradient = [0.0] * (stages + 1)  # when the stage has sent its last one up
    for k in range(microbatches + stages - 1):
        if k < microbatches:
            activation = 0.0
            for s in range(stages):
                free[s] = activation = max(free[s], activation) + forward[s]
        for s in range(stages):  # from above: the gradient of the round before is still there
            if 0 <= k - (stages - 1 - s) < microbatches:
                free[s] = gradient[s] = max(free[s], gradient[s + 1]) + backward[s]
    return max(free)
