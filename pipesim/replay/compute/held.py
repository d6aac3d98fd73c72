"""Operators that take the time that a scenario says: ``sleep`` and ``matmul``.

A GPU starts a kernel microseconds after what it waits for; a thread may take half a
millisecond. ``sleep`` counts an operator's time from when it could have started, so that this
lag does not add up over an iteration, and sleeps no longer than until its time is over
(:attr:`pipesim.replay.run.run.Run.has_logical_times`).

Their messages carry a stamp of who sent them in which iteration, and every operator checks
the one that it gets: a message that is lost, duplicated or mistaken for another ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from pipesim.errors import ReplayError
from pipesim.replay.compute.work import Payload
from pipesim.replay.run.run import Run
from pipesim.runtime.delegate import hold_until
from pipesim.schedule import Op

__all__ = ["Held", "busy", "multiplying", "sleeping"]

_CALIBRATION_S = 0.3


class Held:
    """Operators without results.

    Parameters
    ----------
    run : Run
        Whose scenario says how long they take.
    hold : callable
        Takes up a number of milliseconds since a time in nanoseconds.
    device : torch.device
        Where messages are made and read.
    """

    def __init__(self, run: Run, hold: Callable[[int, float], None], device: torch.device) -> None:
        self._run = run
        self._hold = hold
        self._device = device
        self._iteration = 0
        self._payloads = [stamped(run, link) for link in range(run.scenario.stages - 1)]

    def payload(self, link: int) -> Payload:
        """Return what crosses ``link``: the scenario's bytes, and at least a stamp."""
        return self._payloads[link]

    def begin(self, iteration: int) -> None:
        """Stamp with this iteration from now on."""
        self._iteration = iteration
        self._wrong = torch.zeros((), dtype=torch.int64, device=self._device)

    def run(self, op: Op, received: Tensor | None, start_ns: int) -> Tensor | None:
        """Take the operator's time."""
        neighbours = [need for need in self._run.schedule.needs(op) if need.stage != op.stage]
        if neighbours:
            self._check(op, neighbours[0], received)
        link = op.stage if op.kind == "F" else op.stage - 1
        output: Tensor | None = None
        if op.kind != "W" and 0 <= link < self._run.scenario.stages - 1:
            output = self.payload(link).empty(self._device)
            output[:1].fill_(self._stamp(op))
        self._hold(start_ns, self._run.durations_ms[op])
        return output

    def _check(self, op: Op, need: Op, received: Tensor | None) -> None:
        """Compare the stamp: at once, or at the end on a GPU, for which nobody may wait."""
        wanted = self._stamp(need)
        if received is not None and self._device.type != "cpu":
            self._wrong += received[0] != wanted
        elif received is None or int(received[0]) != wanted:
            raise ReplayError(f"{op} got something other than what {need} sends")

    def _stamp(self, op: Op) -> int:
        return self._iteration * len(self._run.ops) + self._run.ops[op]

    def finish(self) -> None:
        """Make sure that every operator got what it needs."""
        if wrong := int(self._wrong):
            raise ReplayError(f"{wrong} operators got something other than what they need")

    def report(self) -> dict[str, object]:
        """Nothing to report."""
        return {}


def stamped(run: Run, link: int) -> Payload:
    """Return the payload of a link: the scenario's bytes, and at least a stamp."""
    size = float(run.scenario.message_bytes[link])
    return Payload((max(1, -(-int(size) // 8)),), torch.int64)


def sleeping(since_ns: int, time_ms: float) -> None:
    """Hold a CPU device without using the CPU."""
    hold_until(since_ns + round(time_ms * 1e6))


def multiplying(
    device: torch.device, dtype: torch.dtype, size: int
) -> Callable[[int, float], None]:
    """Return what multiplies square matrices for some milliseconds; measures them first."""
    left = torch.rand(size, size, device=device, dtype=dtype)
    right = torch.rand(size, size, device=device, dtype=dtype)
    out = torch.empty_like(left)

    def products(number: int) -> None:
        for _ in range(number):
            torch.mm(left, right, out=out)

    each = _seconds_each(products, device)

    def hold(_: int, time_ms: float) -> None:
        products(round(time_ms / 1e3 / each))

    return hold


def busy(device: torch.device) -> Callable[[int, float], None]:
    """Return what keeps a GPU's stream busy for some milliseconds; measures it first."""
    unit = 10_000

    def spin(units: int) -> None:
        if units:
            torch.cuda._sleep(units * unit)  # type: ignore[no-untyped-call]

    each = _seconds_each(spin, device)

    def hold(_: int, time_ms: float) -> None:
        spin(round(time_ms / 1e3 / each))

    return hold


def _seconds_each(repeat: Callable[[int], None], device: torch.device) -> float:
    """Measure what one of many takes."""

    def seconds(number: int) -> float:
        _synchronize(device)
        start = time.perf_counter()
        repeat(number)
        _synchronize(device)
        return time.perf_counter() - start

    number = 1
    while seconds(number) < _CALIBRATION_S / 10:
        number *= 2
    return min(seconds(number) for _ in range(5)) / number


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
