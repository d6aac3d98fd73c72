"""The operators of a scenario and everything about them that no solver has to decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from pipesim.scenario import DOWN, UP, Kind, Scenario
from pipesim.schedule import Op, Schedule

__all__ = ["Network"]


@dataclass(frozen=True)
class Network:
    """The split operators F, B and W of a scenario with the precedences that always hold.

    Those are the data dependencies, and first-in first-out: on one stage, operators of one
    kind run in the order of their micro-batches. If the micro-batches take equal times this
    costs nothing: exchange the k-th operator of each kind and stage with that of
    micro-batch k, and every start time stays possible. Otherwise it is an assumption.

    Operators are numbered micro-batch by micro-batch, F down, B up, then W: everything
    that an operator needs has a smaller number.
    """

    scenario: Scenario

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """All operators; their numbers index every other sequence here."""
        stages = range(self.scenario.stages)
        kinds: tuple[tuple[Kind, Sequence[int]], ...] = (
            ("F", stages),
            ("B", stages[::-1]),
            ("W", stages),
        )
        microbatches = range(self.scenario.microbatches)
        return tuple(Op(kind, s, m) for m in microbatches for kind, order in kinds for s in order)

    @cached_property
    def durations_ms(self) -> tuple[float, ...]:
        """How long each operator takes."""
        return tuple(
            float(self.scenario.durations_ms(op.kind)[op.stage, op.microbatch]) for op in self.ops
        )

    @cached_property
    def on_device(self) -> tuple[tuple[int, ...], ...]:
        """The operators of each device, by number."""
        placement, numbers = self.scenario.placement, range(len(self.ops))
        return tuple(
            tuple(i for i in numbers if placement[self.ops[i].stage] == d)
            for d in range(self.scenario.devices)
        )

    @cached_property
    def needs(self) -> tuple[dict[int, float], ...]:
        """For each operator, those it directly follows and the delay in between, in ms."""
        number = {op: i for i, op in enumerate(self.ops)}
        return tuple(
            {number[need]: delay for need, delay in self._needs(op) if need in number}
            for op in self.ops
        )

    def _needs(self, op: Op) -> Iterator[tuple[Op, float]]:
        kind, stage, m = op
        delays = self.scenario.delay_ms
        yield Op(kind, stage, m - 1), 0.0
        if kind == "F" and stage > 0:
            yield Op("F", stage - 1, m), float(delays[stage - 1, DOWN])
        elif kind == "B":
            yield Op("F", stage, m), 0.0
            if stage < self.scenario.stages - 1:
                yield Op("B", stage + 1, m), float(delays[stage, UP])
        elif kind == "W":
            yield Op("B", stage, m), 0.0

    @cached_property
    def heads_ms(self) -> tuple[float, ...]:
        """Longest chain before each operator: its earliest possible start."""
        heads: list[float] = []
        for needs in self.needs:
            ready = (heads[a] + self.durations_ms[a] + delay for a, delay in needs.items())
            heads.append(max(ready, default=0.0))
        return tuple(heads)

    @cached_property
    def tails_ms(self) -> tuple[float, ...]:
        """Longest chain after each operator's end: what the iteration still takes at least."""
        tails = [0.0] * len(self.ops)
        for b in reversed(range(len(self.ops))):
            for a, delay in self.needs[b].items():
                tails[a] = max(tails[a], delay + self.durations_ms[b] + tails[b])
        return tuple(tails)

    @cached_property
    def bound_ms(self) -> float:
        """Lower bound on the iteration time: the longest chain, and for every device its
        earliest start, all its work and its shortest tail.
        """  # noqa: D205
        chains = (h + p for h, p in zip(self.heads_ms, self.durations_ms, strict=True))
        devices = (
            min(self.heads_ms[i] for i in ops)
            + sum(self.durations_ms[i] for i in ops)
            + min(self.tails_ms[i] for i in ops)
            for ops in self.on_device
        )
        return max(*chains, *devices)

    @cached_property
    def _before(self) -> tuple[int, ...]:
        """For each operator, the set of those that always precede it, as bits."""
        before: list[int] = []
        for needs in self.needs:
            bits = 0
            for a in needs:
                bits |= before[a] | 1 << a
            before.append(bits)
        return tuple(before)

    def precedes(self, a: int, b: int) -> bool:
        """Whether operator ``a`` runs before ``b`` in every schedule."""
        return bool(self._before[b] >> a & 1)

    @cached_property
    def undecided(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operators on one device that may run in either order."""
        pairs = (pair for ops in self.on_device for pair in combinations(ops, 2))
        return tuple((a, b) for a, b in pairs if not self.precedes(a, b))

    def schedule(self, orders: Sequence[Sequence[int]], **assumed: object) -> Schedule:
        """Return the schedule with these orders, given by number, shape [D][…]."""
        named = [[self.ops[i] for i in order] for order in orders]
        scenario = self.scenario
        return Schedule(named, scenario.placement, scenario.microbatches, "milp", assumed)

    def makespan_ms(self, schedule: Schedule) -> float:
        """Longest path of a schedule of these operators: its ideal iteration time."""
        number = {op: i for i, op in enumerate(self.ops)}
        ends = [0.0] * len(self.ops)
        free = [0.0] * self.scenario.devices
        for op in schedule.topological_order:
            i, device = number[op], self.scenario.placement[op.stage]
            ready = (ends[a] + delay for a, delay in self.needs[i].items())
            free[device] = ends[i] = max(free[device], *ready, 0.0) + self.durations_ms[i]
        return max(free)
