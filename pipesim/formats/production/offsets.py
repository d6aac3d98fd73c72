"""Clocks of ranks that differ by the same time in all steps, and what sets them right.

No operator starts before what it reads is there. Between two devices, activations bound the
difference of their clocks from one side and gradients from the other, as the messages of NTP do;
the middle of the two is taken. Clocks that fit as they are stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from pipesim.formats.clocks import CLOCK_ERROR_MS
from pipesim.text import listed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["set_right"]

_KEY = ["dp_rank", "step", "mb_id", "backward", "gmc"]


def set_right(rows: pd.DataFrame, *others: pd.DataFrame) -> tuple[str, ...]:
    """Move the times of ranks whose clocks are early or late, in place.

    Parameters
    ----------
    rows : DataFrame
        As :func:`pipesim.formats.production.table.read_rows` gives them, one rank for each device
        of a worker, and whether a row ``computes``.
    *others : DataFrame
        More rows of the same ranks, to be moved with them.

    Returns
    -------
    tuple of str
        What was moved, for people.
    """
    bounds = _bounds(rows)
    offsets: dict[tuple[int, int], float] = {}
    for worker in rows["dp_rank"].unique().tolist():
        offset = 0.0
        for device in range(1, int(rows["stage"].max()) + 1):
            least = bounds.get((worker, device - 1, device), -np.inf)
            most = -bounds.get((worker, device, device - 1), -np.inf)
            fits = least <= CLOCK_ERROR_MS and most >= -CLOCK_ERROR_MS
            if not fits and least <= most + CLOCK_ERROR_MS and np.isfinite([least, most]).all():
                offset += (least + most) / 2
            if offset:
                offsets[worker, device] = offset
    if not offsets:
        return ()
    for some in (rows, *others):
        moved = np.zeros(len(some))
        workers, devices = some["dp_rank"].to_numpy(), some["stage"].to_numpy()
        for (worker, device), offset in offsets.items():
            moved[(workers == worker) & (devices == device)] = offset
        for name in ("start_ms", "end_ms"):
            some[name] += moved
    late = [
        f"dp rank {worker}, stage {device} by {offset:+,.1f} ms"
        for (worker, device), offset in offsets.items()
    ]
    named = [*late[:3], *([f"{len(late) - 3} more"] if len(late) > 3 else [])]
    return (
        "clocks that differ by the same time in all steps were set right, so that nothing is read "
        f"before it is there: {listed(named)}",
    )


def _bounds(rows: pd.DataFrame) -> dict[tuple[int, int, int], float]:
    """By how much a device's clock must at least be moved against that of one it reads from.

    By worker, the device that is read from and the one that reads; lower medians over the steps.
    """
    computes = rows[rows["computes"]]
    backward = (computes["optype"] == "backward-compute").to_numpy()
    table = computes[["dp_rank", "step", "mb_id", "gmc", "stage", "start_ms", "end_ms"]]
    table = table.assign(backward=backward).drop_duplicates(_KEY)
    reader = table["gmc"] + np.where(table["backward"], -1, 1)
    pairs = table.assign(gmc=reader).merge(table, on=_KEY, suffixes=("", "_reader"))
    pairs = pairs[pairs["stage"] != pairs["stage_reader"]]
    early = (pairs["end_ms"] - pairs["start_ms_reader"]).rename("early")
    ends = ["dp_rank", "stage", "stage_reader"]
    steps = early.groupby([pairs[name] for name in ["step", *ends]]).max()
    # The lower of two middle ones: what holds in half of the steps only is a jump.
    usual = steps.groupby(level=ends).quantile(0.5, interpolation="lower")
    return cast(dict[tuple[int, int, int], float], usual.to_dict())
