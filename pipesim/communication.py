"""The order of a plan's own sends and receives, and of all else between its operators: checked.

Devices match the messages from one to the other by their order alone, as NCCL does, and gloo
where there are no tags. So both ends must have them in the same order.

Whether an order hangs depends on who waits for whom. What is refused here hangs even where no
send and no receive waits, and an operator only for what it reads. Where each send waits for its
receive, other orders hang as well: an engine finds that under the transport that does so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from itertools import product
from typing import Literal, TypeAlias

from pipesim.actions import Action, Batch, End, Op, Overlap, ends_of, operators_of
from pipesim.errors import ScheduleError
from pipesim.text import counted

__all__ = ["check_actions", "sending_of", "unbatched"]

Rows: TypeAlias = Sequence[Sequence[Action]]

_WAYS: tuple[Literal["SEND", "RECV"], ...] = ("RECV", "SEND")
_OPERATOR: dict[Literal["F", "B"], str] = {"F": "forward", "B": "backward"}


def check_actions(
    rows: Rows, orders: Sequence[Sequence[Op]], placement: Sequence[int], microbatches: int
) -> None:
    """Check what each device does, in order, where its operators are known to be complete.

    Parameters
    ----------
    rows : sequence of sequence of Action, shape [D][…]
        All actions of each device.
    orders : sequence of sequence of Op, shape [D][…]
        Its operators.
    placement : sequence of int, shape [S]
        The device of each stage.
    microbatches : int
        Number of micro-batches N.

    Raises
    ------
    ScheduleError
        The operators are others or in another order; an action is for a stage of another
        device; a message has one end, or an end twice, or stays on its device; a send stands
        before its operator or a receive behind it; two devices have the messages from one to
        the other in different orders; or some device would wait for ever, whoever waits for whom.
    """
    if len(rows) != len(orders):
        raise ScheduleError(
            f"actions of {counted(len(rows), 'device')}, operators of {len(orders)}"
        )
    for device, (row, order) in enumerate(zip(rows, orders, strict=True)):
        if tuple(operators_of(row)) != tuple(order):
            raise ScheduleError(
                f"the actions of device {device} hold other operators than its order", device
            )
        _check_row(device, row, placement, microbatches)
    if any(map(any, map(ends_of, rows))):
        _check_complete(rows, placement, microbatches)
        _check_same_order(rows, placement)
    _check_progress(rows, placement)


def _ends(op: Op) -> tuple[End, ...]:
    """Where what an operator reads would be received, and its result sent."""
    if op.kind == "W":
        return ()
    result: Literal["F", "B"] = "F" if op.kind == "F" else "B"
    return tuple(End(way, result, op.stage, op.microbatch) for way in _WAYS)


def _crosses(end: End, placement: Sequence[int]) -> bool:
    """Whether there is such a message, between stages on two devices."""
    one, other = end.stage, end.other.stage
    stages = range(len(placement))
    return one in stages and other in stages and placement[one] != placement[other]


def sending_of(op: Op, placement: Sequence[int]) -> End | None:
    """Return where an operator's result would be sent, or None if it stays on its device."""
    sending = next((end for end in _ends(op) if end.sends), None)
    return sending if sending and _crosses(sending, placement) else None


def _check_row(
    device: int, row: Iterable[Action], placement: Sequence[int], microbatches: int
) -> None:
    """Check one device's actions: for its stages, each end once and around its operator."""
    computed: set[End] = set()
    seen: set[End] = set()
    for action in row:
        if isinstance(action, Op | Overlap):
            computed.update(end for op in operators_of([action]) for end in _ends(op))
            continue
        for part in action.ends if isinstance(action, Batch) else [action]:
            if part.stage not in range(len(placement)) or placement[part.stage] != device:
                raise ScheduleError(
                    f"{part}: stage {part.stage} is not on device {device}", device, action
                )
            if not isinstance(part, End):
                continue
            why = ""
            if not (_crosses(part, placement) and part.microbatch < microbatches):
                why = "is not a message between devices here"
            elif part in seen:
                why = "comes twice"
            elif part.sends and part not in computed:
                why = f"stands before the {_OPERATOR[part.result]} whose result it sends"
            elif not part.sends and part in computed:
                why = f"stands behind the {_OPERATOR[part.result]} that needs it"
            if why:
                raise ScheduleError(f"{part} {why}", device, action)
            seen.add(part)


def _check_complete(rows: Rows, placement: Sequence[int], microbatches: int) -> None:
    there = {end for row in rows for end in ends_of(row)}
    for stage, device in enumerate(placement):
        for way, result, m in product(_WAYS, _OPERATOR, range(microbatches)):
            end = End(way, result, stage, m)
            if _crosses(end, placement) and end not in there:
                raise ScheduleError(f"device {device} lacks {end}", device)


def _check_same_order(rows: Rows, placement: Sequence[int]) -> None:
    sent: dict[tuple[int, int], list[End]] = defaultdict(list)
    received: dict[tuple[int, int], list[End]] = defaultdict(list)
    for device, row in enumerate(rows):
        for end in ends_of(row):
            peer = placement[end.other.stage]
            if end.sends:
                sent[device, peer].append(end)
            else:
                received[peer, device].append(end)
    for (sender, receiver), ends in received.items():
        for end, first in zip(ends, sent[sender, receiver], strict=True):
            if end.other != first:
                raise ScheduleError(
                    f"{end} would get what {first.other} waits for: device {sender} sends {first} "
                    "first, and devices match messages by their order alone",
                    receiver,
                    end,
                )


def _check_progress(rows: Rows, placement: Sequence[int]) -> None:
    """Run the actions where nothing waits but an operator, for what it receives.

    Where messages have no place of their own, they are sent right after their operator or the
    overlap that it is part of.
    """
    explicit = any(map(any, map(ends_of, rows)))
    arrived: set[End] = set()
    waiting: dict[End, int] = {}
    heads = [0] * len(rows)
    awake = list(range(len(rows)))
    while awake:
        device = awake.pop()
        while heads[device] < len(rows[device]):
            action = rows[device][heads[device]]
            missing = _missing(action, placement, arrived)
            if missing is not None:
                waiting[missing] = device
                break
            heads[device] += 1
            if explicit:
                left = [*ends_of([action])]
            else:
                left = [end for op in operators_of([action]) for end in _ends(op)]
            for end in left:
                if end.sends:
                    arrived.add(end.other)
                    if end.other in waiting:
                        awake.append(waiting.pop(end.other))
    if waiting:
        stuck = sorted((device, end) for end, device in waiting.items())
        reasons = [f"device {d} waits in {rows[d][heads[d]]} for {e.other}" for d, e in stuck]
        if not explicit:
            reasons.append(
                "an overlap starts when all that its operators read is there, and their results "
                "leave when it has ended"
            )
        device = stuck[0][0]
        raise ScheduleError(
            f"the schedule cannot make progress: {'; '.join(reasons)}",
            device,
            rows[device][heads[device]],
        )


def _missing(action: Action, placement: Sequence[int], arrived: Container[End]) -> End | None:
    """What an action reads that another device has not sent yet."""
    for op in operators_of([action]):
        for end in _ends(op):
            if not end.sends and end not in arrived and _crosses(end, placement):
                return end
    return None


# -- batches, one end after the other ------------------------------------------------------


def unbatched(rows: Rows, placement: Sequence[int]) -> list[list[Action]]:
    """Return the actions with each end of a batch on its own, for those who know no batches.

    The ends of a batch come in the order in which they would meet their other ends if each
    device ran one batch after the other. So they hang nobody, even where each is a kernel of its
    own that waits for its other end, unless the batches do.

    Examples
    --------
    Each device would send first here, and wait for the other to receive.

    >>> from pipesim.actions import parse_action
    >>> rows = "(0SEND_F1;0RECV_B0)BATCH", "(1SEND_B0;1RECV_F1)BATCH"
    >>> parts = unbatched([[parse_action(text)] for text in rows], [0, 1])
    >>> [" ".join(map(str, row)) for row in parts]
    ['0RECV_B0 0SEND_F1', '1SEND_B0 1RECV_F1']
    """
    result: list[list[list[Action]]] = [[] for _ in rows]
    batches: list[list[Action]] = [[] for _ in rows]  # the last of each device, as far as it met
    unmet: list[list[End]] = [[] for _ in rows]
    arrived: set[End] = set()
    heads = [0] * len(rows)
    progress = True
    while progress:
        progress = False
        for device, row in enumerate(rows):
            for action in row[heads[device] :]:
                ends = [*ends_of([action])]
                if unmet[device] if ends else _missing(action, placement, arrived):
                    break
                result[device].append([] if ends else [action])
                if ends:
                    unmet[device], batches[device] = ends, result[device][-1]
                heads[device] += 1
                progress = True
            for end in [*unmet[device]]:
                peer = placement[end.other.stage]
                if end.other in unmet[peer]:
                    arrived |= {end, end.other}
                    for there, own in ((device, end), (peer, end.other)):
                        unmet[there].remove(own)
                        batches[there].append(own)
                    progress = True
    for device, row in enumerate(rows):
        batches[device] += unmet[device]
        rest = row[heads[device] :]
        result[device] += [[*ends_of([action])] or [action] for action in rest]
    return [[action for part in parts for action in part] for parts in result]
