"""From the rows of one iteration of a production trace to its timeline.

- An iteration is complete if every stage ran every micro-batch forward and backward;
  ``backward-compute`` is the full backward, BW.
- Its clocks must fit together, see :mod:`pipesim.formats.clocks`.
- The n-th ``forward-send`` of a device is the message of its n-th forward, and so on. Sends
  and receives hold waiting time: a message's own time is that of the end that came last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.formats.clocks import UnusableError, measured_timeline
from pipesim.program import Message
from pipesim.scenario import Array, Kind, Scenario
from pipesim.schedule import Op
from pipesim.timeline import CommSpan, OpSpan, Timeline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COMM", "COMPUTE", "assemble"]

COMPUTE: dict[str, Kind] = {"forward-compute": "F", "backward-compute": "BW"}


class _Way(NamedTuple):
    """What a communication operation belongs to, and where its other end is."""

    kind: Kind
    peer: int
    sends: bool


COMM = {
    "forward-send": _Way("F", 1, True),
    "forward-recv": _Way("F", -1, False),
    "backward-send": _Way("BW", -1, True),
    "backward-recv": _Way("BW", 1, False),
}


def assemble(
    compute: pd.DataFrame,
    comm: pd.DataFrame | None,
    placement: tuple[int, ...],
    microbatches: int,
) -> Timeline:
    """Return the timeline of one iteration, from its first operator at 0 ms on.

    Parameters
    ----------
    compute, comm : DataFrame
        The rows of its compute and communication operations, as
        :func:`pipesim.formats.production.table.read_rows` gives them.
    placement : tuple of int, shape [S]
        The device of each stage.
    microbatches : int
        N.

    Raises
    ------
    UnusableError
        An operator is missing or comes twice, or a clock jumps.
    """
    ordered = compute.sort_values(["start_ms", "end_ms"], kind="stable")
    _check_numbering(ordered)
    scenario = _scenario(ordered, placement, microbatches)
    timeline = measured_timeline(scenario, _spans(ordered, scenario.devices))
    origin = float(ordered["start_ms"].iloc[0])
    return replace(timeline, comm=tuple(_messages(timeline, comm, origin)))


def _check_numbering(ordered: pd.DataFrame) -> None:
    for _, part in ordered.groupby(["stage", "optype"]):
        if not part["seq_id"].is_monotonic_increasing:
            raise UnusableError(
                f"the clock of device {part['stage'].iloc[0]} jumps: the operations do not "
                "start in the order of seq_id"
            )


def _scenario(ordered: pd.DataFrame, placement: tuple[int, ...], microbatches: int) -> Scenario:
    """Every operator's own time; it must be there once."""
    shape = len(placement), microbatches
    times: dict[str, Array] = {kind: np.full(shape, np.nan) for kind in COMPUTE.values()}
    columns = ordered[["optype", "gmc", "mb_id", "start_ms", "end_ms"]]
    for optype, stage, m, start, end in columns.itertuples(index=False):
        kind = COMPUTE[optype]
        if not np.isnan(times[kind][stage, m]):
            raise UnusableError(f"{Op(kind, stage, m)} comes twice")
        times[kind][stage, m] = end - start
    for name, kind in COMPUTE.items():
        if np.isnan(times[kind]).any():
            stage, m = np.argwhere(np.isnan(times[kind]))[0].tolist()
            raise UnusableError(f"stage {stage} lacks the {name} of micro-batch {m}")
    return Scenario(
        stages=len(placement),
        microbatches=microbatches,
        placement=placement,
        forward_ms=times["F"],
        backward_ms=times["BW"] / 2,
        weight_ms=times["BW"] / 2,
        fused_backward_ms=times["BW"],
    )


def _spans(ordered: pd.DataFrame, devices: int) -> list[list[OpSpan]]:
    spans: list[list[OpSpan]] = [[] for _ in range(devices)]
    columns = ordered[["optype", "stage", "gmc", "mb_id", "start_ms", "end_ms"]]
    for optype, device, stage, m, start, end in columns.itertuples(index=False):
        spans[device].append(OpSpan(Op(COMPUTE[optype], int(stage), int(m)), start, end))
    return spans


def _messages(timeline: Timeline, comm: pd.DataFrame | None, origin: float) -> Iterator[CommSpan]:
    """Both ends of each message; none at all if some cannot be told apart."""
    scenario = timeline.scenario
    if comm is None or not scenario.is_plain:
        return
    found = []
    ordered = comm.sort_values("seq_id", kind="stable")
    for device, spans in enumerate(timeline.compute):
        for optype, way in COMM.items():
            peer = device + way.peer
            rows = ordered[(ordered["stage"] == device) & (ordered["optype"] == optype)]
            own = [span.op for span in spans if span.op.kind == way.kind]
            if len(rows) != (len(own) if 0 <= peer < scenario.stages else 0):
                return
            for op, start, end in zip(own, rows["start_ms"], rows["end_ms"], strict=False):
                ends = op, op._replace(stage=peer)
                message = Message(*(ends if way.sends else ends[::-1]))
                # Who waits before the iteration has begun waits from its beginning on.
                begin, done = max(start - origin, 0.0), max(end - origin, 0.0)
                found.append(CommSpan(message, "kernel", device, begin, done))
    yield from found
