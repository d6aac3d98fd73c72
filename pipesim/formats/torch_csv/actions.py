"""The cells of torch's schedule CSV: what an action says, and which ones a schedule needs.

torch's letters are not ours: its I (input gradient) is our B, its W our W, and its B (full
backward) our BW. Only this module knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipesim.scenario import Kind
from pipesim.schedule import Op, Schedule

__all__ = ["Action", "computed", "in_torch_letters", "messages", "parse_cell"]

_LETTERS: dict[Kind, str] = {"F": "F", "B": "I", "W": "W", "BW": "B"}
_KINDS: dict[str, Kind] = {letter: kind for kind, letter in _LETTERS.items()}
_NUMBER = "(0|[1-9][0-9]{0,8})"
_ACTION = re.compile(f"{_NUMBER}(F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B){_NUMBER}")
_OF_A_STAGE = re.compile(f"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD)")
_OVERLAP = re.compile(r"\(([^();]*);([^();]*)\)OVERLAP_F_B")
_OP = re.compile(r"\b([0-9]+)(BW|B)([0-9]+)\b")


class Action(NamedTuple):
    """One action: what is done, on which stage, for which micro-batch.

    ``name`` is torch's: a letter for compute, SEND_F and the like for communication. UNSHARD,
    RESHARD and REDUCE_GRAD are for a whole stage and have no micro-batch.
    """

    stage: int
    name: str
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.name}{'' if self.microbatch is None else self.microbatch}"

    @property
    def op(self) -> Op | None:
        """The operator that it computes, if any."""
        kind = _KINDS.get(self.name)
        if kind is None or self.microbatch is None:
            return None
        return Op(kind, self.stage, self.microbatch)

    @property
    def is_message(self) -> bool:
        """Whether it sends or receives."""
        return self.name.startswith(("SEND", "RECV"))


def parse_cell(text: str) -> tuple[Action, ...] | None:
    """Return what a cell says, or None where it is none of torch's.

    A blank cell says nothing; an overlap of forward and backward is these two, in this
    order, in which torch runs them.

    Examples
    --------
    >>> [str(action) for action in parse_cell("(0F1;1B0)OVERLAP_F_B")]
    ['0F1', '1B0']
    >>> parse_cell(""), parse_cell("0F0xyz")
    ((), None)
    """
    if not text:
        return ()
    if match := _ACTION.fullmatch(text):
        return (Action(int(match[1]), match[2], int(match[3])),)
    if match := _OF_A_STAGE.fullmatch(text):
        return (Action(int(match[1]), match[2]),)
    if match := _OVERLAP.fullmatch(text):
        parts = [_ACTION.fullmatch(part.strip(" ")) for part in match.groups()]
        both = [Action(int(part[1]), part[2], int(part[3])) for part in parts if part]
        if [action.name for action in both] in (["F", "B"], ["F", "I"]):
            return tuple(both)
    return None


def computed(op: Op) -> Action:
    """Return the action that computes an operator.

    Examples
    --------
    >>> str(computed(Op("BW", 1, 2))), str(computed(Op("B", 1, 2)))
    ('1B2', '1I2')
    """
    return Action(op.stage, _LETTERS[op.kind], op.microbatch)


def messages(schedule: Schedule) -> Iterator[tuple[Op, Op, Action, Action]]:
    """Yield every message between ranks: who sends, who needs it, and the two actions."""
    for order in schedule.orders:
        for op in order:
            for need in schedule.needs(op):
                if schedule.placement[need.stage] != schedule.placement[op.stage]:
                    letter = "F" if op.kind == "F" else "B"
                    send = Action(need.stage, f"SEND_{letter}", need.microbatch)
                    yield need, op, send, Action(op.stage, f"RECV_{letter}", op.microbatch)


def in_torch_letters(message: str) -> str:
    """Return an error about operators as a reader of torch's letters needs it.

    Examples
    --------
    >>> in_torch_letters("0B1 is missing; rank 0 waits in 1BW2 for 1F2")
    '0I1 is missing; rank 0 waits in 1B2 for 1F2'
    """
    return _OP.sub(lambda op: f"{op[1]}{'B' if op[2] == 'BW' else 'I'}{op[3]}", message)
