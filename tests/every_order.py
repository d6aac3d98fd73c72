"""The optimum of a tiny scenario by every order that there is, apart from the code under test.

Operators are run one at a time, each at the end of its device's order so far and as early as it
can. What was run says which may follow and what is held; of the times only those count that an
operator may yet wait for: when each device is free, and when each message arrives. Of two ways to
have run the same operators, one that is nowhere later makes the other needless.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import le

from pipesim.scenario import DOWN, UP, Scenario

__all__ = ["shortest_ms"]

_Times = tuple[float, ...]
_DOWN, _UP, _BOTH = 0, 1, 2  # F done, B done, W done: bits of a stage's micro-batch


def shortest_ms(scenario: Scenario, *, within_limits: bool = True, fused: bool = True) -> float:
    """Shortest iteration under the ideal transport, over all orders; ``inf`` if none fits.

    Parameters
    ----------
    scenario : Scenario
        Up to three stages and micro-batches, or a few more.
    within_limits : bool
        Whether the activation limits hold.
    fused : bool
        Whether a backward may run in one piece.
    """
    enumeration = _Enumeration(scenario, within_limits, fused)
    operators = 3 * scenario.stages * scenario.microbatches
    layers: list[dict[int, list[_Times]]] = [{} for _ in range(operators + 1)]
    layers[0][0] = [enumeration.start]
    for count, layer in enumerate(layers[:-1]):
        for done, ways in layer.items():
            for added, bits, step in enumeration.steps(done):
                following = layers[count + added].setdefault(done | bits, [])
                for times in ways:
                    _keep(following, step(times))
    last = layers[-1].get((1 << operators) - 1, [])
    return min((max(times[: scenario.devices]) for times in last), default=math.inf)


def _keep(ways: list[_Times], new: _Times) -> None:
    """Add a way unless another is nowhere later; drop those that it makes needless."""
    for old in ways:
        if all(map(le, old, new)):
            return
    ways[:] = [old for old in ways if not all(map(le, new, old))]
    ways.append(new)


class _Step:
    """Run one operator: from the times before it to those after it."""

    def __init__(self, device: int, awaits: int, length: float, tells: int, delay: float) -> None:
        self.device, self.awaits, self.length = device, awaits, length
        self.tells, self.delay = tells, delay

    def __call__(self, times: _Times) -> _Times:
        after = list(times)
        end = times[self.device] + self.length
        if self.awaits >= 0:
            end = max(times[self.device], times[self.awaits]) + self.length
            after[self.awaits] = 0.0
        after[self.device] = end
        if self.tells >= 0:
            after[self.tells] = end + self.delay
        return tuple(after)


class _Enumeration:
    """What may run after what."""

    def __init__(self, scenario: Scenario, within_limits: bool, fused: bool) -> None:
        self.scenario, self.within_limits, self.fused = scenario, within_limits, fused
        self.cells = [(s, m) for s in range(scenario.stages) for m in range(scenario.microbatches)]
        self.place = {cell: k for k, cell in enumerate(self.cells)}
        messages = [
            (s, m, kind)
            for s, m in self.cells
            for kind, other in ((_DOWN, s - 1), (_UP, s + 1))
            if 0 <= other < scenario.stages and scenario.placement[other] != scenario.placement[s]
        ]
        # Index of the time at which the message to an operator arrives.
        self.message = {to: scenario.devices + k for k, to in enumerate(messages)}
        self.start: _Times = (0.0,) * (scenario.devices + len(messages))

    def _bit(self, s: int, m: int, kind: int) -> int:
        return 1 << 3 * self.place[s, m] + kind

    def _held(self, done: int, device: int) -> float:
        held = 0.0
        for s, m in self.cells:
            if self.scenario.placement[s] == device and done & self._bit(s, m, _DOWN):
                held += 1
                if done & self._bit(s, m, _UP):
                    held -= self.scenario.released_by_b[s]
                if done & self._bit(s, m, _BOTH):
                    held -= 1 - self.scenario.released_by_b[s]
        return held

    def steps(self, done: int) -> Iterator[tuple[int, int, _Step]]:
        """Yield what may run next: how many bits it sets, the bits, and what it does."""
        scenario, last = self.scenario, self.scenario.stages - 1
        room = [
            not self.within_limits
            or self._held(done, d) + 1 <= float(scenario.activation_limit[d]) + 1e-9
            for d in range(scenario.devices)
        ]
        for s, m in self.cells:
            device = scenario.placement[s]
            f, b, w = (self._bit(s, m, kind) for kind in (_DOWN, _UP, _BOTH))
            if not done & f:
                if room[device] and (s == 0 or done & self._bit(s - 1, m, _DOWN)):
                    delay = float(scenario.delay_ms[s, DOWN]) if s < last else 0.0
                    tells = self.message.get((s + 1, m, _DOWN), -1)
                    length = float(scenario.forward_ms[s, m])
                    awaits = self.message.get((s, m, _DOWN), -1)
                    yield 1, f, _Step(device, awaits, length, tells, delay)
            elif not done & b:
                if s == last or done & self._bit(s + 1, m, _UP):
                    delay = float(scenario.delay_ms[s - 1, UP]) if s else 0.0
                    tells = self.message.get((s - 1, m, _UP), -1)
                    awaits = self.message.get((s, m, _UP), -1)
                    length = float(scenario.backward_ms[s, m])
                    yield 1, b, _Step(device, awaits, length, tells, delay)
                    if self.fused:
                        length = float(scenario.fused_backward_ms[s, m])
                        yield 2, b | w, _Step(device, awaits, length, tells, delay)
            elif not done & w:
                yield 1, w, _Step(device, -1, float(scenario.weight_ms[s, m]), -1, 0.0)
