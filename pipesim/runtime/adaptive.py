"""A stock torch schedule that adapts: it times transfers, re-plans beside the job, and swaps.

On every rank of the pipeline; the planner, here the simulator's, runs on its rank 0 alone::

    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
    from pipesim.runtime import Adaptive

    schedule = _PipelineScheduleRuntime(stages, n_microbatches=12, loss_fn=loss)
    planner = None
    if rank == 0:
        from pipesim import load_scenario
        from pipesim.adapt.replanner import Replanner
        planner = Replanner(load_scenario("job.toml"))
    with Adaptive(schedule, planner) as adaptive:
        for batch, target in data:
            adaptive.step(batch, target=target)  # as schedule.step

After each iteration every rank puts into the group's store when its messages were handed over and
when they landed. A thread of rank 0 makes transfer times of them and asks the planner. Before each
iteration rank 0 says in the store what is next, so that all ranks swap at the same boundary; the
others wait for that word as they would wait for its first activation.

Clocks of several hosts must keep in step, as those that follow NTP do. A constant offset cancels
out where a detector compares with a baseline, if it is shorter than messages take; where messages
seem to land before they are handed over, there is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)

from pipesim.runtime.beside import Beside, Plan, Planner
from pipesim.runtime.board import Board, Word
from pipesim.runtime.carriers import Direct, wall_ns
from pipesim.runtime.pipelining import agreed, check_links, store_of
from pipesim.runtime.plans import actions_of, check
from pipesim.runtime.rerouting import DIRECTIONS, Message, Rerouted, Way
from pipesim.runtime.transfers import Log
from pipesim.runtime.ways import DelegatedWays

__all__ = ["Adaptive", "Plan", "Planner"]

Through: TypeAlias = Callable[[Way, Any], Any]


class Adaptive:
    """A schedule of stock torch, with the plan and the delegates that suit its links.

    All ranks of the pipeline make one, with the same arguments besides the planner, enter it, and
    leave it after the same iteration. What torch loaded before is not run: the first plan is the
    planner's.

    Parameters
    ----------
    schedule : _PipelineScheduleRuntime
        Of torch.
    planner : Planner, optional
        On rank 0 of the pipeline's group, and nowhere else.
    links : iterable of int, optional
        Those whose messages delegates may carry; default: all between two ranks. Their delegates
        start in the first iteration and wait until they are needed.
    delegates : int
        Processes at each end of each link and direction.
    through : callable, optional
        Given a way (link, direction) and its carrier, returns what is used instead: for tests, to
        make links late.

    Attributes
    ----------
    iteration : int
        The next one's number, from 0.
    swapped : bool
        Whether the last iteration was the first of its plan.
    delegated : frozenset of (link, direction)
        What delegates carry.

    Raises
    ------
    ValueError
        The schedule is of another class, a planner is missing or is on a rank where it does not
        belong, there is no such link, or, on entering, the arguments are not those of another rank.
    DelegateError
        From ``step``: rank 0 has left, or a delegate or another rank is gone.
    """

    def __init__(
        self,
        schedule: _PipelineScheduleRuntime,
        planner: Planner | None = None,
        *,
        links: Iterable[int] | None = None,
        delegates: int = 2,
        through: Through = lambda way, carrier: carrier,
    ) -> None:
        if not isinstance(schedule, _PipelineScheduleRuntime):
            kind = type(schedule).__name__
            raise ValueError(f"only a _PipelineScheduleRuntime can change its plan, not a {kind}")
        if (planner is not None) != (schedule.rank == 0):
            raise ValueError("rank 0 of the pipeline's group needs the planner, and no other rank")
        if delegates < 1:
            raise ValueError(f"at least one delegate is needed, not {delegates}")
        self.iteration = 0
        self.swapped = False
        self.delegated: frozenset[Way] = frozenset()
        self._schedule, self._planner, self._through = schedule, planner, through
        self._delegates = delegates
        self._rerouted = Rerouted(schedule, self._open)
        self._links: Sequence[int] = range(schedule._num_stages - 1)
        if links is not None:
            self._links = sorted(set(links))
            check_links(self._rerouted, self._links)
        self._beside: Beside | None = None

    def __enter__(self) -> Self:
        schedule = self._schedule
        with ExitStack() as undo:
            undo.enter_context(self._rerouted)
            self.iteration = 0
            self._lanes = undo.enter_context(DelegatedWays(self._delegates))
            self._board = Board(store_of(schedule), schedule.rank, schedule.pp_group_size)
            if self._planner is not None:
                undo.callback(self._leave)
            agreed(self._rerouted, [list(self._links), self._delegates])
            self._ranks = self._board.placed([stage.stage_index for stage in schedule._stages])
            if self._planner is not None:
                mine = self._board.on_a_line_of_its_own()
                self._beside = Beside(self._planner, mine, schedule._num_stages - 1, self._check)
                undo.callback(self._beside.close)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Run an iteration, with the arguments and the result of the schedule's own ``step``.

        What the planner raises, and a plan that cannot run, becomes a warning, and the job goes on
        with the plan that it has.
        """
        if self._beside is not None:
            self._board.say(self.iteration, self._next(self._beside))
        word = self._board.hear(self.iteration)
        self.swapped = word is not None
        if word is not None:
            self._adopt(word)
        result = self._schedule.step(*args, **kwargs)
        self._board.report(self.iteration, self._seen())
        self.iteration += 1
        return result

    def _leave(self) -> None:
        with suppress(RuntimeError):  # where the store is gone, others see that
            self._board.end(self.iteration)

    def _check(self, word: Word) -> None:
        check(actions_of(word.rows), self._ranks, self._schedule._n_microbatches)
        ways = {(link, way) for link in range(self._schedule._num_stages - 1) for way in DIRECTIONS}
        if unknown := set(word.delegated) - ways:
            raise ValueError(f"the plan delegates {min(unknown)}: there is no such way")

    def _next(self, beside: Beside) -> Word | None:
        try:
            return beside.take()
        except Exception as error:
            warnings.warn(f"the job goes on without re-planning: {error}", stacklevel=3)
            return None

    def _adopt(self, word: Word) -> None:
        actions = actions_of(word.rows)
        if self._rerouted.stages[0].device.type == "cpu":
            actions = {rank: _receives_first(row) for rank, row in actions.items()}
        self._schedule._prepare_schedule_with_comms(actions, format="compute_comms")
        self.delegated = frozenset(way for way in self._may() if way in word.delegated)
        self._carry()

    def _seen(self) -> Log:
        """What this rank has seen of an iteration, by the clock that all hosts share."""
        shift, rerouted = wall_ns(0), self._rerouted
        return Log(
            [(m.link, m.direction, m.microbatch, m.ns + shift) for m in rerouted.sent],
            [
                (m.link, m.direction, m.microbatch, self._ready_ns(m) + shift, m.ns + shift)
                for m in rerouted.landed
            ],
        )

    def _ready_ns(self, message: Message) -> int:
        """Return from when on it could land: what delegates bring waits for nobody."""
        by_delegates = (message.link, message.direction) in self.delegated
        return 0 if by_delegates else message.posted_ns

    # -- carriers -------------------------------------------------------------------------------

    def _open(self, rerouted: Rerouted) -> None:
        """Start delegates for what they may carry; torch has just made new buffers."""
        self._lanes.open(rerouted, self._may(), self._board.store)
        self._carry()

    def _may(self) -> list[Way]:
        """What delegates may carry."""
        return [way for way in self._ways() if way[0] in self._links]

    def _ways(self) -> list[Way]:
        """All ways between two ranks."""
        links = range(self._schedule._num_stages - 1)
        ways: list[Way] = [(link, direction) for link in links for direction in DIRECTIONS]
        return [way for way in ways if len(set(self._rerouted.ends(way))) == 2]

    def _carry(self) -> None:
        """Let delegates carry what the plan says, and the process group all else."""
        rerouted = self._rerouted
        group, rank = rerouted.stages[0].group, self._schedule.rank
        for way in self._ways():
            (sender, receiver), tag = rerouted.ends(way), _tag(way)
            lanes = self._lanes if way in self.delegated else None
            if rank == sender:
                out = lanes and lanes.sending.get(way)
                rerouted.sending[way] = self._through(way, out or Direct(group, receiver, tag))
            if rank == receiver:
                into = lanes and lanes.receiving.get(way)
                rerouted.receiving[way] = self._through(way, into or Direct(group, sender, tag))


def _receives_first(row: list[_Action]) -> list[_Action]:
    """Post all receives at once, which hold up nothing over gloo.

    It lets a message land before its receiver has got to it: only then is it seen how long it took.
    """
    receives = (_ComputationType.RECV_F, _ComputationType.RECV_B)
    return sorted(row, key=lambda action: action.computation_type not in receives)


def _tag(way: Way) -> int:
    """Tell a way's messages from others between the same ranks."""
    link, direction = way
    return 2 * link + DIRECTIONS.index(direction)
