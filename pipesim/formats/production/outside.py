"""What the ranks of a production job do before and after their pipelines.

Parameters are gathered before the first forward; after the last backward gradients are reduced,
and the optimizer runs. Most of these operations wait for other ranks, and are logged with their
waiting time: what they take themselves is the time from the last start among those that wait for
each other to their own end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from pipesim.scenario import Array

if TYPE_CHECKING:
    from pipesim.formats.production.trace import ProductionTrace

__all__ = ["OUTSIDE", "outside_ms"]

OUTSIDE: dict[str, Literal["alone", "workers", "devices", "all"]] = {
    "params-all-gather": "workers",
    "gc": "alone",
    "layernorm-grads-all-reduce": "alone",
    "embedding-grads-all-reduce": "devices",
    "grads-reduce-scatter": "workers",
    "separate-grads-all-reduce": "workers",
    "optimizer-clip-main-grad": "all",
    "optimizer": "alone",
}
"""Who waits for each other in it: nobody, the same device of all workers, the devices of one
worker that log it (those with the first and the last stage), or all. So the published what-if
analysis takes them; other operations are not known, and left out."""


def outside_ms(trace: ProductionTrace) -> dict[str, Array]:
    """Return how long operations outside the pipeline take once all ranks are there.

    Parameters
    ----------
    trace : ProductionTrace
        Of its operations, the known ones.

    Returns
    -------
    dict of str to array, shape [steps, workers, D, K]
        For each name that is in the trace: K of them in a step; NaN where there is none.
    """
    rows, devices = trace.outside, trace.schedule.devices
    result = {}
    for name, together in OUTSIDE.items():
        own = rows[(rows["optype"] == name) & (rows["stage"] < devices)]
        if not len(own):
            continue
        own = own.sort_values("seq_id")
        number = own.groupby(["step", "dp_rank", "stage"]).cumcount()
        shape = len(trace.steps), len(trace.workers), devices, int(number.max()) + 1
        at = (
            np.searchsorted(trace.steps, own["step"]),
            np.searchsorted(trace.workers, own["dp_rank"]),
            own["stage"].to_numpy(),
            number.to_numpy(),
        )
        start, end = np.full((2, *shape), np.nan)
        start[at], end[at] = own["start_ms"], own["end_ms"]
        axes = {"alone": (), "workers": (1,), "devices": (2,), "all": (1, 2)}[together]
        last = np.fmax.reduce(start, axis=axes, keepdims=True) if axes else start
        result[name] = np.maximum(end - last, 0.0)  # clocks may differ a little
    return result
