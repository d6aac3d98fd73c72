"""The operators of a scenario and everything about them that no solver has to decide."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pipesim.analysis.bounds import grain
from pipesim.analysis.over import Over, go_on, never
from pipesim.analysis.windows import TOLERANCE, Ranges, Windows
from pipesim.scenario import DOWN, KINDS, UP, Kind, Scenario
from pipesim.schedule import Op, Schedule

__all__ = ["Network", "in_order_suffices"]


@dataclass(frozen=True)
class Network:
    """The operators F, B and W of a scenario with the precedences that may be taken for granted.

    Those are the data dependencies, and first-in first-out among micro-batches that take the
    same times on every stage: on one stage, their operators of one kind run in the order of
    the micro-batches. This costs nothing: exchange the k-th of these operators with that of
    the k-th of these micro-batches, and every start time stays possible.

    A backward is a B and a W. Where a fused one (BW) is shorter than both, it may also be
    fused: then B takes the time of BW, and W none. That W needs no place of its own, since right
    behind its B it delays nothing and gives back its activation soonest; but it may leave the
    order of the other W, which is not taken for granted there.

    Operators are numbered micro-batch by micro-batch, F down, B up, then W: everything
    that an operator needs has a smaller number.

    Parameters
    ----------
    scenario : Scenario
        What there is to run.
    windows : Windows, optional
        What is known of the schedules within a horizon; everything here then holds for
        those alone. They decide orders, and narrow starts and ends. Only for split operators in
        the order of their micro-batches.
    in_order : bool
        Leave out all schedules in which a micro-batch overtakes another, or a backward is
        fused. This may leave out the shortest ones, unless :func:`in_order_suffices`.
    over : callable
        Asked again and again whether to end while pairs of operators are gone through; then
        they raise :class:`~pipesim.analysis.over.OutOfTime`.
    """

    scenario: Scenario
    windows: Windows | None = None
    in_order: bool = False
    over: Over = never

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The group of each micro-batch; in one group all take the same times."""
        if self.in_order:
            return (0,) * self.scenario.microbatches
        return _groups(self.scenario)

    @cached_property
    def fuses(self) -> NDArray[np.bool_]:
        """Whether each backward may be fused, shape [S, N]."""
        return _shorter_fused(self.scenario) & (not self.in_order)

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
        """How long each operator takes where backwards are split."""
        return tuple(
            float(self.scenario.durations_ms(op.kind)[op.stage, op.microbatch]) for op in self.ops
        )

    @cached_property
    def fusions(self) -> tuple[tuple[int, int, float], ...]:
        """The backwards that may be fused: number of B and of W, and the time of both fused."""
        number, fused = self.number, self.scenario.fused_backward_ms
        return tuple(
            (i, number[op._replace(kind="W")], float(fused[op.stage, op.microbatch]))
            for i, op in enumerate(self.ops)
            if op.kind == "B" and self.fuses[op.stage, op.microbatch]
        )

    @cached_property
    def shortest_ms(self) -> tuple[float, ...]:
        """How long each operator takes at least."""
        shortest = list(self.durations_ms)
        for b, w, fused in self.fusions:
            shortest[b], shortest[w] = min(shortest[b], fused), 0.0
        return tuple(shortest)

    @cached_property
    def grain(self) -> Fraction:
        """Largest time of which every iteration time is a multiple, see :func:`.bounds.grain`."""
        return grain(self.scenario, [fused for _, _, fused in self.fusions])

    @cached_property
    def number(self) -> dict[Op, int]:
        """Number of each operator."""
        return {op: i for i, op in enumerate(self.ops)}

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
        number = self.number
        return tuple(
            {number[need]: delay for need, delay in self._needs(op) if need in number}
            for op in self.ops
        )

    @cached_property
    def _earlier(self) -> tuple[int, ...]:
        """The last earlier micro-batch of the same group; −1 if there is none."""
        last: dict[int, int] = {}
        earlier = []
        for m, group in enumerate(self.groups):
            earlier.append(last.get(group, -1))
            last[group] = m
        return tuple(earlier)

    def _needs(self, op: Op) -> Iterator[tuple[Op, float]]:
        kind, stage, m = op
        delays = self.scenario.delay_ms
        if kind != "W" or not self.fuses[stage, m]:
            yield Op(kind, stage, self._earlier[m]), 0.0
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
            ready = (heads[a] + self.shortest_ms[a] + delay for a, delay in needs.items())
            heads.append(max(self._window(len(heads))[0], *ready, 0.0))
        return tuple(heads)

    @cached_property
    def tails_ms(self) -> tuple[float, ...]:
        """Longest chain after each operator's end: what the iteration still takes at least."""
        tails = [self._window(i)[1] for i in range(len(self.ops))]
        for b in reversed(range(len(self.ops))):
            for a, delay in self.needs[b].items():
                tails[a] = max(tails[a], delay + self.shortest_ms[b] + tails[b])
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
        number, pairs = self.number, []
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
            for a in device:
                go_on(self.over)
                apart = ((a, b) for b in device if self._stages_differ(a, b))
                pairs += [pair for pair in apart if self._in_windows(*pair)]
        return tuple(pairs)

    def _stages_differ(self, a: int, b: int) -> bool:
        return self.ops[a].stage != self.ops[b].stage

    @property
    def pairs(self) -> int:
        """How many pairs of operators share a device."""
        each = 3 * self.scenario.microbatches
        return sum(math.comb(each * len(stages), 2) for stages in self.scenario.stages_of)

    @cached_property
    def undecided(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operators on one device that may run in either order."""
        pairs: list[tuple[int, int]] = []
        for device in self.on_device:
            for place, a in enumerate(device):
                go_on(self.over)
                later = device[place + 1 :]
                pairs += [(a, b) for b in later if not (self.precedes(a, b) or self.precedes(b, a))]
        return tuple(pairs)

    def schedule(self, orders: Sequence[Sequence[int]], fused: Collection[int] = ()) -> Schedule:
        """Return the schedule with these orders, given by number, shape [D][…].

        The B in ``fused`` are, with their W.
        """
        whole = {b: self.ops[b]._replace(kind="BW") for b in fused}
        gone = {w for b, w, _ in self.fusions if b in whole}
        named = [[whole.get(i, self.ops[i]) for i in order if i not in gone] for order in orders]
        scenario = self.scenario
        return Schedule(named, scenario.placement, scenario.microbatches, "milp")

    @property
    def one_by_one(self) -> Schedule:
        """One micro-batch after the other: a schedule that fits whatever limits any fits."""
        return self.schedule(self.on_device)

    def numbered(self, schedule: Schedule) -> list[int]:
        """A schedule's operators by number, each after all that it waits for; BW as B, then W."""
        return [self.number[half] for op in schedule.topological_order for half in _halves(op)]

    def lengths_ms(self, schedule: Schedule) -> list[float]:
        """How long each operator takes, by number, in a schedule of these operators."""
        lengths = list(self.durations_ms)
        for op in schedule.ops:
            if op.kind == "BW":
                b, w = (self.number[half] for half in _halves(op))
                lengths[b] = float(self.scenario.fused_backward_ms[op.stage, op.microbatch])
                lengths[w] = 0.0
        return lengths

    def ends_ms(self, schedule: Schedule) -> list[float]:
        """Earliest end of each operator, by number, in a schedule of these operators."""
        lengths, ends = self.lengths_ms(schedule), [0.0] * len(self.ops)
        free = [0.0] * self.scenario.devices
        for i in self.numbered(schedule):
            device = self.scenario.placement[self.ops[i].stage]
            ready = (ends[a] + delay for a, delay in self.needs[i].items())
            free[device] = ends[i] = max(free[device], *ready, 0.0) + lengths[i]
        return ends

    def makespan_ms(self, schedule: Schedule) -> float:
        """Longest path of a schedule of these operators: its ideal iteration time."""
        return max(self.ends_ms(schedule))

    def adapted(self, schedule: Schedule) -> Schedule:
        """Return a schedule in which everything holds that is taken for granted here.

        Backwards that may not be fused are split. The k-th forward and backward of a group on a
        stage become those of the group's micro-batch k, and the W follow their B in order.
        Whatever an operator needs still comes before it.
        """
        members: dict[int, list[int]] = {}
        for m, group in enumerate(self.groups):
            members.setdefault(group, []).append(m)
        waiting = {
            (kind, stage, group): deque(members[group] if kind != "W" else ())
            for kind in "FBW"
            for stage in range(schedule.stages)
            for group in members
        }
        orders = []
        for order in schedule.orders:
            named = []
            for kind, stage, was in order:
                group = self.groups[was]
                m = waiting[kind[0], stage, group].popleft()
                if kind == "BW" and not self.fuses[stage, m]:
                    named += [Op("B", stage, m), Op("W", stage, m)]
                    continue
                if kind == "B":
                    waiting["W", stage, group].append(m)
                named.append(Op(kind, stage, m))
            orders.append(named)
        return Schedule(
            orders, schedule.placement, schedule.microbatches, schedule.planner, schedule.assumed
        )

    def overfull(self, schedule: Schedule) -> int | None:
        """First device that holds more activations than it may, None if there is none."""
        released = self.scenario.released
        held = {kind: (float(kind == "F") - released(kind)).tolist() for kind in KINDS}
        for device, order in enumerate(schedule.orders):
            peak = max(accumulate(held[op.kind][op.stage] for op in order))
            if peak > self.scenario.activation_limit[device] + TOLERANCE:
                return device
        return None


def in_order_suffices(scenario: Scenario) -> bool:
    """Whether some shortest schedule has its micro-batches in order and its backwards split.

    Examples
    --------
    >>> in_order_suffices(Scenario()), in_order_suffices(Scenario(fused_backward_ms=15))
    (True, False)
    """
    return not any(_groups(scenario)) and not _shorter_fused(scenario).any()


def _groups(scenario: Scenario) -> tuple[int, ...]:
    """Number the micro-batches so that those with the same times have the same number."""
    backward, weight = scenario.backward_ms, scenario.weight_ms
    fused = np.where(_shorter_fused(scenario), scenario.fused_backward_ms, 0.0)
    columns = np.concatenate([scenario.forward_ms, backward, weight, fused]).T.tolist()
    known: dict[tuple[float, ...], int] = {}
    return tuple(known.setdefault(tuple(times), len(known)) for times in columns)


def _shorter_fused(scenario: Scenario) -> NDArray[np.bool_]:
    """Whether each BW takes less than B and W, shape [S, N]."""
    split = scenario.backward_ms + scenario.weight_ms
    return np.asarray(scenario.fused_backward_ms < split * (1 - TOLERANCE))


def _halves(op: Op) -> tuple[Op, ...]:
    return (op._replace(kind="B"), op._replace(kind="W")) if op.kind == "BW" else (op,)


def _kind(text: str) -> Kind:
    return cast(Kind, text)
