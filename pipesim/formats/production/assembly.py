"""From the rows of a production trace to its iterations, all of them at once, as arrays.

- One *iteration* is one step of one data-parallel rank. It is complete if every stage ran
  every micro-batch forward and backward; ``backward-compute`` is the full backward, BW.
- Its clocks must fit together: see :mod:`pipesim.formats.clocks`.
- Most iterations have one number of micro-batches; those with another are told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipesim.errors import ScheduleError
from pipesim.formats.clocks import CLOCK_ERROR_MS
from pipesim.scenario import Array, Kind
from pipesim.schedule import Op, Schedule
from pipesim.text import counted

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COMPUTE", "Assembled", "assemble", "usual_microbatches"]

COMPUTE: dict[str, Kind] = {"forward-compute": "F", "backward-compute": "BW"}
_KINDS: tuple[Kind, ...] = tuple(COMPUTE.values())

Ints: TypeAlias = NDArray[np.int_]


@dataclass(frozen=True)
class Assembled:
    """The complete iterations.

    Parameters
    ----------
    numbers : array of int, shape [I]
        Which of the numbered iterations they are.
    start_ms, end_ms : array, shape [I, 2, S, N]
        When the forwards and the backwards ran, on the clock of the trace.
    orders : array of int, shape [I, 2 · S · N]
        The operators of device after device in the order in which they ran, numbered as they
        stand in the arrays above.
    schedules : tuple of Schedule
        The same, shape [I].
    reasons : dict of int to str
        Why each of the other iterations is not complete.
    """

    numbers: Ints
    start_ms: Array
    end_ms: Array
    orders: Ints
    schedules: tuple[Schedule, ...]
    reasons: dict[int, str]


def usual_microbatches(iteration: Ints, microbatch: Ints, count: int) -> tuple[int, Ints]:
    """Return the number of micro-batches that most iterations have, and that of each.

    Parameters
    ----------
    iteration, microbatch : array of int, shape [rows]
        Of each compute operation.
    count : int
        How many iterations there are.
    """
    last = np.full(count, -1)
    np.maximum.at(last, iteration, microbatch)
    numbers, times = np.unique(last[last >= 0], return_counts=True)
    return int(numbers[times == times.max()][-1]) + 1, last + 1


def assemble(
    compute: pd.DataFrame, placement: tuple[int, ...], microbatches: int, of_each: Ints
) -> Assembled:
    """Put the compute operations of all iterations into arrays, and check these.

    Parameters
    ----------
    compute : DataFrame
        Rows as :func:`pipesim.formats.production.table.read_rows` gives them, and the number of
        each row's ``iteration``.
    placement : tuple of int, shape [S]
        The device of each stage.
    microbatches : int
        N of the iterations to assemble.
    of_each : array of int
        How many micro-batches each iteration has; 0: there is none of it.
    """
    reasons = {
        int(i): f"has {counted(int(of_each[i]), 'micro-batch')}, and most have {microbatches}"
        if of_each[i]
        else "there is no operator of this rank"
        for i in np.flatnonzero(of_each != microbatches)
    }
    shape = 2, len(placement), microbatches
    size = int(np.prod(shape))
    iteration = compute["iteration"].to_numpy()
    kind = (compute["optype"] == "backward-compute").to_numpy(np.int64)
    stage = compute["gmc"].to_numpy()
    cell = (kind * shape[1] + stage) * microbatches + compute["mb_id"].to_numpy()
    start, end = compute["start_ms"].to_numpy(), compute["end_ms"].to_numpy()
    index = compute.index.to_numpy()
    seq, device = compute["seq_id"].to_numpy(), compute["stage"].to_numpy()

    # One reason for each iteration: the first check that it fails.
    def skip(wrong: Ints, why: Callable[[int], str]) -> None:
        """Give rows, or iterations, that are wrong a reason."""
        of = iteration[wrong]
        for i, first in zip(*np.unique(of, return_index=True), strict=True):
            if int(i) not in reasons:
                row = int(wrong[first])
                reasons[int(i)] = f"row {index[row]}: {why(row)}"

    by_start = np.lexsort((end, start, kind, device, iteration))
    same = _same(by_start, iteration, device, kind)
    back = by_start[1:][same & (np.diff(seq[by_start]) < 0)]
    skip(
        back,
        lambda row: (
            f"the clock of device {device[row]} jumps: the operations do not "
            "start in the order of seq_id"
        ),
    )
    by_cell = np.lexsort((cell, iteration))
    twice = by_cell[1:][_same(by_cell, iteration, cell)]
    skip(twice, lambda row: f"{_op(int(cell[row]), shape)} comes twice")
    found = np.bincount(iteration, minlength=len(of_each))
    for number in np.flatnonzero(found != size).tolist():
        if number not in reasons:
            reasons[number] = _lacking(set(cell[iteration == number].tolist()), shape)

    numbers = np.flatnonzero(~np.isin(np.arange(len(of_each)), list(reasons)))
    place = np.full(len(of_each), -1)
    place[numbers] = np.arange(len(numbers))
    kept = place[iteration] >= 0
    at = place[iteration[kept]] * size + cell[kept]
    starts, ends = np.empty((2, len(numbers) * size))
    starts[at], ends[at] = start[kept], end[kept]
    rows = np.empty(len(numbers) * size, dtype=np.int32)
    rows[at] = index[kept]
    starts = starts.reshape(len(numbers), *shape)
    ends = ends.reshape(len(numbers), *shape)

    orders = _orders(starts, ends, placement)
    broken = _contradictions(starts, ends, shape) | _overlaps(starts, ends, orders, placement)
    schedules = _schedules(orders, placement, shape)
    whole = []
    for i, number in enumerate(numbers.tolist()):
        made = schedules[i]
        if i in broken:
            cell_of, reason = broken[i]
            reasons[number] = f"row {rows[i * size + cell_of]}: {reason}"
        elif isinstance(made, str):
            reasons[number] = f"the clocks contradict each other: {made}"
        elif ends[i].max() <= starts[i].min():
            reasons[number] = "its operators take no time"
        else:
            whole.append(i)
    chosen = np.array(whole, dtype=int)
    everything = len(chosen) == len(numbers)
    return Assembled(
        numbers[chosen],
        starts if everything else starts[chosen],
        ends if everything else ends[chosen],
        orders if everything else orders[chosen],
        tuple(one for one in (schedules[i] for i in whole) if isinstance(one, Schedule)),
        reasons,
    )


def _same(order: Ints, *columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether neighbours in an order agree in all columns."""
    result = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns:
        values = column[order]
        result &= values[1:] == values[:-1]
    return result


def _op(cell: int, shape: tuple[int, int, int]) -> Op:
    kind, stage, m = (int(index) for index in np.unravel_index(cell, shape))
    return Op(_KINDS[kind], stage, m)


def _lacking(found: set[int], shape: tuple[int, int, int]) -> str:
    missing = _op(next(cell for cell in range(int(np.prod(shape))) if cell not in found), shape)
    name = next(name for name, kind in COMPUTE.items() if kind == missing.kind)
    return f"stage {missing.stage} lacks the {name} of micro-batch {missing.microbatch}"


def _orders(starts: Array, ends: Array, placement: tuple[int, ...]) -> Ints:
    """Return the cells of each iteration as its devices ran them, device after device."""
    count, _, _, n = starts.shape
    device = np.broadcast_to(np.array(placement)[:, None], (2, len(placement), n)).ravel()
    result = np.empty((count, device.size), dtype=np.int64)
    for i in range(count):
        result[i] = np.lexsort((ends[i].ravel(), starts[i].ravel(), device))
    return result


def _overlaps(
    starts: Array, ends: Array, orders: Ints, placement: tuple[int, ...]
) -> dict[int, tuple[int, str]]:
    """Say where two operators run at once on one device."""
    count, *shape = starts.shape
    device = np.broadcast_to(np.array(placement)[:, None], shape).ravel()
    start = np.take_along_axis(starts.reshape(count, device.size), orders, axis=1)
    end = np.take_along_axis(ends.reshape(count, device.size), orders, axis=1)
    together = device[orders[:, 1:]] == device[orders[:, :-1]]
    at_once = together & (end[:, :-1] - start[:, 1:] > CLOCK_ERROR_MS)
    result: dict[int, tuple[int, str]] = {}
    for i, position in np.argwhere(at_once):
        before, after = (_op(int(orders[i, position + k]), tuple(shape)) for k in (0, 1))
        result.setdefault(
            int(i),
            (
                int(orders[i, position + 1]),
                f"the clock of device {device[orders[i, position]]} jumps: {before} and {after} "
                "run at once",
            ),
        )
    return result


def _contradictions(
    starts: Array, ends: Array, shape: tuple[int, int, int]
) -> dict[int, tuple[int, str]]:
    """Say where an operator starts before one that it needs has ended."""
    forward, backward = 0, 1
    pairs: list[tuple[Array, Array, int, int, int]] = [
        # What it needs ends, it starts; its kind, the other's kind, and the step between stages.
        (ends[:, forward, :-1], starts[:, forward, 1:], forward, forward, -1),
        (ends[:, forward], starts[:, backward], backward, forward, 0),
        (ends[:, backward, 1:], starts[:, backward, :-1], backward, backward, 1),
    ]
    result: dict[int, tuple[int, str]] = {}
    for ended, started, kind, other, step in pairs:
        early = ended - started
        for i, stage, m in np.argwhere(early > CLOCK_ERROR_MS):
            op = Op(_KINDS[kind], int(stage) + (step == -1), int(m))
            need = Op(_KINDS[other], op.stage + step, op.microbatch)
            result.setdefault(
                int(i),
                (
                    (kind * shape[1] + op.stage) * shape[2] + op.microbatch,
                    f"the clocks contradict each other: {op} starts {early[i, stage, m]:.1f} ms "
                    f"before {need} ends",
                ),
            )
    return result


def _schedules(
    orders: Ints, placement: tuple[int, ...], shape: tuple[int, int, int]
) -> list[Schedule | str]:
    """Return the schedule of each iteration, made once for each order, or why there is none."""
    made: dict[bytes, Schedule | str] = {}
    ops = [_op(cell, shape) for cell in range(int(np.prod(shape)))]
    devices = max(placement) + 1
    result = []
    for order in orders:
        key = order.tobytes()
        if key not in made:
            lists: list[list[Op]] = [[] for _ in range(devices)]
            for cell in order.tolist():
                lists[placement[ops[cell].stage]].append(ops[cell])
            try:
                made[key] = Schedule(lists, placement, shape[2], "measured")
            except ScheduleError as error:
                made[key] = str(error)
        result.append(made[key])
    return result
