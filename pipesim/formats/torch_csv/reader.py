"""Reading torch's schedule CSV: cells, then the schedule, and what became of each cell."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipesim.actions import Action, End, Op, Overlap, Upkeep, operators_of
from pipesim.errors import FormatError, ScheduleError
from pipesim.files import StrPath, read_text
from pipesim.formats.tally import Dropped, Tally
from pipesim.formats.torch_csv.actions import in_torch_letters, name, parse_cell
from pipesim.schedule import Schedule
from pipesim.text import listed

__all__ = ["TorchSchedule", "import_torch_csv", "load_torch_csv"]

_COMPUTE = ("F", "I", "W", "B", "OVERLAP_F_B")
_MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
_UPKEEP = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


@dataclass(frozen=True)
class TorchSchedule:
    """What a schedule CSV holds.

    Parameters
    ----------
    schedule : Schedule
        With the file's own sends and receives, overlaps and upkeep, where it has them.
    tallies : tuple of Tally
        How many lines, cells and actions of each kind there are, and what became of them.
    notes : tuple of str
        For people: what the file leaves open, and what is taken otherwise than it may be meant.
    """

    schedule: Schedule
    tallies: tuple[Tally, ...]
    notes: tuple[str, ...]


class _Cell(NamedTuple):
    """An action and its place: rank *i* is line *i* + 1, cells are counted from 1."""

    action: Action
    rank: int
    column: int


def load_torch_csv(path: StrPath) -> Schedule:
    """Read a schedule for torch; see :func:`import_torch_csv`."""
    return import_torch_csv(path).schedule


def import_torch_csv(path: StrPath) -> TorchSchedule:
    """Read a schedule for torch, with communication or without.

    Stages, micro-batches and the rank of each stage are those that the file names.

    Raises
    ------
    FormatError
        The file cannot be read or is empty; a cell is not exactly one of torch's actions; a
        stage is on no rank or on two; the operators are incomplete or cannot make progress;
        or the file holds communication, but not each message between ranks once at either end,
        in the same order at both and around its operators; or in an order that hangs even where
        no send waits for its receive, as in torch. The place is line and number of the cell,
        where one is to blame.
    """
    file = os.fspath(path)
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise FormatError("holds no action", file=file)
    texts = [_texts(line, rank, file) for rank, line in enumerate(lines)]
    blanks: list[str] = []
    rows = [_row(cells, rank, file, blanks) for rank, cells in enumerate(texts)]
    if any(isinstance(cell.action, End) for row in rows for cell in row):
        _check_no_blanks(texts, file)
    schedule = _schedule(rows, file)
    return TorchSchedule(schedule, _tallies(rows, blanks), _notes(schedule))


def _fail(cell: _Cell, message: str, file: str) -> FormatError:
    return FormatError(message, file=file, line=cell.rank + 1, column=cell.column)


def _texts(line: str, rank: int, file: str) -> list[str]:
    """Return the cells of a line, quoted or not."""
    try:
        cells = next(csv.reader([line.removesuffix("\r")], strict=True), [])
    except csv.Error as error:
        raise FormatError(f"is no line of CSV: {error}", file=file, line=rank + 1) from None
    return [text.strip(" \t") for text in cells or [""]]


def _row(texts: Sequence[str], rank: int, file: str, blanks: list[str]) -> list[_Cell]:
    row = []
    for column, text in enumerate(texts, start=1):
        if not text:
            blanks.append(f"line {rank + 1}, cell {column}")
            continue
        try:
            row.append(_Cell(parse_cell(text), rank, column))
        except ScheduleError as error:
            raise FormatError(str(error), file=file, line=rank + 1, column=column) from None
    if not any(operators_of(cell.action for cell in row)):
        raise FormatError(f"rank {rank} computes nothing", file=file, line=rank + 1)
    return row


def _schedule(rows: Sequence[Sequence[_Cell]], file: str) -> Schedule:
    rank_of: dict[int, int] = {}
    for row in rows:
        for cell in row:
            for op in operators_of([cell.action]):
                rank = rank_of.setdefault(op.stage, cell.rank)
                if rank != cell.rank:
                    raise _fail(cell, f"stage {op.stage} is on rank {rank} too", file)
    absent = next((stage for stage in range(len(rank_of)) if stage not in rank_of), None)
    if absent is not None:
        last = max(rank_of)
        raise FormatError(
            f"stage {absent} is on no rank, but stage {last} is", file=file, line=rank_of[last] + 1
        )
    actions = [[cell.action for cell in row] for row in rows]
    placement = [rank_of[stage] for stage in range(len(rank_of))]
    microbatches = 1 + max(op.microbatch for row in actions for op in operators_of(row))
    try:
        return Schedule.of_actions(actions, placement, microbatches)
    except ScheduleError as error:
        message = in_torch_letters(str(error))
        blamed = error.action
        if isinstance(blamed, Op) and blamed.kind in ("B", "W"):
            whole = blamed._replace(kind="BW")
            if any(whole in operators_of(row) for row in actions):
                message += " (before torch 2.6 B was the input's gradient alone, which is I now)"
        if error.device is None:
            raise FormatError(message, file=file) from None
        for cell in reversed(rows[error.device]):
            if error.action in (cell.action, *operators_of([cell.action])):
                raise _fail(cell, message, file) from None
        raise FormatError(message, file=file, line=error.device + 1) from None


def _check_no_blanks(rows: Sequence[Sequence[str]], file: str) -> None:
    for rank, texts in enumerate(rows):
        if "" in texts:
            raise FormatError(
                "a blank cell: torch loads none in a file with communication",
                file=file,
                line=rank + 1,
                column=texts.index("") + 1,
            )


# -- what became of it -------------------------------------------------------------------


def _tallies(rows: Sequence[Sequence[_Cell]], blanks: Sequence[str]) -> tuple[Tally, ...]:
    actions = [cell.action for row in rows for cell in row]
    counts = Counter(map(name, actions))
    inside = Counter(
        name(op) for action in actions if isinstance(action, Overlap) for op in action.ops
    )
    parts = [f"{count} {kind}" for kind, count in inside.items()]
    uses = {
        "OVERLAP_F_B": f"of {listed(parts)} of those above",
        **dict.fromkeys(_UPKEEP, "kept, but takes no time"),
        **dict.fromkeys(_MESSAGES, "kept in this order"),
    }
    return (
        Tally("line", len(rows)),
        Tally("cell", len(actions), [Dropped("blank: an idle time step", blanks)]),
        *(
            Tally(f"{kind} action", counts[kind] + inside[kind], of=uses.get(kind, ""))
            for kind in (*_COMPUTE, *_MESSAGES, *_UPKEEP)
            if counts[kind] + inside[kind]
        ),
    )


def _notes(schedule: Schedule) -> tuple[str, ...]:
    actions = [action for row in schedule.actions or () for action in row]
    notes = []
    if any(isinstance(action, Overlap) for action in actions):
        notes.append(
            "the operators of an overlap run one after the other when simulated, as torch 2.13 "
            "runs them unless it is given a function for OVERLAP_F_B"
        )
    if any(isinstance(action, Upkeep) for action in actions):
        notes.append("UNSHARD, RESHARD and REDUCE_GRAD take no time when simulated")
    if schedule.communicates and Upkeep("REDUCE_GRAD", 0) not in actions:
        notes.append(
            "no REDUCE_GRAD: from 2.10 on torch neither scales nor reduces gradients without it"
        )
    if not schedule.communicates:
        notes.append("the file holds no sends and receives: torch adds its own, and so do we")
    return tuple(notes)
