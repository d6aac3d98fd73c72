"""The same problem as intervals, for OR-Tools CP-SAT: the extra ``pipesim[cpsat]``.

Each operator is an interval; those of a device do not overlap. A backward that may be fused has
a Boolean, on which the lengths of its B and W depend. Of an activation, B gives back one part and
W the rest: it is two intervals, from the start of F to the end of B and to the end of W, which
together never need more than the device may hold.

CP-SAT counts in whole numbers. Where all times are multiples of a common grain, that is the
unit, and nothing is rounded. Otherwise times are rounded down to a very small unit, so that
the bound still holds, and is stated without the rounding.
"""

from __future__ import annotations

import math
import time
from fractions import Fraction

from ortools.sat.python import cp_model

from milp import ctrl_c
from milp.attempt import Attempt
from milp.network import Network
from milp.result import Status
from pipesim.analysis.over import OutOfTime, go_on
from pipesim.analysis.windows import TOLERANCE
from pipesim.errors import SolverError
from pipesim.schedule import Schedule

__all__ = ["cpsat"]

_FINEST = 2**36
"""Units in a horizon whose times have no common grain."""

_OPERATORS_A_SECOND = 5_000
"""Operators of which a model can be made in a second. Of more there is no time to solve it."""


class _Units:
    """Times in whole numbers; ``exact`` where nothing is rounded.

    An operator without length would let any order of what runs at its moment pass for one
    that fits the limits. Then every operator gets one more unit, and a unit of time is more
    than all of these together: they only break ties.
    """

    def __init__(self, network: Network, horizon_ms: float) -> None:
        self.unit = network.grain
        self.exact = bool(self.unit) and horizon_ms < float(self.unit) * _FINEST
        if not self.exact:
            self.unit = Fraction(horizon_ms or 1.0) / _FINEST
        lengths = [self._count(time) for time in network.durations_ms]
        fused = {b: (self._count(time), 0) for b, _, time in network.fusions}
        self.finer, self.extra = (1, 0) if all(lengths) and not fused else (len(lengths) + 1, 1)
        self.lengths = [length * self.finer + self.extra for length in lengths]
        self.fused = {
            i: time * self.finer + self.extra
            for b, w, _ in network.fusions
            for i, time in zip((b, w), fused[b], strict=True)
        }
        self.horizon = math.floor(Fraction(horizon_ms * (1 + TOLERANCE)) / self.unit)
        self.horizon = (self.horizon + self.extra) * self.finer

    def _count(self, time_ms: float) -> int:
        return round(Fraction(time_ms) / self.unit) if self.exact else self.down(time_ms)

    def down(self, time_ms: float) -> int:
        """Return a time, rounded down even if it is a little below what it should be."""
        return math.floor(Fraction(time_ms * (1 + TOLERANCE)) / self.unit)

    def delay(self, time_ms: float) -> int:
        """Return a delay."""
        return self._count(time_ms) * self.finer

    def bound_ms(self, bound: float) -> float:
        """Return what a bound on the end says in milliseconds."""
        whole = math.ceil(bound - 1e-6 - self.extra * len(self.lengths))
        return float(self.unit * math.ceil(Fraction(whole, self.finer)))


class _Intervals:
    """The model."""

    def __init__(self, network: Network, horizon_ms: float) -> None:
        self.network, self.units = network, _Units(network, horizon_ms)
        self.model = cp_model.CpModel()
        units, model = self.units, self.model
        self.start = [
            model.new_int_var(0, units.horizon - min(length, units.fused.get(i, length)), "")
            for i, length in enumerate(units.lengths)
        ]
        self.end = model.new_int_var(0, units.horizon, "")
        self.fused = {b: model.new_bool_var("") for b, _, _ in network.fusions}
        self.takes: list[cp_model.LinearExprT] = list(units.lengths)
        self.done: list[cp_model.LinearExpr] = [
            start + length for start, length in zip(self.start, units.lengths, strict=True)
        ]
        for b, w, _ in network.fusions:
            for i in (b, w):
                change = units.fused[i] - units.lengths[i]
                takes = units.lengths[i] + change * self.fused[b]
                done = model.new_int_var(0, units.horizon, "")
                model.add(done == self.start[i] + takes)
                self.takes[i], self.done[i] = takes, done
        self._add_order()
        self._add_limits()
        model.minimize(self.end)

    def _add_order(self) -> None:
        net, model, units = self.network, self.model, self.units
        for b, needs in enumerate(net.needs):
            go_on(net.over)
            for a, delay in needs.items():
                model.add(self.start[b] >= self.done[a] + units.delay(delay))
            model.add(self.end >= self.done[b])
        for a, b in net.decided:
            model.add(self.start[b] >= self.done[a])
        for device in net.on_device:
            model.add_no_overlap(
                model.new_interval_var(self.start[i], self.takes[i], self.done[i], "")
                for i in device
            )
        if net.windows is None:
            return
        for i, (head, tail) in enumerate(zip(net.heads_ms, net.tails_ms, strict=True)):
            margin = net.windows.horizon_ms * 2 * TOLERANCE
            model.add(self.start[i] >= units.finer * units.down(max(0.0, head - margin)))
            after = units.finer * units.down(max(0.0, tail - margin))
            model.add(self.end >= self.done[i] + after)

    def _add_limits(self) -> None:
        scenario, model = self.network.scenario, self.model
        parts = [
            Fraction(part).limit_denominator(10**6) for part in scenario.released("B").tolist()
        ]
        whole = math.lcm(*(part.denominator for part in parts))
        number = {op: i for i, op in enumerate(self.network.ops)}
        for device, limit in zip(
            self.network.on_device, scenario.activation_limit.tolist(), strict=True
        ):
            if limit >= len(device):
                continue
            held, demands = [], []
            for i in device:
                go_on(self.network.over)
                op = self.network.ops[i]
                part = parts[op.stage]
                share = {"F": Fraction(0), "B": part, "W": 1 - part}[op.kind]
                if share:
                    f = number[op._replace(kind="F")]
                    length = model.new_int_var(0, self.units.horizon, "")
                    span = model.new_interval_var(self.start[f], length, self.done[i], "")
                    held.append(span)
                    demands.append(int(share * whole))
            room = math.floor((limit + TOLERANCE) * whole)
            model.add_cumulative(held, demands, room)

    def suggest(self, schedule: Schedule) -> None:
        """Hint at a schedule's starts, the same as a longest path in units."""
        net, units = self.network, self.units
        lengths = list(units.lengths)
        for b, w, _ in net.fusions:
            op = net.ops[b]
            fused = bool(schedule.is_fused[op.stage, op.microbatch])
            self.model.add_hint(self.fused[b], fused)
            if fused:
                lengths[b], lengths[w] = units.fused[b], units.fused[w]
        free = [0] * net.scenario.devices
        ends = [0] * len(net.ops)
        for i in net.numbered(schedule):
            device = net.scenario.placement[net.ops[i].stage]
            ready = (ends[a] + units.delay(delay) for a, delay in net.needs[i].items())
            start = max(free[device], *ready, 0)
            free[device] = ends[i] = start + lengths[i]
            self.model.add_hint(self.start[i], start)
        self.model.add_hint(self.end, max(ends))


def cpsat(
    network: Network,
    horizon_ms: float,
    *,
    hint: Schedule | None,
    deadline: float,
    threads: int,
    pressed: ctrl_c.Pressed,
) -> Attempt:
    """Run CP-SAT, see :class:`milp.attempt.Backend`."""
    operators = 3 * network.scenario.stages * network.scenario.microbatches
    if operators > _OPERATORS_A_SECOND * (deadline - time.perf_counter()):
        raise OutOfTime
    intervals = _Intervals(network, horizon_ms)
    if hint:
        intervals.suggest(hint)
    go_on(network.over)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = threads
    solver.parameters.catch_sigint_signal = False  # Python's own thread hears Ctrl-C
    if not math.isinf(deadline):
        left_s = deadline - time.perf_counter()
        if left_s <= 0:
            raise OutOfTime
        solver.parameters.max_time_in_seconds = left_s
    said: list[object] = []
    ctrl_c.run(
        lambda: said.append(solver.solve(intervals.model)), solver.stop_search, pressed, deadline
    )
    (status,) = said
    if status == cp_model.INFEASIBLE:
        return Attempt("infeasible", math.inf)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"cpsat refuses the model: {intervals.model.validate()}")
    bound_ms = intervals.units.bound_ms(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Attempt("unknown", bound_ms)
    starts = [solver.value(start) for start in intervals.start]
    orders = [sorted(device, key=starts.__getitem__) for device in network.on_device]
    proven = status == cp_model.OPTIMAL and intervals.units.exact
    found: Status = "optimal" if proven else "feasible"
    fused = [b for b, chosen in intervals.fused.items() if solver.value(chosen)]
    return Attempt(found, bound_ms, network.schedule(orders, fused))
