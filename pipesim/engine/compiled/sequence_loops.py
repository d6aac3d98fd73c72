"""Whole programs as one sequence, timed as machine code.

A sequence holds every operator and every message between devices once, in an order in which each
stands behind what it needs. What each device launches is what concerns it, in this order. So
both ends of every stream agree on the order, and no such program can hang: an operator, a kernel
and a transfer wait for what stands before them alone.

Of an entry only its *type* is kept: F, B and W of each stage, and the activations and gradients
of each link. Its micro-batch is how many of its type stand before it. Beside it stand two bits.
Those of a message say at which end, of the lower and of the upper stage of its link, it is launched
in one batch with the message before it on that device, if no operator stands between. The first of
a B says that it is fused with its W, whose own entry is then passed over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipesim.engine.compiled.loops import jit
from pipesim.scenario import Array

__all__ = [
    "NEVER",
    "Bits",
    "Memory",
    "Pipeline",
    "Positions",
    "Types",
    "memory",
    "numbered",
    "times",
]

Types = NDArray[np.int32]
Bits = NDArray[np.int8]
Positions = NDArray[np.int64]

NEVER = -1
"""No such type, device or position."""


class Pipeline(NamedTuple):
    """What timing a sequence needs to know. T types: 3 S of operators, then 2 (S − 1) messages.

    Attributes
    ----------
    counts : int array, shape [T]
        How many there are of each type: N, or no messages between stages on one device.
    after : int array, shape [T]
        The type whose entry of the same micro-batch each one needs; ``NEVER``: none.
    ends : int array, shape [T, 2]
        The device of an operator, twice; of a message the devices of the lower and of the upper
        stage of its link.
    sender : int array, shape [T]
        Which of the two sends.
    streams : int array, shape [T, 2]
        The stream of a message's kernel at each end, numbered over all devices.
    durations_ms, fused_ms : arrays, shape [3 S, N] and [S, N]
        Of operators, and of a B fused with its W.
    busy_ms, transfer_ms, latency_ms : arrays, shape [T]
        Of messages: the busy kernel before the sender's, the transfer, and the flight after it.
    eager : bool array, shape [T]
        Whether a message does not wait for its receiver.
    blocking : bool
        Whether a device launches nothing while a kernel of its own runs, nor a kernel while it
        computes.
    gives_back : array, shape [S]
        The part of an activation that a B gives back, if it is not fused.
    """

    counts: Types
    after: Types
    ends: Types
    sender: Types
    streams: Types
    durations_ms: Array
    fused_ms: Array
    busy_ms: Array
    transfer_ms: Array
    latency_ms: Array
    eager: NDArray[np.bool_]
    blocking: bool
    gives_back: Array


class Memory(NamedTuple):
    """What :func:`times` works in, and what it leaves there for a search.

    Attributes
    ----------
    number : int array, shape [L]
        The micro-batch of each entry.
    at : int array, shape [T, N]
        The position of each type and micro-batch.
    start_ms, end_ms : arrays, shape [L]
        Of operators; of messages the end of the transfer.
    cause : int array, shape [L]
        The entry that each one waited for last; ``NEVER``: none.
    """

    number: Positions
    at: Positions
    start_ms: Array
    end_ms: Array
    cause: Positions
    kernel: Positions  # [L, 2]: of each end of a message
    busy_ms: Array  # [2 L], of kernels, as what follows
    sent: Positions
    launch_ms: Array
    kernel_end_ms: Array
    launch_cause: Positions
    end_cause: Positions
    seen: Positions  # [T]
    batch: Positions  # [D]
    stamp: Positions  # [streams, 2]
    queue_ms: Array  # [D], as what follows
    computed_ms: Array
    queue_cause: Positions
    computed_cause: Positions
    held: Array
    stream_ms: Array  # [streams]
    stream_cause: Positions


def memory(pipeline: Pipeline) -> Memory:
    """Return the memory that :func:`times` works in."""
    length, types = int(pipeline.counts.sum()), len(pipeline.counts)
    devices, streams = int(pipeline.ends.max()) + 1, int(pipeline.streams.max(initial=0)) + 1

    def whole(*shape: int) -> Positions:
        return np.zeros(shape, np.int64)

    return Memory(
        whole(length), whole(types, pipeline.durations_ms.shape[1]),
        np.zeros(length), np.zeros(length), whole(length), whole(length, 2),
        np.zeros(2 * length), whole(2 * length), np.zeros(2 * length), np.zeros(2 * length),
        whole(2 * length), whole(2 * length), whole(types), whole(devices), whole(streams, 2),
        np.zeros(devices), np.zeros(devices), whole(devices), whole(devices), np.zeros(devices),
        np.zeros(streams), whole(streams),
    )  # fmt: skip


@jit
def _kernels(types: Types, bits: Bits, pipeline: Pipeline, memory: Memory) -> None:
    """Number the entries, and find the kernel of each end of a message."""
    operators, stages = len(pipeline.durations_ms), len(pipeline.fused_ms)
    number, at, kernel = memory.number, memory.at, memory.kernel
    busy_ms, sent, seen, batch, stamp = (
        memory.busy_ms, memory.sent, memory.seen, memory.batch, memory.stamp,
    )  # fmt: skip
    seen[:] = 0
    batch[:] = NEVER
    stamp[:] = NEVER
    kernels = batches = 0
    for p in range(len(types)):
        t = types[p]
        k = seen[t]
        seen[t] = k + 1
        number[p] = k
        at[t, k] = p
        if t < operators:
            if t < 2 * stages or not bits[at[t - stages, k]] & 1:
                batch[pipeline.ends[t, 0]] = NEVER
            continue
        for side in range(2):
            d, stream = pipeline.ends[t, side], pipeline.streams[t, side]
            if batch[d] == NEVER or not (bits[p] >> side) & 1:
                batch[d] = batches
                batches += 1
            if stamp[stream, 0] != batch[d]:
                stamp[stream, 0], stamp[stream, 1] = batch[d], kernels
                busy_ms[kernels] = 0.0
                sent[kernels] = NEVER
                memory.launch_ms[kernels] = -1.0
                kernels += 1
            g = stamp[stream, 1]
            kernel[p, side] = g
            if side == pipeline.sender[t]:
                busy_ms[g] += pipeline.busy_ms[t]
                sent[g] = max(sent[g], at[pipeline.after[t], k])


@jit
def numbered(types: Types, memory: Memory) -> None:
    """Number the entries of each type."""
    memory.seen[:] = 0
    for p in range(len(types)):
        memory.number[p] = memory.seen[types[p]]
        memory.seen[types[p]] += 1


@jit
def times(types: Types, bits: Bits, pipeline: Pipeline, memory: Memory) -> tuple[float, float]:
    """Return the makespan and the devices' mean end; fill ``memory``.

    The sequence is complete and in order.
    """
    _kernels(types, bits, pipeline, memory)
    operators, stages = len(pipeline.durations_ms), len(pipeline.fused_ms)
    number, at, start_ms, end_ms, cause = (
        memory.number, memory.at, memory.start_ms, memory.end_ms, memory.cause,
    )  # fmt: skip
    launch_ms, kernel_end_ms = memory.launch_ms, memory.kernel_end_ms
    queue_ms, computed_ms, stream_ms = memory.queue_ms, memory.computed_ms, memory.stream_ms
    queue_ms[:] = 0.0
    computed_ms[:] = 0.0
    stream_ms[:] = 0.0
    memory.queue_cause[:] = NEVER
    memory.computed_cause[:] = NEVER
    memory.stream_cause[:] = NEVER
    begin = np.inf
    for p in range(len(types)):
        t = types[p]
        need = pipeline.after[t]
        if t < operators:
            duration = pipeline.durations_ms[t, number[p]]
            if t >= stages and bits[at[stages + t % stages, number[p]]] & 1:
                if t >= 2 * stages:
                    start_ms[p], end_ms[p], cause[p] = 0.0, 0.0, NEVER
                    continue
                duration = pipeline.fused_ms[t - stages, number[p]]
            d = pipeline.ends[t, 0]
            start, why = computed_ms[d], memory.computed_cause[d]
            if queue_ms[d] > start:
                start, why = queue_ms[d], memory.queue_cause[d]
            if need >= operators:
                m = at[need, number[p]]
                g = memory.kernel[m, 1 - pipeline.sender[need]]
                if kernel_end_ms[g] > start:
                    start, why = kernel_end_ms[g], memory.end_cause[g]
                if end_ms[m] + pipeline.latency_ms[need] > start:
                    start, why = end_ms[m] + pipeline.latency_ms[need], m
            start_ms[p], cause[p] = start, why
            end_ms[p] = start + duration
            begin = min(begin, start)
            queue_ms[d], memory.queue_cause[d] = start, why
            computed_ms[d], memory.computed_cause[d] = end_ms[p], p
            continue
        for side in range(2):
            g = memory.kernel[p, side]
            if launch_ms[g] >= 0.0:
                continue
            d, stream = pipeline.ends[t, side], pipeline.streams[t, side]
            launch, why = queue_ms[d], memory.queue_cause[d]
            if stream_ms[stream] > launch:
                launch, why = stream_ms[stream], memory.stream_cause[stream]
            if pipeline.blocking and computed_ms[d] > launch:
                launch, why = computed_ms[d], memory.computed_cause[d]
            if memory.sent[g] != NEVER and end_ms[memory.sent[g]] > launch:
                launch, why = end_ms[memory.sent[g]], memory.sent[g]
            if memory.busy_ms[g] > 0.0:
                launch += memory.busy_ms[g]
            launch_ms[g] = kernel_end_ms[g] = launch
            memory.launch_cause[g] = why
            memory.end_cause[g] = p
            queue_ms[d], memory.queue_cause[d] = launch, p
        own = memory.kernel[p, pipeline.sender[t]]
        other = memory.kernel[p, 1 - pipeline.sender[t]]
        later = own
        if not pipeline.eager[t] and launch_ms[other] > launch_ms[own]:
            later = other
        start_ms[p] = launch_ms[later]
        end = launch_ms[later] + pipeline.transfer_ms[t]
        end_ms[p], cause[p] = end, memory.launch_cause[later]
        for side in range(2):
            g, d, stream = memory.kernel[p, side], pipeline.ends[t, side], pipeline.streams[t, side]
            if end > kernel_end_ms[g]:
                kernel_end_ms[g], memory.end_cause[g] = end, p
            stream_ms[stream], memory.stream_cause[stream] = kernel_end_ms[g], memory.end_cause[g]
            if pipeline.blocking:
                queue_ms[d], memory.queue_cause[d] = kernel_end_ms[g], memory.end_cause[g]
    finish = total = 0.0
    for end in computed_ms:
        finish = max(finish, end)
        total += end
    return finish - begin, total / len(computed_ms)
