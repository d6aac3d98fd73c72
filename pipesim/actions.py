"""What a device does, one action after the other: operators, and what stands between them.

The text of an action is PyTorch's (``torch.distributed.pipelining``), with our letters for
operators. It has no word for a :class:`Batch`, which is ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias, cast

from pipesim.errors import ScheduleError
from pipesim.scenario import KINDS, Kind

__all__ = [
    "Action",
    "Batch",
    "End",
    "Op",
    "Overlap",
    "Upkeep",
    "ends_of",
    "operators_of",
    "parse_action",
]

_NUMBER = "(0|[1-9][0-9]{0,8})"
_OP = re.compile(f"{_NUMBER}(F|BW|B|W){_NUMBER}")
_END = re.compile(f"{_NUMBER}(SEND|RECV)_(F|B){_NUMBER}")
_UPKEEP = re.compile(f"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD)")
_OVERLAP = re.compile(r"\(([^()]+)\)OVERLAP_F_B")
_BATCH = re.compile(r"\(([^()]+)\)BATCH")


class Op(NamedTuple):
    """One operator: a kind of work, on one stage, for one micro-batch.

    Its text form is ``<stage><kind><micro-batch>``.

    Examples
    --------
    >>> str(Op("BW", stage=3, microbatch=11)), Op.parse("3BW11").microbatch
    ('3BW11', 11)
    """

    kind: Kind
    stage: int
    microbatch: int

    def code(self, stages: int, microbatches: int) -> int:
        """Number it among all operators of a shape: (kind · S + stage) · N + micro-batch.

        Kinds count in the order of ``KINDS``: 0 F, 1 B, 2 W, 3 BW.

        Examples
        --------
        >>> Op("B", stage=1, microbatch=2).code(stages=4, microbatches=12)
        62
        """
        return (KINDS.index(self.kind) * stages + self.stage) * microbatches + self.microbatch

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Read the text form; anything else is a :class:`ScheduleError`."""
        match = _OP.fullmatch(text)
        if match is None:
            raise ScheduleError(f"{text[:40]!r} is not an operator, such as 0F0, 1B2, 1W2 or 3BW1")
        return cls(cast(Kind, match[2]), int(match[1]), int(match[3]))


class End(NamedTuple):
    """One end of a message between devices: where its stage sends it, or receives it.

    ``0SEND_F1`` sends the activation of stage 0 and micro-batch 1 down, ``1RECV_F1`` receives
    it; ``1SEND_B1`` sends the gradient of stage 1's backward up, fused or not, and ``0RECV_B1``
    receives it.

    Examples
    --------
    >>> end = End("SEND", "F", stage=0, microbatch=1)
    >>> str(end), str(end.other), str(end.other.other)
    ('0SEND_F1', '1RECV_F1', '0SEND_F1')
    """

    way: Literal["SEND", "RECV"]
    result: Literal["F", "B"]
    stage: int
    microbatch: int

    @property
    def sends(self) -> bool:
        """Whether this is the end that sends."""
        return self.way == "SEND"

    @property
    def other(self) -> End:
        """The end on the other device."""
        step = 1 if self.sends == (self.result == "F") else -1
        way: Literal["SEND", "RECV"] = "RECV" if self.sends else "SEND"
        return End(way, self.result, self.stage + step, self.microbatch)

    def __str__(self) -> str:
        return f"{self.stage}{self.way}_{self.result}{self.microbatch}"


class Batch(NamedTuple):
    """Sends and receives launched together, as ``torch.distributed.batch_isend_irecv`` does.

    Where kernels queue up they are one, which ends when all of its messages have passed.

    Examples
    --------
    >>> str(Batch((End("SEND", "F", 0, 1), End("RECV", "B", 0, 0))))
    '(0SEND_F1;0RECV_B0)BATCH'
    """

    ends: tuple[End, ...]

    def __str__(self) -> str:
        return f"({';'.join(map(str, self.ends))})BATCH"


class Upkeep(NamedTuple):
    """What PyTorch does to the parameters of a stage; it takes no time here.

    Examples
    --------
    >>> str(Upkeep("REDUCE_GRAD", stage=0))
    '0REDUCE_GRAD'
    """

    name: Literal["UNSHARD", "RESHARD", "REDUCE_GRAD"]
    stage: int

    def __str__(self) -> str:
        return f"{self.stage}{self.name}"


class Overlap(NamedTuple):
    """Operators that may overlap; one after the other here, as PyTorch 2.13 runs them itself.

    Examples
    --------
    >>> str(Overlap((Op("F", 0, 1), Op("BW", 1, 0))))
    '(0F1;1BW0)OVERLAP_F_B'
    """

    ops: tuple[Op, ...]

    def __str__(self) -> str:
        return f"({';'.join(map(str, self.ops))})OVERLAP_F_B"


Action: TypeAlias = Op | End | Batch | Upkeep | Overlap


def operators_of(actions: Iterable[Action]) -> Iterator[Op]:
    """Yield the operators among actions, those of overlaps too, in their order."""
    for action in actions:
        if isinstance(action, Op):
            yield action
        elif isinstance(action, Overlap):
            yield from action.ops


def ends_of(actions: Iterable[Action]) -> Iterator[End]:
    """Yield the sends and receives among actions, those of batches too, in their order."""
    for action in actions:
        if isinstance(action, End):
            yield action
        elif isinstance(action, Batch):
            yield from action.ends


def parse_action(text: str) -> Action:
    """Read the text form of an action; anything else is a :class:`ScheduleError`.

    Examples
    --------
    >>> texts = "0BW1", "0SEND_F1", "(0F1;1B0)OVERLAP_F_B", "(0SEND_F1;0RECV_B0)BATCH"
    >>> [type(parse_action(text)).__name__ for text in texts]
    ['Op', 'End', 'Overlap', 'Batch']
    """
    if match := _OP.fullmatch(text):
        return Op(cast(Kind, match[2]), int(match[1]), int(match[3]))
    if _END.fullmatch(text):
        return _end(text)
    if match := _UPKEEP.fullmatch(text):
        return Upkeep(match[2], int(match[1]))  # type: ignore[arg-type]
    if match := _OVERLAP.fullmatch(text):
        return Overlap(tuple(map(Op.parse, match[1].split(";"))))
    if match := _BATCH.fullmatch(text):
        return Batch(tuple(map(_end, match[1].split(";"))))
    raise ScheduleError(
        f"{text[:40]!r} is not an operator, such as 0F0, 1B2, 1W2 or 3BW1, nor another action, "
        "such as 0SEND_F1, 1RECV_B0, (0SEND_F1;0RECV_B0)BATCH or (0F1;1BW0)OVERLAP_F_B"
    )


def _end(text: str) -> End:
    match = _END.fullmatch(text)
    if match is None:
        raise ScheduleError(f"{text[:40]!r} is not a send or receive, such as 0SEND_F1 or 1RECV_B0")
    return End(match[2], match[3], int(match[1]), int(match[4]))  # type: ignore[arg-type]
