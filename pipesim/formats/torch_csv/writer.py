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
    (torch ≥ 2.10), without which gradients would be neither scaled nor reduced. A receive
    stands where its message is sent, so any two ranks agree on the order of their messages
    and no backend can deadlock. It has no UNSHARD: for stages under FSDP use
    ``compute_only``.

Reading takes both kinds and tells them apart. torch's own parser reads the start of a cell
only; here a cell is one of torch's actions or an error. UNSHARD, RESHARD and REDUCE_GRAD, which
files dumped by torch hold, say nothing about the order of operators and are left out. An
``(0F1;1B0)OVERLAP_F_B`` is read as the two operators in this order, as torch runs it.

The interface is private to torch and may change; this was checked against torch 2.13.0.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pipesim.errors import ScheduleError
from pipesim.files import StrPath, write_text
from pipesim.formats.torch_csv.actions import Action, computed, messages
from pipesim.schedule import Op, Schedule

__all__ = ["TorchKind", "save_torch_csv", "torch_csv"]

TorchKind = Literal["compute_only", "compute_comms"]


def save_torch_csv(schedule: Schedule, path: StrPath, kind: TorchKind = "compute_only") -> None:
    """Write a schedule for torch.

    The planner and its assumptions are lost.

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
    rows = _time_steps(schedule) if kind == "compute_only" else _with_messages(schedule)
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


def _steps(schedule: Schedule) -> dict[Op, int]:
    """The earliest time step of each operator, were each one step long."""
    free = [0] * schedule.devices
    steps: dict[Op, int] = {}
    for op in schedule.topological_order:
        device = schedule.placement[op.stage]
        steps[op] = max([free[device], *(steps[need] + 1 for need in schedule.needs(op))])
        free[device] = steps[op] + 1
    return steps


def _time_steps(schedule: Schedule) -> list[list[str]]:
    steps = _steps(schedule)
    rows = [[""] * (steps[order[-1]] + 1) for order in schedule.orders]
    for row, order in zip(rows, schedule.orders, strict=True):
        for op in order:
            row[steps[op]] = str(computed(op))
    return rows


def _with_messages(schedule: Schedule) -> list[list[str]]:
    """Go through all ranks step by step; write both ends of a message when it is sent."""
    steps, placement = _steps(schedule), schedule.placement
    sent_by = {producer: (send, receive) for producer, _, send, receive in messages(schedule)}
    backwards: Counter[int] = Counter()
    rows: list[list[str]] = [[] for _ in schedule.orders]
    for op in sorted(steps, key=lambda op: (steps[op], placement[op.stage])):
        row = rows[placement[op.stage]]
        row.append(str(computed(op)))
        if op in sent_by:
            send, receive = sent_by[op]
            row.append(str(send))
            rows[placement[receive.stage]].append(str(receive))
        if op.kind in ("W", "BW"):
            backwards[op.stage] += 1
            if backwards[op.stage] == schedule.microbatches:
                row.append(str(Action(op.stage, "REDUCE_GRAD")))
    return rows
