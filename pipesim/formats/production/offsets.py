"""Clocks of ranks that differ by the same time in all steps, and what sets them right.

No operator starts before what it reads is there. Between two devices, activations bound the
difference of their clocks from one side and gradients from the other, as the messages of NTP do;
the middle of the two is taken. Workers bound each other's clocks where they wait for each other,
to gather parameters and to reduce gradients. Clocks that fit as they are stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from pipesim.formats.clocks import CLOCK_ERROR_MS
from pipesim.formats.production.outside import OUTSIDE
from pipesim.text import listed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["set_right"]

_KEY = ["dp_rank", "step", "mb_id", "backward", "gmc"]


def set_right(rows: pd.DataFrame, outside: pd.DataFrame) -> tuple[str, ...]:
    """Move the times of ranks whose clocks are early or late, in place.

    Parameters
    ----------
    rows : DataFrame
        As :func:`pipesim.formats.production.table.read_rows` gives them, one rank for each device
        of a worker, and whether a row ``computes``.
    outside : DataFrame
        What the same ranks do outside their pipelines, to be moved with them.

    Returns
    -------
    tuple of str
        What was moved, for people.
    """
    moved = []
    devices = _of_devices(rows)
    for (worker, device), offset_ms in devices.items():
        _move(offset_ms, worker, device, rows, outside)
        if abs(offset_ms) >= _SHOWN_MS:
            moved.append(f"dp rank {worker}, stage {device} by {offset_ms:+,.1f} ms")
    for worker, offset_ms in _of_workers(outside).items():
        _move(offset_ms, worker, None, rows, outside)
        moved.append(f"dp rank {worker} by {offset_ms:+,.1f} ms")
    if not moved:
        return ()
    named = [*moved[:3], *([f"{len(moved) - 3} more"] if len(moved) > 3 else [])]
    return (
        "clocks that differ by the same time in all steps were set right, so that nothing is read "
        f"before it is there: {listed(named)}",
    )


_SHOWN_MS, _KINDS = 0.05, 2


def _move(offset_ms: float, worker: int, device: int | None, *tables: pd.DataFrame) -> None:
    """Move the times of one device of a worker, or of all its devices."""
    for rows in tables:
        own = rows["dp_rank"] == worker
        if device is not None:
            own &= rows["stage"] == device
        rows.loc[own, ["start_ms", "end_ms"]] += offset_ms


def _offset_ms(least: float, most: float) -> float:
    """By how much to move a clock that has to be moved by at least and at most so much."""
    fits = least <= CLOCK_ERROR_MS and most >= -CLOCK_ERROR_MS
    if fits or least > most + CLOCK_ERROR_MS or not np.isfinite([least, most]).all():
        return 0.0
    return (least + most) / 2


def _of_devices(rows: pd.DataFrame) -> dict[tuple[int, int], float]:
    """By how much to move the clock of each device of each worker, where it has to be moved."""
    bounds = _bounds(rows)
    offsets: dict[tuple[int, int], float] = {}
    for worker in rows["dp_rank"].unique().tolist():
        offset_ms = 0.0
        for device in range(1, int(rows["stage"].max()) + 1):
            least = bounds.get((worker, device - 1, device), -np.inf)
            most = -bounds.get((worker, device, device - 1), -np.inf)
            offset_ms += _offset_ms(least, most)
            if offset_ms:
                offsets[worker, device] = offset_ms
    return offsets


def _of_workers(outside: pd.DataFrame) -> dict[int, float]:
    """By how much to move all clocks of each worker against the first, where they have to be.

    Where workers wait for each other none is done before the last has begun. A single kind of
    operation does not tell a late clock from a late worker whose waiting was not logged.
    """
    together = outside["optype"].map(OUTSIDE).astype(object) == "workers"
    rows = outside[together].sort_values("seq_id", kind="stable")
    rank = ["step", "optype", "stage"]
    number = rows.groupby([*rank, "dp_rank"], observed=True).cumcount()
    rows = rows.assign(number=number)[[*rank, "number", "dp_rank", "start_ms", "end_ms"]]
    if rows["optype"].nunique() < _KINDS:
        return {}
    first = int(rows["dp_rank"].min())
    pairs = rows[rows["dp_rank"] != first].merge(
        rows[rows["dp_rank"] == first], on=[*rank, "number"], suffixes=("", "_first")
    )
    steps = (
        pairs.assign(
            early=pairs["start_ms_first"] - pairs["end_ms"],
            late=pairs["start_ms"] - pairs["end_ms_first"],
        )
        .groupby(["dp_rank", "step"])[["early", "late"]]
        .max()
    )
    usual = steps.groupby(level="dp_rank").quantile(0.5, interpolation="lower")
    found = {int(worker): _offset_ms(early, -late) for worker, early, late in usual.itertuples()}
    return {worker: offset_ms for worker, offset_ms in found.items() if offset_ms}


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
