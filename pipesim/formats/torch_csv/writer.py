"""Schedules as CSV for ``torch.distributed.pipelining``, and back.

There is no header. Row *i* is rank *i*, our device *i*; its cells are actions in the order in
which they run. ``0F1`` is the forward of stage 0 for micro-batch 1, ``0I1`` its backward for
the input, ``0W1`` for the weights, ``0B1`` both at once (our B, W and BW). torch knows two
kinds of file:

``compute_only``
    Only compute; torch adds the communication when it loads the file. It is what ``_load_csv``
    takes by default, and torchtitan's ``pipeline_parallel_schedule_csv``. Cells are time
    steps: a blank one is idle time, such that every operator stands right of all that it
    needs. ``_PipelineScheduleRuntime`` skips blanks. ``PipelineScheduleMulti`` needs them: all
    its ranks do in step *i* what stands in column *i*, and without blanks would compute with data
    that has not arrived. (It cannot pass results between stages on the same rank, as in a V.)

``compute_comms``
    Run as it is: ``0SEND_F1``, ``1RECV_F1`` and the same with ``_B`` between stages on
    different ranks, no blanks, and ``0REDUCE_GRAD`` after the last backward of each stage
    (torch ≥ 2.10), without which gradients would be neither scaled nor reduced. A plan with
    sends and receives of its own (:attr:`Schedule.communicates`) is written as it stands, but
    torch knows no batches: their ends stand one after the other
    (:func:`pipesim.communication.unbatched`). For another, a receive stands where its message is
    sent, so any two ranks agree on the order of their messages and no backend can deadlock; there
    is no UNSHARD: for stages under FSDP use
    ``compute_only``.

Reading takes both kinds and tells them apart. torch's own parser reads the start of a cell
only; here a cell is one of torch's actions or an error. UNSHARD, RESHARD and REDUCE_GRAD, which
files dumped by torch hold, are kept where they stand, and so is an ``(0F1;1B0)OVERLAP_F_B``.

How torch runs a ``compute_comms`` file (``_PipelineScheduleRuntime``): a SEND posts an isend,
waited for at the end of the step; a RECV posts an irecv, waited for by its operator. None has a
tag, so two ranks match the messages from one to the other by their order. Over gloo a send
waits for nobody. Over NCCL the two ranks share a communicator and its stream, in which
sends and receives queue as they are posted: two ranks that both send first hang, unless the
messages fit NCCL's buffers. The operators of an overlap run one after the other.

Its first stage runs nothing in ``I`` and the whole backward in ``W``; plan for that with
:mod:`pipesim.target`.

The interface is private to torch and may change; this was checked against torch 2.13.0.
"""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from typing import Literal

from pipesim.actions import Op, Overlap, Upkeep, operators_of
from pipesim.communication import sending_of, unbatched
from pipesim.errors import ScheduleError
from pipesim.files import StrPath, write_text
from pipesim.formats.torch_csv.actions import cell
from pipesim.schedule import Schedule

__all__ = ["TorchKind", "save_torch_csv", "torch_csv"]

TorchKind = Literal["compute_only", "compute_comms"]


def save_torch_csv(schedule: Schedule, path: StrPath, kind: TorchKind = "compute_only") -> None:
    """Write a schedule for torch.

    The planner and its assumptions are lost; and by ``compute_only`` sends and receives, UNSHARD,
    RESHARD and REDUCE_GRAD.

    Raises
    ------
    FormatError
        The file cannot be written.
    ScheduleError
        torch cannot run the schedule, see :func:`torch_csv`.
    """
    write_text(path, torch_csv(schedule, kind))


def torch_csv(schedule: Schedule, kind: TorchKind = "compute_only") -> str:
    """Return the text of a schedule's file.

    Raises
    ------
    ScheduleError
        The last stage runs its forwards in another order than 0, 1, 2, …: torch counts the
        losses in the order in which they come, and would mix them up.

    Examples
    --------
    >>> ops = [Op("F", 0, 0), Op("BW", 0, 0)], [Op("F", 1, 0), Op("B", 1, 0), Op("W", 1, 0)]
    >>> made = Schedule(ops, [0, 1], 1)
    >>> print(torch_csv(made), end="")
    0F0,,,0B0
    ,1F0,1I0,1W0
    >>> print(torch_csv(made, "compute_comms"), end="")
    0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD
    1RECV_F0,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD
    """
    _check_losses(schedule)
    if kind == "compute_only":
        rows = _time_steps(schedule)
    elif schedule.communicates:
        plain = unbatched(schedule.actions or (), schedule.placement)
        rows = [list(map(cell, row)) for row in plain]
    else:
        rows = _with_messages(schedule)
    return "".join(",".join(row) + "\n" for row in rows)


def _check_losses(schedule: Schedule) -> None:
    last = schedule.stages - 1
    order = schedule.orders[schedule.placement[last]]
    forwards = [op for op in order if op.kind == "F" and op.stage == last]
    wrong = next((op for i, op in enumerate(forwards) if op.microbatch != i), None)
    if wrong is not None:
        raise ScheduleError(
            f"torch cannot run this plan: its last stage must run the forwards of micro-batches "
            f"0, 1, 2, … in this order, and {wrong} is not in its place"
        )


def _units(schedule: Schedule) -> list[list[Op | Overlap]]:
    """What each rank computes, one cell each."""
    rows = schedule.actions or schedule.orders
    return [[action for action in row if isinstance(action, Op | Overlap)] for row in rows]


def _steps(schedule: Schedule) -> dict[Op | Overlap, int]:
    """The earliest time step of each cell that computes, in order, were each one step long."""
    rows = _units(schedule)
    unit_of = {op: unit for row in rows for unit in row for op in operators_of([unit])}
    needs: dict[Op | Overlap, set[Op | Overlap]] = {}
    for row in rows:
        for before, unit in zip((None, *row), row, strict=False):
            read = {unit_of[need] for op in operators_of([unit]) for need in schedule.needs(op)}
            needs[unit] = (read | ({before} if before else set())) - {unit}
    steps: dict[Op | Overlap, int] = {}
    for unit in TopologicalSorter(needs).static_order():
        steps[unit] = max((steps[need] + 1 for need in needs[unit]), default=0)
    return steps


def _time_steps(schedule: Schedule) -> list[list[str]]:
    steps = _steps(schedule)
    units = _units(schedule)
    rows = [[""] * (steps[own[-1]] + 1) for own in units]
    for row, own in zip(rows, units, strict=True):
        for unit in own:
            row[steps[unit]] = cell(unit)
    return rows


def _with_messages(schedule: Schedule) -> list[list[str]]:
    """Go through all ranks step by step; write both ends of a message when it is sent."""
    steps, placement = _steps(schedule), schedule.placement
    upkeep = _upkeep(schedule)
    rows: list[list[str]] = [[] for _ in schedule.orders]

    def device(unit: Op | Overlap) -> int:
        return placement[next(operators_of([unit])).stage]

    for unit in sorted(steps, key=lambda unit: (steps[unit], device(unit))):
        row = rows[device(unit)]
        before, behind = upkeep[unit]
        row += [*map(cell, before), cell(unit)]
        for op in operators_of([unit]):
            sending = sending_of(op, placement)
            if sending:
                row.append(cell(sending))
                rows[placement[sending.other.stage]].append(cell(sending.other))
        row += map(cell, behind)
    return rows


def _upkeep(schedule: Schedule) -> dict[Op | Overlap, tuple[list[Upkeep], list[Upkeep]]]:
    """The upkeep before and behind each cell: the plan's own, and what torch cannot do without."""
    result: dict[Op | Overlap, tuple[list[Upkeep], list[Upkeep]]] = {}
    given = {action for row in schedule.actions or () for action in row}
    for row in schedule.actions or schedule.orders:
        before: list[Upkeep] = []
        behind: list[Upkeep] = []
        backwards: Counter[int] = Counter()
        for action in row:
            if isinstance(action, Upkeep):
                before.append(action)
            elif isinstance(action, Op | Overlap):
                behind = []
                result[action] = before, behind
                before = []
                for op in operators_of([action]):
                    if op.kind in ("W", "BW"):
                        backwards[op.stage] += 1
                        reduce = Upkeep("REDUCE_GRAD", op.stage)
                        if backwards[op.stage] == schedule.microbatches and reduce not in given:
                            behind.append(reduce)
        behind += before
    return result
