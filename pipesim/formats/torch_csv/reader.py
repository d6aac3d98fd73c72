"""Reading torch's schedule CSV: cells, then the schedule, then its communication."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from pipesim.errors import FormatError, ScheduleError
from pipesim.files import StrPath, read_text
from pipesim.formats.torch_csv.actions import (
    Action,
    computed,
    in_torch_letters,
    messages,
    parse_cell,
)
from pipesim.schedule import Schedule

__all__ = ["load_torch_csv"]


class _Cell(NamedTuple):
    """An action and its place: rank *i* is line *i* + 1, cells are counted from 1."""

    action: Action
    rank: int
    column: int


def load_torch_csv(path: StrPath) -> Schedule:
    """Read a schedule for torch, with communication or without.

    Stages, micro-batches and the rank of each stage are those that the file names.

    Raises
    ------
    FormatError
        The file cannot be read or is empty; a cell is not exactly one of torch's actions; a
        stage is on no rank or on two; the operators are incomplete or cannot make progress;
        or the file holds communication, but not each message between ranks once at either
        end, in an order that makes progress and is the same at both ends. The place is line
        and number of the cell, where one is to blame.
    """
    file = os.fspath(path)
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise FormatError("holds no action", file=file)
    rows = [_row(line, rank, file) for rank, line in enumerate(lines)]
    schedule = _schedule(rows, file)
    if any(cell.action.is_message for row in rows for cell in row):
        _check_no_blanks(lines, file)
        _check_messages(rows, schedule, file)
    return schedule


def _fail(cell: _Cell, message: str, file: str) -> FormatError:
    return FormatError(message, file=file, line=cell.rank + 1, column=cell.column)


def _texts(line: str) -> list[str]:
    return [text.strip(" \t") for text in line.removesuffix("\r").split(",")]


def _row(line: str, rank: int, file: str) -> list[_Cell]:
    row = []
    for column, text in enumerate(_texts(line), start=1):
        actions = parse_cell(text)
        if actions is None:
            raise FormatError(
                f"{text[:40]!r} is not an action, such as 0F0, 1I2, 1W2, 3B1 or 0SEND_F1",
                file=file,
                line=rank + 1,
                column=column,
            )
        row += [_Cell(action, rank, column) for action in actions]
    if not any(cell.action.op for cell in row):
        raise FormatError(f"rank {rank} computes nothing", file=file, line=rank + 1)
    return row


def _schedule(rows: Sequence[Sequence[_Cell]], file: str) -> Schedule:
    rank_of: dict[int, int] = {}
    for row in rows:
        for cell in row:
            if cell.action.op:
                rank = rank_of.setdefault(cell.action.stage, cell.rank)
                if rank != cell.rank:
                    raise _fail(cell, f"stage {cell.action.stage} is on rank {rank} too", file)
    absent = next((stage for stage in range(len(rank_of)) if stage not in rank_of), None)
    if absent is not None:
        raise FormatError(f"stage {absent} is on no rank, but stage {max(rank_of)} is", file=file)
    for row in rows:
        for cell in row:
            if rank_of.get(cell.action.stage) != cell.rank:
                message = f"stage {cell.action.stage} is not on rank {cell.rank}"
                raise _fail(cell, f"{cell.action}: {message}", file)
    orders = [[cell.action.op for cell in row if cell.action.op] for row in rows]
    placement = [rank_of[stage] for stage in range(len(rank_of))]
    microbatches = 1 + max(op.microbatch for order in orders for op in order)
    try:
        return Schedule(orders, placement, microbatches)
    except ScheduleError as error:
        raise FormatError(in_torch_letters(str(error)), file=file) from None


# -- communication -----------------------------------------------------------------------


def _check_no_blanks(lines: Sequence[str], file: str) -> None:
    for rank, line in enumerate(lines):
        texts = _texts(line)
        if "" in texts:
            raise FormatError(
                "a blank cell: torch loads none in a file with communication",
                file=file,
                line=rank + 1,
                column=texts.index("") + 1,
            )


def _check_messages(rows: Sequence[Sequence[_Cell]], schedule: Schedule, file: str) -> None:
    ends = {end for _, _, *pair in messages(schedule) for end in pair}
    seen: set[Action] = set()
    for row in rows:
        for cell in row:
            if not cell.action.is_message:
                continue
            if cell.action not in ends:
                raise _fail(cell, f"{cell.action} is not a message between ranks here", file)
            if cell.action in seen:
                raise _fail(cell, f"{cell.action} comes twice", file)
            seen.add(cell.action)
    for _, _, send, receive in messages(schedule):
        for end in (send, receive):
            if end not in seen:
                rank = schedule.placement[end.stage]
                raise FormatError(f"rank {rank} lacks {end}", file=file, line=rank + 1)
    _check_same_order(rows, schedule, file)
    _check_progress(rows, schedule, file)


def _check_same_order(rows: Sequence[Sequence[_Cell]], schedule: Schedule, file: str) -> None:
    """Check the order of messages: backends match those between two ranks by order alone."""
    receive_of = {send: receive for _, _, send, receive in messages(schedule)}
    send_of = {receive: send for send, receive in receive_of.items()}
    sent: dict[tuple[int, int], list[Action]] = {}
    received: dict[tuple[int, int], list[_Cell]] = {}
    for row in rows:
        for cell in row:
            if receive := receive_of.get(cell.action):
                pair = (cell.rank, schedule.placement[receive.stage])
                sent.setdefault(pair, []).append(receive)
            elif send := send_of.get(cell.action):
                pair = (schedule.placement[send.stage], cell.rank)
                received.setdefault(pair, []).append(cell)
    for pair, cells in received.items():
        for cell, due in zip(cells, sent[pair], strict=True):
            if cell.action != due:
                raise _fail(cell, f"{cell.action}: rank {pair[0]} sends for {due} first", file)


def _check_progress(rows: Sequence[Sequence[_Cell]], schedule: Schedule, file: str) -> None:
    """Run the rows: a send needs its operator, an operator that its message is at both ends."""
    needs: dict[Action, tuple[Action, ...]] = {}
    for producer, consumer, send, receive in messages(schedule):
        needs[send] = (computed(producer),)
        needs[computed(consumer)] = (receive, send)
    done: set[Action] = set()
    heads = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while heads[rank] < len(row):
                action = row[heads[rank]].action
                if any(need not in done for need in needs.get(action, ())):
                    break
                done.add(action)
                heads[rank] += 1
                moved = True
    for row, head in zip(rows, heads, strict=True):
        if head < len(row):
            cell = row[head]
            need = next(need for need in needs[cell.action] if need not in done)
            raise _fail(cell, f"{cell.action} waits for {need} for ever", file)
