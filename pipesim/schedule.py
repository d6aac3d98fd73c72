"""The Schedule: the order of operators on each device.

A schedule holds no time. It is complete and can make progress, or it does not exist: both
are checked when it is made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

from pipesim.errors import ScheduleError
from pipesim.scenario import Kind, Scenario

__all__ = ["Op", "Schedule"]

_OP = re.compile(r"(0|[1-9][0-9]{0,8})(F|BW|B|W)(0|[1-9][0-9]{0,8})")


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

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Read the text form; anything else is a :class:`ScheduleError`."""
        match = _OP.fullmatch(text)
        if match is None:
            raise ScheduleError(f"{text!r} is not an operator, such as 0F0, 1B2, 1W2 or 3BW1")
        return cls(cast(Kind, match[2]), int(match[1]), int(match[3]))


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
    assumed : mapping
        What the planner took for granted, in JSON types: delays, limits, warm-up.

    Raises
    ------
    ScheduleError
        An operator is missing, doubled, on the wrong device or before one that it needs;
        or the devices would wait for each other for ever.
    """

    orders: Sequence[Sequence[Op]]
    placement: Sequence[int]
    microbatches: int
    planner: str = ""
    assumed: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(tuple(order) for order in self.orders))
        object.__setattr__(self, "placement", tuple(self.placement))
        object.__setattr__(self, "assumed", dict(self.assumed))
        if self.microbatches < 1:
            raise ScheduleError(
                f"a schedule needs at least one micro-batch, not {self.microbatches}"
            )
        if not self.placement or set(self.placement) != set(range(len(self.orders))):
            raise ScheduleError(
                f"{len(self.orders)} device orders for stages on devices {list(self.placement)}"
            )
        self._check_complete()
        _ = self.topological_order

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.placement)

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return len(self.orders)

    @property
    def uses_hosts(self) -> bool:
        """Whether its planner means activations over a device's limit for host memory."""
        return "host_limit" in self.assumed

    def _check_complete(self) -> None:
        for device, order in enumerate(self.orders):
            for op in order:
                if not 0 <= op.stage < self.stages or not 0 <= op.microbatch < self.microbatches:
                    raise ScheduleError(
                        f"{op} on device {device}: there are {self.stages} stages and "
                        f"{self.microbatches} micro-batches"
                    )
                if self.placement[op.stage] != device:
                    raise ScheduleError(
                        f"{op} on device {device}: stage {op.stage} is on device "
                        f"{self.placement[op.stage]}"
                    )
        seen = Counter(op for order in self.orders for op in order)
        doubled = next((op for op, count in seen.items() if count > 1), None)
        if doubled is not None:
            raise ScheduleError(f"{doubled} is scheduled {seen[doubled]} times")
        for stage in range(self.stages):
            for m in range(self.microbatches):
                fused = Op("BW", stage, m) in seen
                halves = [op for op in (Op("B", stage, m), Op("W", stage, m)) if op in seen]
                if fused and halves:
                    raise ScheduleError(f"{halves[0]} and {stage}BW{m} do the same work twice")
                needed = (
                    [Op("F", stage, m)]
                    if fused or len(halves) == 2
                    else [Op("F", stage, m), Op("B", stage, m), Op("W", stage, m)]
                )
                missing = next((op for op in needed if op not in seen), None)
                if missing is not None:
                    device = self.placement[stage]
                    raise ScheduleError(f"{missing} is missing from device {device}")

    @cached_property
    def topological_order(self) -> tuple[Op, ...]:
        """All operators, each after everything it needs and after its device's earlier ones."""
        placed: set[Op] = set()
        result: list[Op] = []
        heads = [0] * self.devices
        awake = list(range(self.devices))
        while awake:
            device = awake.pop()
            order, head = self.orders[device], heads[device]
            while head < len(order) and self._ready(order[head], placed):
                op = order[head]
                placed.add(op)
                result.append(op)
                head += 1
                neighbours = self.placement[max(op.stage - 1, 0) : op.stage + 2]
                awake.extend(other for other in neighbours if other != device)
            heads[device] = head
        stuck = [
            order[head] for order, head in zip(self.orders, heads, strict=True) if head < len(order)
        ]
        if stuck:
            reasons = "; ".join(self._why_stuck(op, placed) for op in stuck)
            raise ScheduleError(f"the schedule cannot make progress: {reasons}")
        return tuple(result)

    def _ready(self, op: Op, placed: set[Op]) -> bool:
        return all(need in placed for need in self.needs(op))

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
        return own, Op("BW" if (stage + 1, m) in self._fused else "B", stage + 1, m)

    @cached_property
    def _fused(self) -> frozenset[tuple[int, int]]:
        ops = (op for order in self.orders for op in order)
        return frozenset((op.stage, op.microbatch) for op in ops if op.kind == "BW")

    def _why_stuck(self, op: Op, placed: set[Op]) -> str:
        missing = next(need for need in self.needs(op) if need not in placed)
        return f"device {self.placement[op.stage]} waits in {op} for {missing}"

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
