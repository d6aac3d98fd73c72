"""When operators can run in an iteration that takes no longer than a horizon.

A device sees little of the others: the moment at which it may start an operator, and the
moment at which it must have ended it. Within these, all its orders that respect the
activation limit can be searched at once. Operators of one kind run in the order of their
micro-batches, so a state of the device is a triple (i, j, l) of forwards, backwards and
weights done, and only the earliest time to be in it matters:

    E(i+1, j, l) ← max(E(i, j, l), head of F_i) + F_i      if ≤ deadline of F_i
    E(i, j+1, l) ← max(E(i, j, l), head of B_j) + B_j      if j < i and ≤ deadline of B_j
    E(i, j, l+1) ← E(i, j, l) + W_l                        if l < j

over the states with i − r·j − (1 − r)·l ≤ limit, r being what a B gives back. The same
backwards gives the latest time to be in a state. What no way through the states uses is
impossible, so heads grow and deadlines shrink, on this device and, through the data that
operators wait for, on its neighbours; again until nothing changes. If some device has no way
left, no schedule is that short.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from pipesim.analysis.over import OutOfTime, Over, go_on, never
from pipesim.scenario import DOWN, UP, Array, Scenario

__all__ = ["MOST_STATES", "TOLERANCE", "Ranges", "Windows", "find_windows", "searchable"]

MOST_STATES = 20_000_000
"""Of all devices together; a larger lattice takes too much memory and time."""

TOLERANCE = 1e-9
"""Part of the horizon by which times may be off, by rounding."""

_ROUNDS = 60
_INF = np.inf

Ranges = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Bounds on every start and end within a horizon.

    Attributes
    ----------
    horizon_ms : float
        The iteration takes no longer.
    forward_head_ms, backward_head_ms : array, shape [S, N]
        Earliest start of each F and B.
    forward_deadline_ms, backward_deadline_ms : array, shape [S, N]
        Latest end of each F and B.
    backwards_before_forward, weights_before_forward, weights_before_backward : array
        Shape [S, N, 2]: fewest and most operators of the first kind that the stage runs
        before each one of the second.
    """

    horizon_ms: float
    forward_head_ms: Array
    backward_head_ms: Array
    forward_deadline_ms: Array
    backward_deadline_ms: Array
    backwards_before_forward: Ranges
    weights_before_forward: Ranges
    weights_before_backward: Ranges


def searchable(scenario: Scenario) -> bool:
    """Whether the scenario is small enough for :func:`find_windows`."""
    n = scenario.microbatches
    return scenario.stages * (2 * n + 1) * (n + 1) ** 2 <= MOST_STATES


def find_windows(
    scenario: Scenario, horizon_ms: float, *, rounds: int = _ROUNDS, over: Over = never
) -> Windows | None:
    """Bound every start and end of the split operators within a horizon.

    Parameters
    ----------
    scenario : Scenario
        Its operators of one kind and stage are taken in the order of their micro-batches.
    horizon_ms : float
        Longest iteration to consider.
    rounds : int
        Most passes over all devices; fewer are faster and give wider windows.
    over : callable
        Asked again and again whether to end, even within a pass.

    Returns
    -------
    Windows or None
        None where no schedule is that short, which is a proof.

    Examples
    --------
    >>> scenario = Scenario(activation_limit=4)
    >>> find_windows(scenario, 389.0) is None
    True
    >>> windows = find_windows(scenario, 390.0)
    >>> windows.backwards_before_forward[0, 4].tolist()  # the 5th forward needs room
    [1, 4]
    """
    return _Search(scenario, horizon_ms, over).run(rounds)


class _Search:
    """The windows of one horizon, narrowed in place."""

    def __init__(self, scenario: Scenario, horizon_ms: float, over: Over) -> None:
        self.scenario, self.horizon, self.over = scenario, float(horizon_ms), over
        self.slack = TOLERANCE * self.horizon
        self.stages, self.n = scenario.stages, scenario.microbatches
        self.f, self.b, self.w = (np.array(scenario.durations_ms(k)) for k in ("F", "B", "W"))
        shape = (self.stages, self.n)
        self.f_head, self.b_head = np.zeros(shape), np.zeros(shape)
        self.f_last, self.b_last = np.full(shape, self.horizon), np.full(shape, self.horizon)
        full = np.stack([np.zeros(shape, int), np.full(shape, self.n)], axis=-1)
        self.b_in_f, self.w_in_f, self.w_in_b = full.copy(), full.copy(), full.copy()
        self.axis = np.arange(self.n + 1)
        # Work of the first l weights, so that a row of states is filled by one running minimum.
        self.w_done = np.concatenate([np.zeros((self.stages, 1)), self.w.cumsum(axis=1)], axis=1)
        self.w_done = self.w_done[:, None, :]

    def run(self, rounds: int) -> Windows | None:
        for _ in range(rounds):
            self._follow_data()
            if self._late(self.f_head + self.f, self.f_last):
                return None
            if self._late(self.b_head + self.b, self.b_last) or not self._devices_keep_up():
                return None
            known = self._windows()
            try:
                if not self._search_orders():
                    return None
            except OutOfTime:
                return known
            before = (known.forward_head_ms, known.backward_head_ms,
                      known.forward_deadline_ms, known.backward_deadline_ms)  # fmt: skip
            pairs = zip(before, self._times(), strict=True)
            moved = max(float(np.abs(was - now).max()) for was, now in pairs)
            if moved <= 1e3 * self.slack:
                break
        return self._windows()

    def _times(self) -> tuple[Array, Array, Array, Array]:
        return self.f_head, self.b_head, self.f_last, self.b_last

    def _windows(self) -> Windows:
        f_head, b_head, f_last, b_last = (a.copy() for a in self._times())
        ranges = (a.copy() for a in (self.b_in_f, self.w_in_f, self.w_in_b))
        return Windows(self.horizon, f_head, b_head, f_last, b_last, *ranges)

    def _late(self, ends: Array, deadlines: Array) -> bool:
        return bool((ends > deadlines + self.slack).any())

    # -- between devices -----------------------------------------------------------------

    def _follow_data(self) -> None:
        """Carry heads and deadlines along the data and along each kind's order."""
        f, b, delays = self.f, self.b, self.scenario.delay_ms
        f_head, b_head, f_last, b_last = self.f_head, self.b_head, self.f_last, self.b_last
        for s in range(self.stages):
            if s:
                _raise(f_head[s], f_head[s - 1] + f[s - 1] + delays[s - 1, DOWN])
                _lower(b_last[s], b_last[s - 1] - b[s - 1] - delays[s - 1, UP])
            _raise(f_head[s], _chained(f_head[s], f[s]))
            _lower(b_last[s], _chained_back(b_last[s], b[s]))
        for s in reversed(range(self.stages)):
            _raise(b_head[s], f_head[s] + f[s])
            _lower(f_last[s], b_last[s] - b[s])
            if s < self.stages - 1:
                _raise(b_head[s], b_head[s + 1] + b[s + 1] + delays[s, UP])
                _lower(f_last[s], f_last[s + 1] - f[s + 1] - delays[s, DOWN])
            _raise(b_head[s], _chained(b_head[s], b[s]))
            _lower(f_last[s], _chained_back(f_last[s], f[s]))

    def _devices_keep_up(self) -> bool:
        """Whether each device of several stages could meet all deadlines by preemption."""
        rest = self.horizon - (self.w_done[:, 0, -1:] - self.w_done[:, 0, 1:])
        kinds = (
            (self.f_head, self.f, self.f_last),
            (self.b_head, self.b, self.b_last),
            (self.b_head + self.b, self.w, rest),
        )
        for stages in self.scenario.stages_of:
            if len(stages) > 1:
                own = list(stages)
                heads, lengths, deadlines = (
                    np.concatenate([kind[i][own].ravel() for kind in kinds]).tolist()
                    for i in range(3)
                )
                if not _preemptive(heads, lengths, deadlines, self.slack):
                    return False
        return True

    # -- on one device -------------------------------------------------------------------

    def _valid(self, t: int) -> NDArray[np.bool_]:
        """States (i, t − i, l) that exist and fit the limit, shape [S, i, l]."""
        i, j = self.axis[None, :, None], t - self.axis[None, :, None]
        weights, part = self.axis[None, None, :], self.scenario.released("B")[:, None, None]
        place = np.array(self.scenario.placement)
        # Earlier stages of the device have run as many forwards, and not more backwards.
        above = np.array([int((place[:s] == d).sum()) for s, d in enumerate(place)])
        held = i - part * j - (1 - part) * weights + above[:, None, None] * (i - j)
        limit = np.asarray(self.scenario.activation_limit)[place][:, None, None]
        fits: NDArray[np.bool_] = held <= limit + TOLERANCE
        return (j >= 0) & (j <= i) & (weights <= j) & fits

    def _columns(self, t: int, values: Array, beyond: float) -> Array:
        """Values of B_(t−i) for each i; ``beyond`` where there is no such B."""
        j = t - self.axis
        there = (j >= 0) & (j < self.n)
        picked: Array = np.where(there, values[:, np.where(there, j, 0)], beyond)
        return picked[:, :, None]

    def _search_orders(self) -> bool:
        """Narrow all windows to what some order of each device uses; False if there is none."""
        states = self._earliest()
        if self._late(states[-1][:, -1, -1], np.array(self.horizon)):
            return False
        self._latest(states)
        return bool(np.isfinite(self.f_head).all() and np.isfinite(self.b_head).all())

    def _earliest(self) -> list[Array]:
        """Earliest time of each state, by t = i + j, each of shape [S, i, l]."""
        now = np.full((self.stages, self.n + 1, self.n + 1), _INF)
        now[:, 0, 0] = 0.0
        states = [now]
        for t in range(2 * self.n):
            go_on(self.over)
            ends = np.maximum(now, self._columns(t, self.b_head, _INF))
            ends += self._columns(t, self.b, 0.0)
            ends[ends > self._columns(t, self.b_last, -_INF) + self.slack] = _INF
            forward = np.maximum(now[:, :-1], self.f_head[:, :, None]) + self.f[:, :, None]
            forward[forward > self.f_last[:, :, None] + self.slack] = _INF
            _lower(ends[:, 1:], forward)
            impossible = ~self._valid(t + 1)
            ends[impossible] = _INF
            now = np.minimum.accumulate(ends - self.w_done, axis=2) + self.w_done
            now[impossible] = _INF
            states.append(now)
        return states

    def _latest(self, states: list[Array]) -> None:
        """Walk back from the end; every step that is in time at both ends is possible."""
        f_head, f_last = self.f_head.copy(), self.f_last.copy()
        b_head, b_last = self.b_head.copy(), self.b_last.copy()
        self.f_head[:], self.b_head[:] = _INF, _INF
        self.f_last[:], self.b_last[:] = -_INF, -_INF
        for ranges in (self.b_in_f, self.w_in_f, self.w_in_b):
            ranges[..., 0], ranges[..., 1] = self.n, 0
        late = np.full((self.stages, self.n + 1, self.n + 1), -_INF)
        late[:, -1, -1] = self.horizon
        late = self._weights_back(late, 2 * self.n)
        for t in range(2 * self.n - 1, -1, -1):
            go_on(self.over)
            now, axis = states[t], self.axis
            f_end = np.minimum(late[:, 1:], f_last[:, :, None])
            f_start = np.maximum(now[:, :-1], f_head[:, :, None])
            f_ok = f_start + self.f[:, :, None] <= f_end + self.slack
            _lower(self.f_head, np.where(f_ok, f_start, _INF).min(axis=2))
            _raise(self.f_last, np.where(f_ok, f_end, -_INF).max(axis=2))
            j = t - axis[:-1]
            used = f_ok.any(axis=2)
            _widen(self.b_in_f, np.where(used, j, self.n), np.where(used, j, 0))
            _widen(self.w_in_f, *self._span(f_ok))

            head, length = self._columns(t, b_head, _INF), self._columns(t, self.b, 0.0)
            b_end = np.minimum(late, self._columns(t, b_last, -_INF))
            b_start = np.maximum(now, head)
            b_ok = b_start + length <= b_end + self.slack
            rows = np.flatnonzero((t - axis >= 0) & (t - axis < self.n))
            which = t - rows
            self.b_head[:, which] = np.minimum(
                self.b_head[:, which], np.where(b_ok, b_start, _INF).min(axis=2)[:, rows]
            )
            self.b_last[:, which] = np.maximum(
                self.b_last[:, which], np.where(b_ok, b_end, -_INF).max(axis=2)[:, rows]
            )
            fewest, most = self._span(b_ok)
            ranges = self.w_in_b[:, which]
            _widen(ranges, fewest[:, rows], most[:, rows])
            self.w_in_b[:, which] = ranges

            late = b_end - length
            late[late < head - self.slack] = -_INF
            forward = f_end - self.f[:, :, None]
            forward[forward < f_head[:, :, None] - self.slack] = -_INF
            _raise(late[:, :-1], forward)
            late = self._weights_back(late, t)

    def _weights_back(self, late: Array, t: int) -> Array:
        impossible = ~self._valid(t)
        late[impossible] = -_INF
        flipped = np.maximum.accumulate((late + self.w_done)[:, :, ::-1], axis=2)[:, :, ::-1]
        result: Array = flipped - self.w_done
        result[impossible] = -_INF
        return result

    def _span(self, possible: NDArray[np.bool_]) -> tuple[Ranges, Ranges]:
        """Smallest and largest l of the possible steps; (n, 0) where there is none."""
        fewest = np.where(possible, self.axis, self.n).min(axis=2)
        return fewest, np.where(possible, self.axis, 0).max(axis=2)


def _raise(values: Array, to: Array) -> None:
    np.maximum(values, to, out=values)


def _lower(values: Array, to: Array) -> None:
    np.minimum(values, to, out=values)


def _widen(ranges: Ranges, fewest: Ranges, most: Ranges) -> None:
    ranges[..., 0] = np.minimum(ranges[..., 0], fewest)
    ranges[..., 1] = np.maximum(ranges[..., 1], most)


def _chained(heads: Array, lengths: Array) -> Array:
    """Earliest starts of operators that run one after the other."""
    done = lengths.cumsum() - lengths
    chained: Array = np.maximum.accumulate(heads - done) + done
    return chained


def _chained_back(deadlines: Array, lengths: Array) -> Array:
    """Latest ends of operators that run one after the other."""
    done = lengths.cumsum()
    chained: Array = np.minimum.accumulate((deadlines - done)[::-1])[::-1] + done
    return chained


def _preemptive(
    heads: list[float], lengths: list[float], deadlines: list[float], slack: float
) -> bool:
    """Whether preemption, earliest deadline first, meets all deadlines (Jackson 1955)."""
    order = sorted(range(len(heads)), key=heads.__getitem__)
    ready: list[tuple[float, float]] = []  # deadline, what is left
    now, pop, push = 0.0, heappop, heappush
    k = 0
    while k < len(order) or ready:
        if not ready:
            now = max(now, heads[order[k]])
        while k < len(order) and heads[order[k]] <= now:
            push(ready, (deadlines[order[k]], lengths[order[k]]))
            k += 1
        deadline, left = pop(ready)
        until = heads[order[k]] if k < len(order) else _INF
        if now + left > until:
            push(ready, (deadline, left - (until - now)))
            now = until
            continue
        now += left
        if now > deadline + slack:
            return False
    return True
