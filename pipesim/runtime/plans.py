"""Rows of torch's schedule CSV as actions, and whether a schedule could run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, TypeAlias

from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _validate_schedule,
)

__all__ = ["Actions", "actions_of", "check"]

Actions: TypeAlias = dict[int, list[Any]]
"""What each rank does, in order: each an ``_Action`` of torch, which asks for "or None"."""

_KINDS = _ComputationType
_MESSAGES = {_KINDS.SEND_F, _KINDS.SEND_B, _KINDS.RECV_F, _KINDS.RECV_B}


def actions_of(rows: Iterable[str]) -> Actions:
    """Return what each rank does by its line of torch's schedule CSV."""
    return {
        rank: [action for cell in row.split(",") if (action := _Action.from_str(cell.strip()))]
        for rank, row in enumerate(rows)
    }


def check(actions: Actions, ranks: Mapping[int, int], microbatches: int) -> None:
    """Raise if torch would fail, compute something else or wait for ever in a plan.

    Torch itself sees that all is computed; of sends and receives it sees nothing before it runs.
    Receives are posted, so none waits before its message is needed.

    Parameters
    ----------
    actions : dict
        By torch's ranks.
    ranks : mapping of int to int
        The rank of each stage.
    microbatches : int
        Of an iteration.

    Raises
    ------
    ValueError, AssertionError
        Says what is wrong.
    """
    planned = _validate_schedule(actions, len(set(ranks.values())), len(ranks), microbatches)
    if wrong := [stage for stage in sorted(ranks) if planned[stage] != ranks[stage]]:
        stage = wrong[0]
        raise ValueError(f"stage {stage} is on rank {ranks[stage]}, not on {planned[stage]}")
    rows = [[part for one in row for part in one.sub_actions or (one,)] for row in actions.values()]
    there = {action for row in rows for action in row}
    if len(there) < sum(map(len, rows)):
        raise ValueError("the plan does something twice")
    needs = {action: _needs(action, ranks, there) for action in there}
    needed = set().union(*needs.values())
    if missing := needed - there:
        raise ValueError(f"the plan lacks {min(map(str, missing))}")
    if idle := {one for one in there - needed if one.computation_type in _MESSAGES}:
        raise ValueError(f"nothing in the plan needs {min(map(str, idle))}")
    order = TopologicalSorter(needs)
    for row in rows:
        for before, after in pairwise(row):
            order.add(after, before)
    try:
        order.prepare()
    except CycleError as error:
        waiting = " after ".join(map(str, reversed(error.args[1])))
        raise ValueError(f"the plan waits for ever: {waiting}") from None


def _needs(action: _Action, ranks: Mapping[int, int], there: set[_Action]) -> set[_Action]:
    """Return what must have been done before an action, besides what its rank does before."""
    stage, kind, microbatch, *_ = action

    def backward(stage: int) -> _Action:
        full = _Action(stage, _KINDS.FULL_BACKWARD, microbatch)
        return full if full in there else _Action(stage, _KINDS.BACKWARD_INPUT, microbatch)

    match kind:
        case _KINDS.FORWARD:
            source, before = stage - 1, _Action(stage - 1, _KINDS.FORWARD, microbatch)
            send, receive = _KINDS.SEND_F, _KINDS.RECV_F
        case _KINDS.BACKWARD_INPUT | _KINDS.FULL_BACKWARD:
            source, before = stage + 1, backward(stage + 1)
            send, receive = _KINDS.SEND_B, _KINDS.RECV_B
        case _KINDS.SEND_F:
            return {_Action(stage, _KINDS.FORWARD, microbatch)}
        case _KINDS.SEND_B:
            return {backward(stage)}
        case _:
            return set()
    if source not in ranks:  # the first stage's forward, the last one's backward
        return set()
    if ranks[source] == ranks[stage]:
        return {before}
    return {_Action(source, send, microbatch), _Action(stage, receive, microbatch)}
