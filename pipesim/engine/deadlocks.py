"""Whether a schedule hangs over a transport, whatever its operators and messages take."""

from __future__ import annotations

from pipesim.engine.runs import Runs
from pipesim.errors import DeadlockError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Transport

__all__ = ["deadlocked"]


def deadlocked(schedule: Schedule, over: str | Transport) -> tuple[str, ...]:
    """Return where each device that never finishes waits, and for what; empty if none does.

    In a schedule's own order of sends and receives no order depends on times, so one run tells;
    and :mod:`pipesim.lowering` makes no other order that hangs.

    Examples
    --------
    >>> from pipesim.actions import parse_action
    >>> rows = (
    ...     "0F0 0SEND_F0 2RECV_F0 2F0 2BW0 2SEND_B0 0RECV_B0 0BW0",
    ...     "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1BW0 1SEND_B0",
    ... )
    >>> actions = [[parse_action(text) for text in row.split()] for row in rows]
    >>> deadlocked(Schedule.of_actions(actions, [0, 1, 0], 1), "exchange")
    ()
    """
    scenario = Scenario(
        stages=schedule.stages, microbatches=schedule.microbatches, placement=schedule.placement
    )
    try:
        Runs(schedule, over).makespan_ms(scenario)
    except DeadlockError as error:
        return error.blocked
    return ()
