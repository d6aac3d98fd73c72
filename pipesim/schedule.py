"""The Schedule: the order of operators on each device.

A schedule holds no times. When it is made, it is checked to be complete and able to make progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from pipesim.actions import Action, Op, ends_of, operators_of
from pipesim.communication import check_actions
from pipesim.errors import ScheduleError
from pipesim.scenario import KINDS, Scenario
from pipesim.text import counted

__all__ = ["Assumptions", "Op", "Schedule"]


@dataclass(frozen=True)
class Assumptions:
    """What a planner took for granted; None where it says nothing.

    Parameters
    ----------
    delay_ms : float or sequence, shape [S−1, 2], optional
        Delays that it planned for; 0: healthy links, whatever the scenario said.
    activation_limit, host_limit : sequence of float, shape [D], optional
        Most activations on each device, and on its host. ``inf``: no limit.
    warmup : sequence of int, shape [S], optional
        Forwards that each stage was told to run before its first backward.
    transport : str, optional
        The transport that the plan is for.
    runtime : str, optional
        The runtime that the plan is for, see :mod:`pipesim.target`.
    """

    delay_ms: float | Sequence[Sequence[float]] | None = None
    activation_limit: Sequence[float] | None = None
    host_limit: Sequence[float] | None = None
    warmup: Sequence[int] | None = None
    transport: str | None = None
    runtime: str | None = None

    def __post_init__(self) -> None:
        try:
            self._freeze()
        except (TypeError, ValueError):
            raise ScheduleError(f"a plan cannot have assumed {self!r}") from None

    def _freeze(self) -> None:
        if self.delay_ms is not None and not isinstance(self.delay_ms, int | float):
            rows = tuple(tuple(float(delay) for delay in row) for row in self.delay_ms)
            object.__setattr__(self, "delay_ms", rows)
        for name in ("activation_limit", "host_limit"):
            if (limits := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(float(limit) for limit in limits))
        if self.warmup is not None:
            object.__setattr__(self, "warmup", tuple(int(x) for x in self.warmup))

    @property
    def slow_links(self) -> bool:
        """Whether it planned for a delay."""
        if self.delay_ms is None or isinstance(self.delay_ms, int | float):
            return bool(self.delay_ms)
        return any(map(any, self.delay_ms))

    @property
    def blind_to_delays(self) -> bool:
        """Whether it says that it would have planned the same for any delays."""
        return self.delay_ms == 0


@dataclass(frozen=True)
class Schedule:
    """The order of operators on each device.

    Parameters
    ----------
    orders : sequence of sequence of Op, shape [D][…]
        For each device, its operators in the order in which they run.
    placement : sequence of int, shape [S]
        The device of each stage.
    microbatches : int
        Number of micro-batches N.
    planner : str
        Who made it.
    assumed : Assumptions
        What the planner took for granted.
    actions : sequence of sequence of Action, shape [D][…], optional
        For each device, all that it does in order: its operators, and between them where
        messages are sent and received (all of them or none), alone or in batches, overlaps, and
        upkeep of stages.
        None, also where there are only operators: whoever runs the plan chooses.

    Raises
    ------
    ScheduleError
        An operator is missing, comes twice, is on the wrong device or before one it needs;
        the devices would wait for each other for ever; or the actions are refused by
        :func:`pipesim.communication.check_actions`.
    """

    orders: Sequence[Sequence[Op]]
    placement: Sequence[int]
    microbatches: int
    planner: str = ""
    assumed: Assumptions = Assumptions()
    actions: Sequence[Sequence[Action]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(tuple(order) for order in self.orders))
        object.__setattr__(self, "placement", tuple(self.placement))
        if not isinstance(self.assumed, Assumptions):
            raise ScheduleError(f"assumed must be an Assumptions, not {self.assumed!r}")
        if self.microbatches < 1:
            raise ScheduleError(
                f"a schedule needs at least one micro-batch, not {self.microbatches}"
            )
        if not self.placement or set(self.placement) != set(range(len(self.orders))):
            raise ScheduleError(
                f"{counted(len(self.orders), 'device order')}, but stages on devices "
                f"{list(self.placement)}"
            )
        if not self._is_complete():
            self._complain()
        if len(self.topological_positions) < len(self.ops):
            raise self._stuck()
        if self.actions is not None:
            actions = tuple(map(tuple, self.actions))
            check_actions(actions, self.orders, self.placement, self.microbatches)
            more = any(not isinstance(action, Op) for row in actions for action in row)
            object.__setattr__(self, "actions", actions if more else None)

    @classmethod
    def of_actions(
        cls,
        actions: Sequence[Sequence[Action]],
        placement: Sequence[int],
        microbatches: int,
        planner: str = "",
        assumed: Assumptions = Assumptions(),
    ) -> Schedule:
        """Return the schedule of devices that do this, in order; arguments as for the class.

        Examples
        --------
        >>> from pipesim.actions import parse_action
        >>> rows = "0F0 0SEND_F0 0RECV_B0 0BW0", "1RECV_F0 1F0 1BW0 1SEND_B0"
        >>> actions = [[parse_action(text) for text in row.split()] for row in rows]
        >>> Schedule.of_actions(actions, [0, 1], 1).communicates
        True
        """
        orders = [tuple(operators_of(row)) for row in actions]
        return cls(orders, placement, microbatches, planner, assumed, actions)

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.placement)

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return len(self.orders)

    @cached_property
    def communicates(self) -> bool:
        """Whether it says itself where each message is sent and received."""
        return any(map(any, map(ends_of, self.actions or ())))

    @property
    def uses_hosts(self) -> bool:
        """Whether its planner plans to keep activations over a device's limit in host memory."""
        return self.assumed.host_limit is not None

    # -- all operators, device after device ------------------------------------------------

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """All operators: those of device 0 in their order, then those of device 1, and so on."""
        return tuple(op for order in self.orders for op in order)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Where each device's operators begin in :attr:`ops`, and its length, shape [D + 1]."""
        return tuple(accumulate(map(len, self.orders), initial=0))

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        """The code of each of :attr:`ops`, see :meth:`Op.code`."""
        rows = {kind: row * self.stages for row, kind in enumerate(KINDS)}
        n = self.microbatches
        codes = [(rows[kind] + stage) * n + m for kind, stage, m in self.ops]
        array = np.array(codes, dtype=np.int32)
        array.setflags(write=False)
        return array

    @cached_property
    def is_fused(self) -> NDArray[np.bool_]:
        """Whether the backward of a stage and micro-batch is fused, shape [S, N]."""
        there = np.zeros((4, self.stages, self.microbatches), dtype=np.bool_)
        there.ravel()[self.codes] = True
        fused: NDArray[np.bool_] = there[KINDS.index("BW")]
        return fused

    def _is_complete(self) -> bool:
        """Whether every operator is there once, on its device."""
        cells = self.stages * self.microbatches
        if not 2 * cells <= len(self.ops) <= 3 * cells or {op[0] for op in self.ops} - set(KINDS):
            return False
        stages = np.array([op[1] for op in self.ops])
        microbatches = np.array([op[2] for op in self.ops])
        for values, limit in ((stages, self.stages), (microbatches, self.microbatches)):
            if not ((values >= 0) & (values < limit)).all():
                return False
        devices = np.repeat(np.arange(self.devices), np.diff(self.first))
        if (np.array(self.placement)[stages] != devices).any():
            return False
        count = np.bincount(self.codes, minlength=4 * cells)
        forward, backward, weight, fused = count.reshape(4, -1)
        return bool(
            (forward == 1).all() and (backward == weight).all() and (backward + fused == 1).all()
        )

    def _complain(self) -> None:
        """Raise :class:`ScheduleError`: say what is missing, repeated or misplaced."""
        for device, order in enumerate(self.orders):
            for op in order:
                if not 0 <= op.stage < self.stages or not 0 <= op.microbatch < self.microbatches:
                    raise ScheduleError(
                        f"{op} on device {device}: there are {self.stages} stages and "
                        f"{self.microbatches} micro-batches",
                        device,
                        op,
                    )
                if self.placement[op.stage] != device:
                    raise ScheduleError(
                        f"{op} on device {device}: stage {op.stage} is on device "
                        f"{self.placement[op.stage]}",
                        device,
                        op,
                    )
        seen = Counter(op for order in self.orders for op in order)
        doubled = next((op for op, count in seen.items() if count > 1), None)
        if doubled is not None:
            raise ScheduleError(
                f"{doubled} is scheduled {seen[doubled]} times",
                self.placement[doubled.stage],
                doubled,
            )
        for stage in range(self.stages):
            for m in range(self.microbatches):
                whole, halves = Op("BW", stage, m), (Op("B", stage, m), Op("W", stage, m))
                device = self.placement[stage]
                fused = whole in seen
                twice = next((op for op in halves if fused and op in seen), None)
                if twice is not None:
                    raise ScheduleError(
                        f"{twice} and {whole} do the same work twice", device, twice
                    )
                needed = (Op("F", stage, m), *(() if fused else halves))
                missing = [op for op in needed if op not in seen]
                if missing:
                    what = f"{whole} (or {halves[0]} and {halves[1]})"
                    what = what if missing == [*halves] else str(missing[0])
                    raise ScheduleError(f"{what} is missing from device {device}", device)

    # -- what waits for what ---------------------------------------------------------------

    @property
    def topological_order(self) -> tuple[Op, ...]:
        """All operators, each after everything it needs and after its device's earlier ones."""
        return tuple(self.ops[position] for position in self.topological_positions)

    @cached_property
    def topological_positions(self) -> tuple[int, ...]:
        """The same as positions in :attr:`ops`; short of some if they wait for ever."""
        n, cells = self.microbatches, self.stages * self.microbatches
        fused = self.is_fused.ravel().tolist()
        codes = self.codes.tolist()
        placed = bytearray(4 * cells)
        result: list[int] = []
        heads = list(self.first[:-1])
        awake = list(range(self.devices))
        last, weight = cells - n, KINDS.index("W")
        neighbours: list[set[int]] = [set() for _ in self.orders]
        for a, b in pairwise(self.placement):
            neighbours[a].add(b)
            neighbours[b].add(a)
        while awake:
            device = awake.pop()
            begin, end = heads[device], self.first[device + 1]
            head = begin
            while head < end:
                row, cell = divmod(codes[head], cells)
                if row == 0:
                    ready = cell < n or placed[cell - n]
                elif row == weight:
                    ready = placed[cells + cell]
                else:
                    ready = placed[cell] and (
                        cell >= last or placed[(3 if fused[cell + n] else 1) * cells + cell + n]
                    )
                if not ready:
                    break
                placed[codes[head]] = 1
                head += 1
            if head > begin:
                result += range(begin, head)
                heads[device] = head
                awake += neighbours[device] - {device}
        return tuple(result)

    def needs(self, op: Op) -> tuple[Op, ...]:
        """The operators whose results ``op`` reads, nearest first.

        F needs the previous stage's F; B and BW need their own F and the next stage's B or
        BW; W needs its B.
        """
        kind, stage, m = op
        if kind == "F":
            return (Op("F", stage - 1, m),) if stage else ()
        if kind == "W":
            return (Op("B", stage, m),)
        own = Op("F", stage, m)
        if stage == self.stages - 1:
            return (own,)
        return own, Op("BW" if self.is_fused[stage + 1, m] else "B", stage + 1, m)

    def _stuck(self) -> ScheduleError:
        """The error that names what each device never runs first, and what that waits for."""
        placed = {self.ops[position] for position in self.topological_positions}
        stuck = [next((op for op in order if op not in placed), None) for order in self.orders]
        reasons = []
        for device, op in enumerate(stuck):
            if op is not None:
                missing = next(need for need in self.needs(op) if need not in placed)
                reasons.append(f"device {device} waits in {op} for {missing}")
        device, op = next((device, op) for device, op in enumerate(stuck) if op is not None)
        return ScheduleError(f"the schedule cannot make progress: {'; '.join(reasons)}", device, op)

    def check_fits(self, scenario: Scenario) -> None:
        """Raise :class:`ScheduleError` unless this schedule was made for ``scenario``'s shape."""
        if self.placement != scenario.placement:
            raise ScheduleError(
                f"the plan places its stages on devices {list(self.placement)}, "
                f"the scenario on {list(scenario.placement)}"
            )
        if self.microbatches != scenario.microbatches:
            raise ScheduleError(
                f"the plan has {self.microbatches} micro-batches, "
                f"the scenario {scenario.microbatches}"
            )
