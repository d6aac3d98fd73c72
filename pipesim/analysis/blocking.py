"""Lower bounds on the iteration time where kernels queue up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from pipesim.analysis.bounds import lower_bound_ms
from pipesim.scenario import DOWN, KINDS, UP, Array, Scenario
from pipesim.transport import Exchange, Nccl, Transport

__all__ = ["bound_over_ms"]


class _Sends(NamedTuple):
    """The messages of one stage in one direction, by micro-batch; all that a device sends late.

    Attributes
    ----------
    busy_ms : float
        The kernel that each one occupies the sender's stream with.
    head_ms : array, shape [N]
        The earliest time at which it can be sent.
    tail_ms : array, shape [N]
        The shortest time from the end of that kernel to the end of the iteration.
    """

    peer: int
    direction: int
    busy_ms: float
    head_ms: Array
    tail_ms: Array


def bound_over_ms(scenario: Scenario, over: Transport) -> float:
    """A time that no schedule of a scenario can beat over a transport.

    It is :func:`~.bounds.lower_bound_ms` with what messages cost, or longer where kernels queue up
    and links are slow by occupancy. The busy kernels of a stream follow each other, in one group or
    in several. So for any sends that share a device's stream: the earliest time at which one of
    them can be sent, the kernels of all, and the shortest time that must still pass after one of
    them. The same holds for the messages of two devices, both ways, where each is a kernel of its
    own and one stream carries them all.

    While a busy kernel runs, its device starts no operator: it runs beside one at most, and beside
    none where a device is blocked while it communicates. What it takes longer than the longest
    operator comes on top of all that the device computes.

    Parameters
    ----------
    scenario : Scenario
        Its delays, too.
    over : Transport
        How messages travel.

    Examples
    --------
    >>> slow = Scenario().with_delay(40, links=[0])
    >>> [bound_over_ms(slow, over) for over in (Nccl(), Exchange(), Nccl("peer", fused=False))]
    [650.0, 890.0, 990.0]
    """
    told = scenario.with_message_cost(over.costs_ms(scenario))
    bounds = [lower_bound_ms(told)]
    if isinstance(over, Nccl | Exchange):
        every = [
            [send for send in _sends(told, scenario, device) if send.busy_ms]
            for device in range(scenario.devices)
        ]
        for device, sends in enumerate(every):
            bounds += map(_one_after_the_other, _on_one_stream(sends, over))
            if sends:
                beside_ms = 0.0 if isinstance(over, Exchange) else _longest_ms(told, device)
                bounds.append(_device_ms(told, sends, device, beside_ms))
        bounds += map(_one_after_the_other, _on_one_stream_of_both(every, scenario, over))
    return max(bounds)


def _sends(told: Scenario, scenario: Scenario, device: int) -> Iterator[_Sends]:
    """What a device sends; ``told`` has delays with costs, ``scenario`` those of links alone."""
    forward, backward = told.forward_ms, np.minimum(told.backward_ms, told.fused_backward_ms)
    weight = np.minimum(told.backward_ms + told.weight_ms, told.fused_backward_ms) - backward
    delay, busy = told.delay_ms, scenario.occupancy_ms
    down = np.cumsum(forward, axis=0) + _above(delay[:, DOWN])  # ends of forwards
    up = np.cumsum(backward, axis=0) + _above(delay[:, UP]) + weight[0]  # from a B's start
    chain = down[-1] + up[-1]  # of a micro-batch
    for stage in scenario.stages_of[device]:
        if stage + 1 < scenario.stages and scenario.crosses(stage):
            busy_ms = float(busy[stage, DOWN])
            peer = scenario.placement[stage + 1]
            yield _Sends(peer, DOWN, busy_ms, down[stage], chain - down[stage] - busy_ms)
        if stage and scenario.crosses(stage - 1):
            busy_ms = float(busy[stage - 1, UP])
            peer = scenario.placement[stage - 1]
            left = up[stage] - backward[stage]
            yield _Sends(peer, UP, busy_ms, chain - left, left - busy_ms)


def _above(delays: Array) -> Array:
    """Delay between stage 0 and each stage, shape [S, 1]."""
    return np.concatenate([[0.0], np.cumsum(delays)])[:, None]


def _on_one_stream(sends: list[_Sends], over: Nccl | Exchange) -> Iterator[list[_Sends]]:
    """Yield sends that share a stream: all of it, and each kind alone."""
    for send in sends:
        yield [send]
    if isinstance(over, Exchange) or over.p2p_streams == "device":
        streams = [sends]
    elif over.p2p_streams == "peer":
        streams = [[s for s in sends if s.peer == peer] for peer in {s.peer for s in sends}]
    else:
        streams = []  # two ranks may share several ways one way, which are alone above
    yield from (stream for stream in streams if stream)


def _one_after_the_other(sends: list[_Sends]) -> float:
    head = min(float(send.head_ms.min()) for send in sends)
    tail = min(float(send.tail_ms.min()) for send in sends)
    return head + sum(send.busy_ms * len(send.head_ms) for send in sends) + tail


def _on_one_stream_of_both(
    every: list[list[_Sends]], scenario: Scenario, over: Nccl | Exchange
) -> Iterator[list[_Sends]]:
    """Yield what two devices send each other, if that is one kernel after the other.

    Both have the kernels in the same order, as none begins before its other end does: where
    messages are eager, it may.
    """
    eager = isinstance(over, Nccl) and bool(
        over.eager_bytes and (scenario.message_bytes <= over.eager_bytes).any()
    )
    if isinstance(over, Exchange) or over.fused or over.p2p_streams == "direction" or eager:
        return
    for one, other in combinations(range(len(every)), 2):
        both = [s for s in every[one] if s.peer == other] + [
            s for s in every[other] if s.peer == one
        ]
        if both:
            yield both


def _longest_ms(scenario: Scenario, device: int) -> float:
    """The longest operator of a device."""
    own = list(scenario.stages_of[device])
    return max(float(scenario.durations_ms(kind)[own].max()) for kind in KINDS)


def _device_ms(told: Scenario, sends: list[_Sends], device: int, beside_ms: float) -> float:
    """The first operator's start, all operators, and what no operator runs beside of all sends."""
    own = list(told.stages_of[device])
    forward = told.forward_ms
    down = np.cumsum(forward, axis=0) + _above(told.delay_ms[:, DOWN])
    whole = np.minimum(told.backward_ms + told.weight_ms, told.fused_backward_ms)
    head = float((down - forward)[own].min())
    work = float((forward + whole)[own].sum())
    return (
        head + work + sum(max(send.busy_ms - beside_ms, 0.0) * len(send.head_ms) for send in sends)
    )
