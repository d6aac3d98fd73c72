"""Who sends which messages, in which order, as far as delays that change are concerned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

from pipesim.errors import ScheduleError
from pipesim.program import Group, Message, Post, Program
from pipesim.transport import Delegated

__all__ = ["senders"]


def senders(program: Program) -> Mapping[Hashable, tuple[Message, ...]]:
    """Return what each sender sends, in order: that of the program, whatever the times.

    A device sends the messages of its kernels, one after the other within a group, and those it
    posts to a wire. Delegates, (device, ((peer, direction), which)), take turns at the messages
    that a device posts for one neighbour and direction.

    Raises
    ------
    ScheduleError
        A device sends kernels and over wires: which is first would depend on times. No lowering
        makes such a program.

    Examples
    --------
    >>> from pipesim import Scenario, plan
    >>> from pipesim.lowering import lower
    >>> scenario = Scenario(stages=2, microbatches=3)
    >>> program = lower(plan(scenario, "gpipe"), scenario, Delegated(delegates=2))
    >>> for sender, messages in senders(program).items():
    ...     print(sender, *messages)
    (0, ((1, 0), 0)) 0F0→1F0 0F2→1F2
    (0, ((1, 0), 1)) 0F1→1F1
    (1, ((0, 1), 0)) 1BW0→0BW0 1BW2→0BW2
    (1, ((0, 1), 1)) 1BW1→0BW1
    """
    transport, placement = program.transport, program.schedule.placement
    sent: dict[Hashable, tuple[Message, ...]] = {}
    for device, instructions in enumerate(program.instructions):
        posted = [i.message for i in instructions if isinstance(i, Post)]
        queued = [message for i in instructions if isinstance(i, Group) for message in i.sends]
        if isinstance(transport, Delegated):
            neighbours: dict[tuple[int, int], list[Message]] = defaultdict(list)
            for message in posted:
                peer = placement[message.consumer.stage]
                neighbours[peer, message.direction].append(message)
            for neighbour, messages in neighbours.items():
                k = min(transport.delegates or len(messages), len(messages))
                sent.update({(device, (neighbour, i)): tuple(messages[i::k]) for i in range(k)})
        elif posted and queued:
            raise ScheduleError(
                f"device {device} sends kernels and over wires: in which order depends on times"
            )
        else:
            queued += posted
        if queued:
            sent[device] = tuple(queued)
    return sent
