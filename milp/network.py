"""The operators of a scenario and everything about them that no solver has to decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations, permutations
from typing import cast

import numpy as np

from pipesim.analysis.windows import TOLERANCE, Ranges, Windows
from pipesim.scenario import DOWN, KINDS, UP, Kind, Scenario
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

    Parameters
    ----------
    scenario : Scenario
        What there is to run.
    windows : Windows, optional
        What is known of the schedules within a horizon; everything here then holds for
        those alone. They decide orders, and narrow starts and ends.
    """

    scenario: Scenario
    windows: Windows | None = None

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
            heads.append(max(self._window(len(heads))[0], *ready, 0.0))
        return tuple(heads)

    @cached_property
    def tails_ms(self) -> tuple[float, ...]:
        """Longest chain after each operator's end: what the iteration still takes at least."""
        tails = [self._window(i)[1] for i in range(len(self.ops))]
        for b in reversed(range(len(self.ops))):
            for a, delay in self.needs[b].items():
                tails[a] = max(tails[a], delay + self.durations_ms[b] + tails[b])
        return tuple(tails)

    def _window(self, i: int) -> tuple[float, float]:
        """Head and tail of an operator that the windows give."""
        kind, stage, m = self.ops[i]
        if self.windows is None or kind == "W":
            return 0.0, 0.0
        w = self.windows
        heads = w.forward_head_ms if kind == "F" else w.backward_head_ms
        deadlines = w.forward_deadline_ms if kind == "F" else w.backward_deadline_ms
        return float(heads[stage, m]), max(0.0, w.horizon_ms - float(deadlines[stage, m]))

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
        """Whether operator ``a`` runs before ``b``, of one device, in every schedule."""
        return bool(self._before[b] >> a & 1) or self._in_windows(a, b)

    def _in_windows(self, a: int, b: int) -> bool:
        """Whether the windows leave no room for ``b`` before ``a``."""
        if self.windows is None:
            return False
        (kind_a, stage, i), (kind_b, other, j) = self.ops[a], self.ops[b]
        if stage != other:
            both = self.durations_ms[a] + self.durations_ms[b]
            span = self.heads_ms[b] + both + self.tails_ms[a]
            return span > self.windows.horizon_ms * (1 + TOLERANCE)
        if (ranges := self._ranges.get(kind_a + kind_b)) is not None:
            return bool(ranges[stage, j, 0] > i)
        if (ranges := self._ranges.get(kind_b + kind_a)) is not None:
            return bool(ranges[stage, i, 1] <= j)
        return False

    @cached_property
    def _ranges(self) -> dict[str, Ranges]:
        """How many operators of the first kind run before each of the second, by windows."""
        w = self.windows
        if w is None:
            return {}
        return {
            "BF": w.backwards_before_forward,
            "WF": w.weights_before_forward,
            "WB": w.weights_before_backward,
        }

    @cached_property
    def decided(self) -> tuple[tuple[int, int], ...]:
        """Pairs that the windows put in this order; with ``needs`` they imply all others."""
        if self.windows is None:
            return ()
        number = {op: i for i, op in enumerate(self.ops)}
        pairs = []
        for kinds, ranges in self._ranges.items():
            first, then = _kind(kinds[0]), _kind(kinds[1])
            for (stage, m), fewest in np.ndenumerate(ranges[..., 0]):
                most = int(ranges[stage, m, 1])
                op = number[Op(then, stage, m)]
                if fewest:
                    pairs.append((number[Op(first, stage, int(fewest) - 1)], op))
                if most < self.scenario.microbatches:
                    pairs.append((op, number[Op(first, stage, most)]))
        for device in self.on_device:
            apart = ((a, b) for a, b in permutations(device, 2) if self._stages_differ(a, b))
            pairs += [pair for pair in apart if self._in_windows(*pair)]
        return tuple(pairs)

    def _stages_differ(self, a: int, b: int) -> bool:
        return self.ops[a].stage != self.ops[b].stage

    @cached_property
    def undecided(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operators on one device that may run in either order."""
        pairs = (pair for ops in self.on_device for pair in combinations(ops, 2))
        return tuple(
            (a, b) for a, b in pairs if not self.precedes(a, b) and not self.precedes(b, a)
        )

    def schedule(self, orders: Sequence[Sequence[int]]) -> Schedule:
        """Return the schedule with these orders, given by number, shape [D][…]."""
        named = [[self.ops[i] for i in order] for order in orders]
        scenario = self.scenario
        return Schedule(named, scenario.placement, scenario.microbatches, "milp")

    def ends_ms(self, schedule: Schedule) -> list[float]:
        """Earliest end of each operator, by number, in a schedule of these operators."""
        number = {op: i for i, op in enumerate(self.ops)}
        ends = [0.0] * len(self.ops)
        free = [0.0] * self.scenario.devices
        for op in schedule.topological_order:
            i, device = number[op], self.scenario.placement[op.stage]
            ready = (ends[a] + delay for a, delay in self.needs[i].items())
            free[device] = ends[i] = max(free[device], *ready, 0.0) + self.durations_ms[i]
        return ends

    def makespan_ms(self, schedule: Schedule) -> float:
        """Longest path of a schedule of these operators: its ideal iteration time."""
        return max(self.ends_ms(schedule))

    def in_order(self, schedule: Schedule) -> Schedule:
        """Return a schedule with its backwards split and each kind in micro-batch order.

        The k-th operator of a kind on a stage becomes that of micro-batch k. Whatever an
        operator needs still comes before it.
        """
        orders = []
        for order in schedule.orders:
            done: Counter[tuple[Kind, int]] = Counter()
            named = []
            for kind, stage, _ in order:
                for half in ("B", "W") if kind == "BW" else (kind,):
                    named.append(Op(_kind(half), stage, done[_kind(half), stage]))
                    done[_kind(half), stage] += 1
            orders.append(named)
        return Schedule(
            orders, schedule.placement, schedule.microbatches, schedule.planner, schedule.assumed
        )

    def overfull(self, schedule: Schedule) -> int | None:
        """First device that holds more activations than it may, None if there is none."""
        released = self.scenario.released
        held = {kind: float(kind == "F") - released(kind) for kind in KINDS}
        for device, order in enumerate(schedule.orders):
            peak = max(accumulate(held[op.kind] for op in order))
            if peak > self.scenario.activation_limit[device] + TOLERANCE:
                return device
        return None


def _kind(text: str) -> Kind:
    return cast(Kind, text)
