"""The cells of torch's schedule CSV.

torch's letters are not ours: its I (input gradient) is our B, its W our W, and its B (full
backward) our BW. Its ranks are our devices. Only this module knows.
"""

from __future__ import annotations

import re

from pipesim.actions import Action, Batch, End, Op, Overlap, Upkeep, parse_action
from pipesim.errors import ScheduleError
from pipesim.scenario import Kind

__all__ = ["cell", "in_torch_letters", "name", "parse_cell"]

_LETTERS: dict[Kind, str] = {"F": "F", "B": "I", "W": "W", "BW": "B"}
_KINDS: dict[str, Kind] = {letter: kind for kind, letter in _LETTERS.items()}
_COMPUTE = re.compile("(0|[1-9][0-9]{0,8})(F|I|W|B)(0|[1-9][0-9]{0,8})")
_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")
_OP = re.compile(r"\b([0-9]+)(BW|B)([0-9]+)\b")
_CAUSES = {
    re.compile(r"[0-9]+BW[0-9]*"): "since torch 2.6 the full backward is B, and the input's I",
    re.compile(r"[0-9]+(F|I|W|B|(SEND|RECV)_[FB])"): "its micro-batch is missing",
    re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD)[0-9]+"): "a whole stage has no micro-batch",
    re.compile(r"[0-9]+[a-z_]+[0-9]*"): "torch's letters are capital ones",
    re.compile(r".*\).*", re.DOTALL): "an overlap holds operators alone",
}


def parse_cell(text: str) -> Action:
    """Return what a cell that is not blank says.

    Raises
    ------
    ScheduleError
        It is not exactly one of torch's actions. (torch's own parser reads the start of a cell
        only, and takes anything for a part of an overlap.)

    Examples
    --------
    >>> str(parse_cell("0I1")), str(parse_cell("(0F1; 1B0)OVERLAP_F_B"))
    ('0B1', '(0F1;1BW0)OVERLAP_F_B')
    """
    if match := _COMPUTE.fullmatch(text):
        return Op(_KINDS[match[2]], int(match[1]), int(match[3]))
    if match := _OVERLAP.fullmatch(text):
        parts = [_COMPUTE.fullmatch(part.strip(" ")) for part in match[1].split(";")]
        ops = tuple(Op(_KINDS[part[2]], int(part[1]), int(part[3])) for part in parts if part)
        if len(ops) == len(parts):
            return Overlap(ops)
    else:
        try:
            action = parse_action(text)
        except ScheduleError:
            pass
        else:
            if isinstance(action, End | Upkeep):
                return action
    causes = (f" ({cause})" for form, cause in _CAUSES.items() if form.fullmatch(text))
    raise ScheduleError(
        f"{text[:40]!r} is not an action, such as 0F0, 1I2, 1W2, 3B1 or 0SEND_F1{next(causes, '')}"
    )


def cell(action: Action) -> str:
    """Return the cell that says an action.

    Examples
    --------
    >>> cell(Op("BW", 1, 2)), cell(Op("B", 1, 2)), cell(End("RECV", "B", 0, 2))
    ('1B2', '1I2', '0RECV_B2')
    """
    if isinstance(action, Op):
        return f"{action.stage}{_LETTERS[action.kind]}{action.microbatch}"
    if isinstance(action, Overlap):
        return f"({';'.join(map(cell, action.ops))})OVERLAP_F_B"
    return str(action)


def name(action: Action) -> str:
    """Return torch's name of what an action does.

    Examples
    --------
    >>> name(Op("BW", 1, 2)), name(End("RECV", "B", 0, 2)), name(Upkeep("UNSHARD", 0))
    ('B', 'RECV_B', 'UNSHARD')
    """
    match action:
        case Op():
            return _LETTERS[action.kind]
        case End():
            return f"{action.way}_{action.result}"
        case Upkeep():
            return action.name
        case Overlap():
            return "OVERLAP_F_B"
        case Batch():
            raise TypeError(f"torch has no name for {action}")


def in_torch_letters(message: str) -> str:
    """Return a text about operators and devices as a reader of torch's files needs it.

    Examples
    --------
    >>> in_torch_letters("0B1 is missing; device 0 waits in 1BW2 for 1SEND_B2")
    '0I1 is missing; rank 0 waits in 1B2 for 1SEND_B2'
    """
    ranks = re.sub(r"\bdevice(s?)\b", r"rank\1", message)
    return _OP.sub(lambda op: f"{op[1]}{'B' if op[2] == 'BW' else 'I'}{op[3]}", ranks)
