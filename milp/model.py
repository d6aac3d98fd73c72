"""The shortest iteration under the ideal transport, as a mixed-integer program in PuLP.

For every operator i a start time s_i, for every undecided pair on one device a binary that
says which comes first, and the iteration time C to minimise (the disjunctive formulation of
job-shop scheduling, Manne 1960). With p for durations, c for delays, H for an iteration
time that some schedule reaches, and [a, b] for the binary "a before b" or its complement:

    s_b ≥ s_a + p_a + c                  b needs a, or follows it in a fixed order
    s_b ≥ s_a + p_a − M (1 − [a, b])     M = H − tail_a − head_b
    C   ≥ s_a + p_a + tail_a
    1 + Σ_a held_a [a, f] ≤ limit        f a forward; a: F +1, B and W what they give back

Activations are counted in event order: an operator that precedes f on its device has
started and ended before f takes its own. Only a device's own limit holds here; nothing is
moved to the host.

Not needed, but they tighten the relaxation: a start waits for all the work before it on its
device, the end leaves time for all the work after it, and the binaries are monotone along
fixed orders.
"""

from __future__ import annotations

import numpy as np
import pulp

from milp.network import Network
from pipesim.schedule import Schedule

__all__ = ["Model"]

NEGLIGIBLE = 1e-6
"""Durations below this part of the horizon are too short to order operators by time."""


class Model:
    """The program of one network; ``problem`` is PuLP's, for any of its solvers."""

    def __init__(self, network: Network) -> None:
        self.network = network
        # One micro-batch after the other: long, but it fits every limit that any order fits.
        serial = network.schedule(network.on_device)
        self.horizon_ms = network.makespan_ms(serial)
        self.problem = pulp.LpProblem("iteration")
        self.end = self.problem.add_variable("end", network.bound_ms, self.horizon_ms)
        self.problem.setObjective(self.end)
        self._first = {
            (a, b): self.problem.add_variable(f"first_{a}_{b}", cat="Binary")
            for a, b in network.undecided
        }
        self._add_times()
        if min(network.durations_ms) <= NEGLIGIBLE * self.horizon_ms:
            self._add_steps()
        self._add_limits()
        self._add_cuts()

    def _before(self, a: int, b: int) -> pulp.LpAffineExpression:
        """1 where a precedes b, 0 where b precedes a; both on one device."""
        if (a, b) in self._first:
            return pulp.LpAffineExpression(self._first[a, b])
        if (b, a) in self._first:
            return 1 - self._first[b, a]
        return pulp.LpAffineExpression(constant=float(self.network.precedes(a, b)))

    def _add_times(self) -> None:
        net, horizon, add = self.network, self.horizon_ms, self.problem.addConstraint
        timed = list(zip(net.heads_ms, net.durations_ms, net.tails_ms, strict=True))
        self.start = [
            self.problem.add_variable(f"start_{i}", head, max(head, horizon - length - tail))
            for i, (head, length, tail) in enumerate(timed)
        ]
        for i, (_, length, tail) in enumerate(timed):
            add(self.end >= self.start[i] + length + tail)
            for a, delay in net.needs[i].items():
                add(self.start[i] >= self.start[a] + net.durations_ms[a] + delay)
        for pair in net.undecided:
            for a, b in (pair, pair[::-1]):
                (_, length, tail), (head, _, _) = timed[a], timed[b]
                slack = max(0.0, horizon - tail - head)
                after = self.start[a] + length - slack * (1 - self._before(a, b))
                add(self.start[b] >= after)

    def _add_steps(self) -> None:
        """Number the operators, so that those without length form no rings."""
        count = len(self.network.ops)
        steps = [self.problem.add_variable(f"step_{i}", 0, count) for i in range(count)]
        for b, needs in enumerate(self.network.needs):
            for a in needs:
                self.problem.addConstraint(steps[b] >= steps[a] + 1)
        for pair in self.network.undecided:
            for a, b in (pair, pair[::-1]):
                after = steps[a] + 1 - (count + 1) * (1 - self._before(a, b))
                self.problem.addConstraint(steps[b] >= after)

    def _add_limits(self) -> None:
        scenario, ops = self.network.scenario, self.network.ops
        part = scenario.released_by_b
        held = {"F": 1.0, "B": -part, "W": part - 1}
        for device, limit in zip(
            self.network.on_device, np.asarray(scenario.activation_limit), strict=True
        ):
            for f in (i for i in device if ops[i].kind == "F" and np.isfinite(limit)):
                earlier = (held[ops[a].kind] * self._before(a, f) for a in device if a != f)
                self.problem.addConstraint(1 + pulp.lpSum(earlier) <= float(limit))

    def _add_cuts(self) -> None:
        net, add = self.network, self.problem.addConstraint
        for device in net.on_device:
            head = min(net.heads_ms[i] for i in device)
            tail = min(net.tails_ms[i] for i in device)
            for i in device:
                others = [a for a in device if a != i]
                earlier = (net.durations_ms[a] * self._before(a, i) for a in others)
                later = (net.durations_ms[a] * self._before(i, a) for a in others)
                add(self.start[i] >= head + pulp.lpSum(earlier))
                add(self.end >= self.start[i] + net.durations_ms[i] + pulp.lpSum(later) + tail)
        for pair in net.undecided:
            for a, b in (pair, pair[::-1]):
                for a1 in net.needs[a]:
                    if (a1, b) in self._first or (b, a1) in self._first:
                        add(self._before(a, b) <= self._before(a1, b))

    def schedule(self, **assumed: object) -> Schedule:
        """Return the schedule of the solution that the solver left in the problem.

        The binaries order each device, not the start times, which solvers give with an
        error: an operator's place is the number of those before it.
        """

        def place(i: int) -> int:
            return sum(round(pulp.value(self._before(a, i))) for a in self._peers(i))

        orders = [sorted(device, key=place) for device in self.network.on_device]
        return self.network.schedule(orders, **assumed)

    def _peers(self, i: int) -> list[int]:
        device = self.network.scenario.placement[self.network.ops[i].stage]
        return [a for a in self.network.on_device[device] if a != i]
