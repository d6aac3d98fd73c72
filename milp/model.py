"""The shortest iteration under the ideal transport, as a mixed-integer program in PuLP.

For every operator i a start time s_i, for every undecided pair on one device a binary that
says which comes first, and the iteration time C to minimise (the disjunctive formulation of
job-shop scheduling, Manne 1960). With p for durations, c for delays, H for the horizon, which
C does not exceed, and [a, b] for the binary "a before b" or its complement:

    s_b ≥ s_a + p_a + c                  b needs a, or follows it in a fixed order
    s_b ≥ s_a + p_a − M (1 − [a, b])     M = H − tail_a − head_b
    C   ≥ s_a + p_a + tail_a
    1 + Σ_a held_a [a, f] ≤ limit        f a forward; a: F +1, B and W what they give back

A backward that may be fused has a binary, too: then p is the time of BW for its B and 0 for its W.

Activations are counted in event order: an operator that precedes f on its device has
started and ended before f takes its own. Only a device's own limit holds here; nothing is
moved to the host.

Heads, tails and the pairs left undecided are those within the horizon
(:mod:`pipesim.analysis.windows`): this is what makes it solvable. Three more kinds of row are not
needed but tighten the relaxation: a start waits for all the work before it on its device, the end
leaves time for all the work after it, and the binaries are monotone along fixed orders. Only these
rows bound C from below: what the solver proves is its own proof.
"""

from __future__ import annotations

import math

import numpy as np
import pulp

from milp.network import Network
from pipesim.analysis.over import go_on
from pipesim.analysis.windows import TOLERANCE
from pipesim.schedule import Schedule

__all__ = ["Model"]

NEGLIGIBLE = 1e-6
"""Durations below this part of the horizon are too short to order operators by time."""


_MARGIN = 1e-7
"""By which part the horizon is longer here, lest rounding makes a solver call it infeasible."""


class Model:
    """The program of one network; ``problem`` is PuLP's, for any of its solvers.

    Parameters
    ----------
    network : Network
        With windows, if any, of the horizon.
    horizon_ms : float
        The iteration takes no longer.

    Raises
    ------
    OutOfTime
        The network's time was over before all was said.
    """

    def __init__(self, network: Network, horizon_ms: float) -> None:
        self.network = network
        # A power of two, so that dividing by it rounds nothing: times become 512 … 1024.
        self.unit_ms = 2.0 ** (math.frexp(horizon_ms)[1] - 10) if horizon_ms else 1.0
        self.lengths, self.heads, self.tails = (
            [time / self.unit_ms for time in times]
            for times in (network.shortest_ms, network.heads_ms, network.tails_ms)
        )
        self.horizon = horizon_ms * (1 + _MARGIN) / self.unit_ms
        self.problem = pulp.LpProblem("iteration")
        self.end = self.problem.add_variable("end", 0, self.horizon)
        self.problem.setObjective(self.end)
        self._first = {
            (a, b): self.problem.add_variable(f"first_{a}_{b}", cat="Binary")
            for a, b in network.undecided
        }
        self._fused = {
            b: self.problem.add_variable(f"fused_{b}", cat="Binary") for b, _, _ in network.fusions
        }
        self._takes = self._durations()
        self._steps: list[pulp.LpVariable] = []
        self._add_times()
        if min(self.lengths) <= NEGLIGIBLE * self.horizon:
            self._add_steps()
        self._add_limits()
        self._add_cuts()

    def _durations(self) -> list[pulp.LpAffineExpression | float]:
        """What each operator takes, which for a B and its W depends on whether they are fused."""
        split = [time / self.unit_ms for time in self.network.durations_ms]
        takes: list[pulp.LpAffineExpression | float] = list(split)
        for b, w, fused_ms in self.network.fusions:
            takes[b] = split[b] + (fused_ms / self.unit_ms - split[b]) * self._fused[b]
            takes[w] = split[w] - split[w] * self._fused[b]
        return takes

    def _before(self, a: int, b: int) -> pulp.LpAffineExpression:
        """1 where a precedes b, 0 where b precedes a; both on one device."""
        if (a, b) in self._first:
            return pulp.LpAffineExpression(self._first[a, b])
        if (b, a) in self._first:
            return 1 - self._first[b, a]
        return pulp.LpAffineExpression(constant=float(self.network.precedes(a, b)))

    def _add(self, row: pulp.LpConstraint) -> None:
        go_on(self.network.over)
        self.problem.addConstraint(row)

    def _add_times(self) -> None:
        net, add = self.network, self._add
        timed = list(zip(self.heads, self.lengths, self.tails, strict=True))
        self.start = [
            self.problem.add_variable(f"start_{i}", head, max(head, self.horizon - length - tail))
            for i, (head, length, tail) in enumerate(timed)
        ]
        takes = self._takes
        for i, (_, _, tail) in enumerate(timed):
            add(self.end >= self.start[i] + takes[i] + tail)
            for a, delay in net.needs[i].items():
                add(self.start[i] >= self.start[a] + takes[a] + delay / self.unit_ms)
        for a, b in net.decided:
            add(self.start[b] >= self.start[a] + takes[a])
        for pair in net.undecided:
            for a, b in (pair, pair[::-1]):
                slack = max(0.0, self.horizon - self.tails[a] - self.heads[b])
                after = self.start[a] + takes[a] - slack * (1 - self._before(a, b))
                add(self.start[b] >= after)

    def _add_steps(self) -> None:
        """Number the operators, so that those without length form no rings."""
        net, count = self.network, len(self.network.ops)
        steps = [self.problem.add_variable(f"step_{i}", 0, count) for i in range(count)]
        needs = ((a, b) for b, needs in enumerate(net.needs) for a in needs)
        for a, b in (*needs, *net.decided):
            self._add(steps[b] >= steps[a] + 1)
        for pair in net.undecided:
            for a, b in (pair, pair[::-1]):
                after = steps[a] + 1 - (count + 1) * (1 - self._before(a, b))
                self._add(steps[b] >= after)
        self._steps = steps

    def _add_limits(self) -> None:
        scenario, ops = self.network.scenario, self.network.ops
        given = {kind: scenario.released(kind).tolist() for kind in ("B", "W")}
        held = [1.0 if op.kind == "F" else -given[op.kind][op.stage] for op in ops]
        for device, limit in zip(
            self.network.on_device, np.asarray(scenario.activation_limit), strict=True
        ):
            for f in (i for i in device if ops[i].kind == "F" and np.isfinite(limit)):
                earlier = (held[a] * self._before(a, f) for a in device if a != f)
                self._add(1 + pulp.lpSum(earlier) <= float(limit) + TOLERANCE)

    def _add_cuts(self) -> None:
        net, add = self.network, self._add
        for device in net.on_device:
            head = min(self.heads[i] for i in device)
            tail = min(self.tails[i] for i in device)
            if self._fused:  # the rows below count what is shortest of B and W apart
                add(self.end >= head + pulp.lpSum(self._takes[i] for i in device) + tail)
            for i in device:
                others = [a for a in device if a != i]
                earlier = (self.lengths[a] * self._before(a, i) for a in others)
                later = (self.lengths[a] * self._before(i, a) for a in others)
                add(self.start[i] >= head + pulp.lpSum(earlier))
                add(self.end >= self.start[i] + self._takes[i] + pulp.lpSum(later) + tail)
        for pair in net.undecided:
            for a, b in (pair, pair[::-1]):
                for a1 in net.needs[a]:
                    if (a1, b) in self._first or (b, a1) in self._first:
                        add(self._before(a, b) <= self._before(a1, b))

    def suggest(self, schedule: Schedule) -> None:
        """Set every variable to what it is in a schedule within the horizon."""
        net = self.network
        ends, lengths = net.ends_ms(schedule), net.lengths_ms(schedule)
        place = [0] * len(ends)
        for k, i in enumerate(net.numbered(schedule)):
            place[i] = k
        for b, fused in self._fused.items():
            op = net.ops[b]
            fused.setInitialValue(int(schedule.is_fused[op.stage, op.microbatch]))
        for i, end in enumerate(ends):
            self._set(self.start[i], (end - lengths[i]) / self.unit_ms)
        for (a, b), first in self._first.items():
            first.setInitialValue(int(place[a] < place[b]))
        for step, k in zip(self._steps, place, strict=False):
            step.setInitialValue(k)
        self._set(self.end, max(ends) / self.unit_ms)

    @staticmethod
    def _set(variable: pulp.LpVariable, value: float) -> None:
        """Set a time; it may be off its bounds by rounding."""
        variable.setInitialValue(min(max(value, variable.lowBound), variable.upBound))

    def schedule(self) -> Schedule:
        """Return the schedule of the solution that the solver left in the problem.

        The binaries order each device, not the start times, which solvers give with an
        error: an operator's place is the number of those before it.
        """

        def place(i: int) -> int:
            return sum(round(pulp.value(self._before(a, i))) for a in self._peers(i))

        orders = [sorted(device, key=place) for device in self.network.on_device]
        fused = [b for b, chosen in self._fused.items() if round(pulp.value(chosen))]
        return self.network.schedule(orders, fused)

    def _peers(self, i: int) -> list[int]:
        device = self.network.scenario.placement[self.network.ops[i].stage]
        return [a for a in self.network.on_device[device] if a != i]
