"""Whole programs as sequences that planners can change, timed as the evaluator times them.

For transports where kernels queue up on a device. What a sequence is, says :mod:`.sequence_loops`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipesim.actions import Action, Batch, End, Op
from pipesim.engine.compiled.sequence_loops import NEVER, Pipeline, memory, times
from pipesim.engine.compiled.sequence_moves import anneal, fits
from pipesim.program import Group, Instruction, Post, Program
from pipesim.scenario import Kind, Scenario
from pipesim.transport import Exchange, Nccl
from pipesim.units import whole

__all__ = ["Sequence", "Sequences"]

_SAME = 1e-9
_KINDS: tuple[Kind, ...] = ("F", "B", "W")


class Sequence(NamedTuple):
    """A program: the type of each entry, and where messages share batches, shape [L]."""

    types: NDArray[np.int32]
    bits: NDArray[np.int8]

    @property
    def key(self) -> bytes:
        """The same for equal programs."""
        return self.types.tobytes() + self.bits.tobytes()


class Sequences:
    """Sequences of one scenario over one transport.

    Parameters
    ----------
    scenario : Scenario
        Its delays, too.
    over : Nccl or Exchange
        How messages travel.

    Attributes
    ----------
    pipeline : Pipeline
        The same in arrays, with times in whole numbers of ``unit_ms``.
    unit_ms : float
        So that the unit of time decides nothing.
    """

    def __init__(self, scenario: Scenario, over: Nccl | Exchange) -> None:
        self.scenario, self.over = scenario, over
        self.pipeline, self.unit_ms = _pipeline(scenario, over)
        self._memory = memory(self.pipeline)

    def makespan_ms(self, sequence: Sequence) -> float:
        """How long a program takes, as :class:`.evaluator.CompiledProgram` says."""
        makespan, _ = times(*sequence, self.pipeline, self._memory)
        return float(makespan * self.unit_ms)

    def fits(self, sequence: Sequence) -> bool:
        """Whether no device ever holds more activations than its limit."""
        times(*sequence, self.pipeline, self._memory)
        limits = self.scenario.activation_limit.copy()
        return bool(fits(*sequence, self.pipeline, self._memory, limits))

    def annealed(
        self,
        sequence: Sequence,
        moves: int,
        *,
        warm: float,
        cold: float,
        bound_ms: float,
        seed: int,
    ) -> Sequence:
        """Return what a number of moves leads to; never a longer program.

        Parameters
        ----------
        sequence : Sequence
            Where to start. Where limits are exceeded from the start, moves need not mend that.
        moves : int
            How many to try.
        warm, cold : float
            First and last temperature, in mean operator times.
        bound_ms : float
            No program is shorter: the search stops there.
        seed : int
            Of the random moves.
        """
        types, bits = sequence.types.copy(), sequence.bits.copy()
        mean = float(self.pipeline.durations_ms.mean())
        if mean > 0:
            alone = isinstance(self.over, Nccl) and not self.over.fused
            anneal(
                types, bits, self.pipeline, self._memory, self.scenario.activation_limit.copy(),
                not alone, moves, warm * mean, cold * mean,
                bound_ms / self.unit_ms * (1 + _SAME), np.random.default_rng(seed),
            )  # fmt: skip
        return Sequence(types, bits)

    def encoded(self, program: Program) -> Sequence | None:
        """Return a program as a sequence; None where there is none.

        That is if its micro-batches do not follow each other, a message stays out of the queue, or
        two streams disagree on which message is first.
        """
        graph: TopologicalSorter[Op | End] = TopologicalSorter()
        kernel: dict[tuple[int, End], int] = {}
        for device, instructions in enumerate(program.instructions):
            before: list[Op | End] = []
            for number, instruction in enumerate(instructions):
                parts = _parts(instruction)
                kernel |= {(device, part): number for part in parts if isinstance(part, End)}
                for part in parts:
                    graph.add(part, *before)
                before = parts or before
        try:
            order = list(_with_fused(graph.static_order()))
        except CycleError:
            return None
        types = [self._type(part) for part in order]
        for t, many in enumerate(self.pipeline.counts.tolist()):
            own = [part.microbatch for part, other in zip(order, types, strict=True) if other == t]
            if own != list(range(many)):
                return None
        bits = np.zeros(len(order), np.int8)
        last: dict[int, int | None] = {}
        for p, (t, part) in enumerate(zip(types, order, strict=True)):
            if isinstance(part, Op) and part.kind == "BW":
                bits[p] = 1
            for side, device in enumerate(self.pipeline.ends[t].tolist()):
                own_kernel = kernel.get((device, part)) if isinstance(part, End) else None
                if own_kernel is not None and last.get(device) == own_kernel:
                    bits[p] |= 1 << side
                last[device] = own_kernel
        return Sequence(np.array(types, np.int32), bits)

    def _type(self, part: Op | End) -> int:
        """The type of a part."""
        stages = self.scenario.stages
        if isinstance(part, End):
            up = part.result == "B"
            return 3 * stages + 2 * (part.stage - up) + up
        return _KINDS.index("B" if part.kind == "BW" else part.kind) * stages + part.stage

    def actions(self, sequence: Sequence) -> list[list[Action]]:
        """What each device does, with batches where messages share them."""
        scenario = self.scenario
        rows: list[list[Op | End]] = [[] for _ in range(scenario.devices)]
        batch: list[list[int]] = [[] for _ in range(scenario.devices)]
        seen = np.zeros(len(self.pipeline.counts), np.int64)
        fused: set[tuple[int, int]] = set()
        for t, own_bits in zip(sequence.types.tolist(), sequence.bits.tolist(), strict=True):
            row, stage = divmod(t, scenario.stages)
            m = int(seen[t])
            seen[t] += 1
            if row < len(_KINDS):
                kind = _KINDS[row]
                if kind == "B" and own_bits:
                    kind = "BW"
                    fused.add((stage, m))
                if kind != "W" or (stage, m) not in fused:
                    device = scenario.placement[stage]
                    rows[device].append(Op(kind, stage, m))
                    batch[device].append(NEVER)
                continue
            link, up = divmod(t - 3 * scenario.stages, 2)
            sending = End("SEND", "B", link + 1, m) if up else End("SEND", "F", link, m)
            for side, device in enumerate(self.pipeline.ends[t].tolist()):
                own = batch[device]
                joins = own and own[-1] != NEVER and own_bits >> side & 1
                own.append(own[-1] if joins else len(own))
                rows[device].append(sending if side == up else sending.other)
        return [_batched(row, own) for row, own in zip(rows, batch, strict=True)]


def _batched(row: list[Op | End], batch: list[int]) -> list[Action]:
    """Put what shares a batch into one."""
    actions: list[Action] = []
    for number, group in groupby(zip(batch, row, strict=True), key=lambda pair: pair[0]):
        parts = [part for _, part in group]
        ends = tuple(part for part in parts if isinstance(part, End))
        actions += [Batch(ends)] if number != NEVER and len(ends) > 1 else parts
    return actions


def _parts(instruction: Instruction) -> list[Op | End]:
    """The operator of an instruction, or its messages where they are sent."""
    if isinstance(instruction, Group):
        return [message.sending for message in (*instruction.sends, *instruction.receives)]
    return [] if isinstance(instruction, Post) else [instruction.op]


def _with_fused(parts: Iterable[Op | End]) -> Iterator[Op | End]:
    """Yield an entry for the W of each fused backward, too: before that of a later micro-batch."""
    waiting: dict[int, deque[Op]] = defaultdict(deque)
    for part in parts:
        if isinstance(part, Op) and part.kind == "W":
            own = waiting[part.stage]
            while own and own[0].microbatch < part.microbatch:
                yield own.popleft()
        yield part
        if isinstance(part, Op) and part.kind == "BW":
            waiting[part.stage].append(Op("W", part.stage, part.microbatch))
    for own in waiting.values():
        yield from own


def _pipeline(scenario: Scenario, over: Nccl | Exchange) -> tuple[Pipeline, float]:
    """What timing needs to know, in whole numbers of a unit."""
    stages, n, placement = scenario.stages, scenario.microbatches, scenario.placement
    counts = np.full(5 * stages - 2, n, np.int32)
    after = np.full(len(counts), NEVER, np.int32)
    ends = np.zeros((len(counts), 2), np.int32)
    sender = np.zeros(len(counts), np.int32)
    streams = np.zeros((len(counts), 2), np.int32)
    by_message = np.zeros((3, len(counts)))
    eager = np.zeros(len(counts), np.bool_)
    names: dict[object, int] = {}
    transfer_ms = over.transfer_ms(scenario.message_bytes)
    for stage in range(stages):
        ends[stage : 3 * stages : stages] = placement[stage]
        after[2 * stages + stage] = stages + stage
    after[2 * stages - 1] = stages - 1
    for link in range(stages - 1):
        devices = placement[link], placement[link + 1]
        for up in (0, 1):
            t = 3 * stages + 2 * link + up
            source, target = (stages + link + 1, stages + link) if up else (link, link + 1)
            if devices[0] == devices[1]:
                counts[t], after[target] = 0, source
                continue
            after[t], after[target], ends[t], sender[t] = source, t, devices, up
            for side, device in enumerate(devices):
                stream = _stream(over, device, devices[1 - side], sends=side == up)
                streams[t, side] = names.setdefault(stream, len(names))
            by_message[:, t] = (
                scenario.occupancy_ms[link, up], transfer_ms[link], scenario.latency_ms[link, up],
            )  # fmt: skip
            if isinstance(over, Nccl) and over.eager_bytes > 0:
                eager[t] = scenario.message_bytes[link] <= over.eager_bytes
    operators = np.concatenate([scenario.durations_ms(kind) for kind in _KINDS])
    (durations, fused, messages), unit_ms = whole(
        operators, scenario.durations_ms("BW"), by_message
    )
    busy, transfer, latency = messages
    pipeline = Pipeline(
        counts, after, ends, sender, streams, durations, fused, busy, transfer, latency, eager,
        isinstance(over, Exchange), scenario.released_by_b.copy(),
    )  # fmt: skip
    return pipeline, unit_ms


def _stream(over: Nccl | Exchange, device: int, peer: int, *, sends: bool) -> object:
    """The stream of a kernel, as lowering chooses it."""
    if isinstance(over, Exchange) or over.p2p_streams == "device":
        return device
    return (device, peer) if over.p2p_streams == "peer" else (device, peer, sends)
