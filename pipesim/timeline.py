"""The Timeline: what ran when. Every engine returns one; every table and figure reads one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from pipesim.program import Message
from pipesim.scenario import KINDS, Array, Scenario
from pipesim.schedule import Op

__all__ = ["CommSpan", "OpSpan", "PathKind", "Timeline"]

PathKind: TypeAlias = Literal["wire", "busy", "kernel", "copy-out", "delegate", "copy-in"]
"""What carried a message: a *wire* (in flight, blocking nobody), the *busy* kernel of an
injected delay, a communication *kernel* that holds its stream, or the steps of delegation."""


class OpSpan(NamedTuple):
    """One operator on its device's compute stream."""

    op: Op
    start_ms: float
    end_ms: float


class CommSpan(NamedTuple):
    """One step of a message's way.

    ``device`` is where it holds a resource: the sender, or the receiver of a ``copy-in``
    and of its own end of a ``kernel``.
    """

    message: Message
    path: PathKind
    device: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Timeline:
    """The compute and communication spans of one iteration.

    Parameters
    ----------
    scenario : Scenario
        What was run; memory sizes and limits are read from it.
    compute : sequence of sequence of OpSpan, shape [D][…]
        The operators of each device in the order in which they ran.
    comm : sequence of CommSpan
        The steps of every message between devices, in no particular order.
    """

    scenario: Scenario
    compute: Sequence[Sequence[OpSpan]]
    comm: Sequence[CommSpan] = ()

    @cached_property
    def spans(self) -> dict[Op, OpSpan]:
        """Every operator's span."""
        return {span.op: span for device in self.compute for span in device}

    @cached_property
    def start_ms(self) -> float:
        """The first start on any device."""
        return min(device[0].start_ms for device in self.compute)

    @cached_property
    def end_ms(self) -> float:
        """The last end on any device."""
        return max(device[-1].end_ms for device in self.compute)

    @property
    def iteration_ms(self) -> float:
        """The makespan: from the first start to the last end, over all devices."""
        return self.end_ms - self.start_ms

    @cached_property
    def stage_spans_ms(self) -> Array:
        """First start to last end of each device, shape [D]."""
        return np.array([d[-1].end_ms - d[0].start_ms for d in self.compute])

    @property
    def stage_span_ms(self) -> float:
        """The longest stage span, which papers also call iteration time."""
        return float(self.stage_spans_ms.max())

    @cached_property
    def busy_ms(self) -> Array:
        """Time that each device computes, shape [D]."""
        return np.array([sum(s.end_ms - s.start_ms for s in d) for d in self.compute])

    @property
    def bubble_fraction(self) -> float:
        """Part of the iteration, over all devices, in which no operator runs."""
        if self.iteration_ms == 0:
            return 0.0
        return float(1 - self.busy_ms.sum() / (len(self.compute) * self.iteration_ms))

    # -- memory --------------------------------------------------------------------------

    def in_flight(self, device: int) -> tuple[Array, Array]:
        """Activations held for a device over time, as a step function.

        An F takes one when it starts; B, W and BW give back when they end, before anything
        that starts at the same moment takes.

        Returns
        -------
        times_ms, held : arrays of one length
            ``held[k]`` stage activations from ``times_ms[k]`` until the next time.
        """
        spans = self.compute[device]
        released = {kind: self.scenario.released(kind) for kind in KINDS}
        takes = np.array([span.op.kind == "F" for span in spans])
        given = np.array([released[span.op.kind][span.op.stage] for span in spans])
        starts = np.array([span.start_ms for span in spans])
        ends = np.array([span.end_ms for span in spans])
        times, moment = np.unique(np.where(takes, starts, ends), return_inverse=True)
        taken = np.bincount(moment, weights=takes)
        held = np.cumsum(taken - np.bincount(moment, weights=given))
        # Sums of halves are exact; other parts leave a rounding error where zero is meant.
        held[np.abs(held) < 1e-9] = 0.0
        return times, held

    @cached_property
    def peak_activations(self) -> Array:
        """Most activations held for each device at once, host-held ones included, shape [D]."""
        return np.array([self.in_flight(d)[1].max() for d in range(len(self.compute))])

    def host_held(self, device: int) -> tuple[Array, Array]:
        """Activations over the device's own limit, which must live in host memory.

        Returns the same as :meth:`in_flight`.
        """
        times, held = self.in_flight(device)
        limit = float(self.scenario.activation_limit[device])
        return times, np.maximum(0.0, held - limit)

    @cached_property
    def peak_host_activations(self) -> Array:
        """Most activations held on each device's host at once, shape [D]."""
        return np.array([self.host_held(d)[1].max() for d in range(len(self.compute))])

    @property
    def peak_host_bytes(self) -> Array:
        """The same in bytes, shape [D]."""
        return self.peak_host_activations * self.scenario.activation_bytes
