"""The order of a device's messages: one that measured runs show, and the same at both ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from itertools import combinations, groupby, pairwise
from typing import Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.formats.operator_timeline import import_timelines
from pipesim.lowering import lower
from pipesim.program import Group, Message, Program
from pipesim.scenario import KINDS
from pipesim.schedule import Op, Schedule
from pipesim.transport import Delegated, Exchange, Nccl, Transport
from tests import ROOT
from tests.strategies import cases

TRACES = ROOT / "traces"
UNFUSED = Nccl(p2p_streams="peer", fused=False)
"""How the measured ZeroBubble runs send."""


class Place(NamedTuple):
    """Where one end of a message stands in its device's launch queue."""

    stream: Hashable
    group: int


def places(program: Program, device: int) -> dict[Message, Place]:
    """The messages of a device as they stand; those of one group share their place."""
    return {
        message: Place(instruction.stream, index)
        for index, instruction in enumerate(program.instructions[device])
        if isinstance(instruction, Group)
        for message in (*instruction.sends, *instruction.receives)
    }


def producers(program: Program, device: int) -> list[Op]:
    """The operators whose results a device sends and receives, as they stand in its queue."""
    return [message.producer for message in places(program, device)]


# -- both ends ---------------------------------------------------------------------------


def assert_ends_agree(program: Program) -> None:
    """Two messages never pass each other on a stream.

    NCCL pairs the sends and the receives of one direction by their order, so these are the same
    sequence at both ends. Of the two directions within one group, neither is first.
    """
    devices = range(program.schedule.devices)
    placement = program.schedule.placement
    ends = [places(program, device) for device in devices]
    for one, other in combinations(devices, 2):
        here, there = ends[one], ends[other]
        streams: dict[tuple[Hashable, Hashable], list[Message]] = defaultdict(list)
        for sender, receiver in ((one, other), (other, one)):
            sent, received = (
                [m for m in own if [placement[op.stage] for op in m] == [sender, receiver]]
                for own in (here, there)
            )
            assert sent == received
            for message in sent:
                streams[here[message].stream, there[message].stream].append(message)
        for messages in streams.values():
            messages.sort(key=lambda m: here[m].group)
            passed = -1
            for _, group in groupby(messages, key=lambda m: here[m].group):
                met = [there[message].group for message in group]
                assert passed <= min(met), "messages of the two directions pass each other"
                passed = max(passed, *met)


QUEUED: st.SearchStrategy[Transport] = st.one_of(
    st.builds(
        Nccl, p2p_streams=st.sampled_from(["device", "peer", "direction"]), fused=st.booleans()
    ),
    st.just(Exchange()),
    st.just(Delegated(only_slow=True)),
)
WIDE = Scenario(stages=8, microbatches=24)
TIED = Scenario(
    stages=2,
    microbatches=2,
    forward_ms=[[10.0, 20.0], [9.5, 10.0]],
    fused_backward_ms=[[5.25, 5.25], [10.0, 10.0]],
)
"""0F1 ends at 10 + 20, and 1BW0 at 10 + 9.5 + 10 and what a message takes, which is 0.5: the
twentieth of 10, the mean of eight operators."""
V_SHAPED = Scenario(stages=6, placement=Scenario.place("v", 3, 2), microbatches=6)


@given(cases(), QUEUED)
@example((TIED, plan(TIED, "1f1b")), Nccl(p2p_streams="peer", fused=False))
@example((TIED, plan(TIED, "1f1b")), Nccl(p2p_streams="device", fused=False))
@example((WIDE, plan(WIDE, "zerobubble")), Nccl(p2p_streams="peer", fused=False))
@example((WIDE, plan(WIDE, "zb-h2")), Nccl(p2p_streams="device", fused=False))
@example((V_SHAPED, plan(V_SHAPED, "zerobubble")), Nccl(p2p_streams="direction", fused=False))
def test_both_ends_of_a_stream_agree_on_the_order(
    case: tuple[Scenario, Schedule], transport: Transport
) -> None:
    scenario, schedule = case
    assert_ends_agree(lower(schedule, scenario, transport))


# -- the order itself --------------------------------------------------------------------


@pytest.mark.parametrize("planner", ["zerobubble", "zb-h1", "zb-h2", "1f1b", "gpipe", "pipemorph"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_messages_queue_as_their_operators_end_where_one_takes_a_twentieth_of_these(
    planner: str, scale: float
) -> None:
    """Half a millisecond on operators of 10 ms: enough for ties to say something, and no more.

    The engine says when operators then end. On 8 × 24 the orders under nothing, or under a
    millisecond, are others.
    """
    scenario = WIDE.scaled(scale)
    schedule = plan(scenario, planner)
    spans = simulate(scenario.replaced(latency_ms=0.5 * scale), schedule, "ideal").spans
    program = lower(schedule, scenario, UNFUSED)
    for device in range(scenario.devices):
        ends = [spans[op].end_ms for op in producers(program, device)]
        assert all(a <= b + 1e-9 for a, b in pairwise(ends))


@pytest.mark.parametrize("streams", ["device", "peer", "direction"])
def test_groups_queue_as_the_first_of_their_operators_ends(
    streams: Literal["device", "peer", "direction"],
) -> None:
    schedule = plan(WIDE, "zerobubble")
    spans = simulate(WIDE.replaced(latency_ms=0.5), schedule, "ideal").spans
    program = lower(schedule, WIDE, Nccl(p2p_streams=streams))
    for device in program.instructions:
        ends = [
            min(spans[message.producer].end_ms for message in (*group.sends, *group.receives))
            for group in device
            if isinstance(group, Group)
        ]
        assert ends == sorted(ends)


@given(cases())
def test_messages_queue_as_their_operators_end_with_any_times(
    case: tuple[Scenario, Schedule],
) -> None:
    """Where delays, which no order knows of, are the twentieth of an operator's time."""
    scenario, schedule = case
    times = {kind: scenario.durations_ms(kind) for kind in KINDS}
    ops = [op for order in schedule.orders for op in order]
    mean_ms = np.mean([times[op.kind][op.stage, op.microbatch] for op in ops])
    crossing = [[float(scenario.crosses(link))] * 2 for link in range(scenario.stages - 1)]
    small = scenario.without_delay()
    if crossing:
        small = small.replaced(latency_ms=0.05 * mean_ms * np.array(crossing))
    spans = simulate(small, schedule, "ideal").spans
    program = lower(schedule, scenario, UNFUSED)
    for device in range(scenario.devices):
        ends = [spans[op].end_ms for op in producers(program, device)]
        assert all(a <= b + 1e-9 * max(1.0, b) for a, b in pairwise(ends))


def test_messages_queue_as_they_did_on_a10_gpus() -> None:
    """An activation and a gradient of neighbours often end within milliseconds of each other.

    Which of the two was first in most of the healthy iterations is first in the queues, though
    lowering knows nothing but median operator times: with messages that take nothing 1F6 would
    come before 2B2, and with a tenth of an operator's time 2B1 before 1F5. One pair is an
    exception: the very first gradient comes 1 to 3 ms later than operator times say.
    """
    files = sorted((TRACES / "a10_timelines").glob("*.csv"))
    timelines = import_timelines([file for file in files if not file.name.startswith("1f1b")])
    healthy = [one.timeline for one in timelines.iterations if one.used]
    assert len(healthy) == 14
    orders = [[span.op for span in device] for device in healthy[0].compute]
    scenario = timelines.scenario
    schedule = Schedule(orders, scenario.placement, scenario.microbatches)
    program = lower(schedule, scenario, UNFUSED)
    right: set[tuple[str, str]] = set()
    wrong: set[tuple[str, str]] = set()
    for device in range(scenario.devices):
        queue = places(program, device)
        for earlier, later in combinations(queue, 2):
            if queue[earlier].stream == queue[later].stream:
                a, b = earlier.producer, later.producer
                ahead_ms = np.median([one.spans[b].end_ms - one.spans[a].end_ms for one in healthy])
                (right if ahead_ms >= 0 else wrong).add((str(a), str(b)))
    assert wrong == {("3B0", "2F2")}
    assert right >= {("0F8", "1B2"), ("1F5", "2B1"), ("2B2", "1F6"), ("1F9", "2B6")}
