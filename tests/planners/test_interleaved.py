"""Interleaved 1F1B is, operator for operator, what torch and Megatron-LM run."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, Schedule, plan, simulate
from pipesim.errors import ScheduleError
from planners.interleaved import equal_group, group_sizes

GRID = list(product(range(1, 9), range(1, 5), range(1, 27)))
"""Devices, chunks, micro-batches."""


def interleaved(
    devices: int, chunks: int, microbatches: int, group_size: int | None = None
) -> Schedule | None:
    """The plan; None where it is refused."""
    # One stage on each of several devices is a pipeline of one chunk.
    scenario = Scenario(
        stages=devices * chunks,
        microbatches=microbatches,
        placement=Scenario.place("interleaved", devices, chunks),
    )
    try:
        return plan(scenario, "interleaved-1f1b", group_size=group_size)
    except ScheduleError:
        return None


def orders(schedule: Schedule | None) -> list[list[str]] | None:
    """In the letters of torch."""
    if schedule is None:
        return None
    return [[str(op).replace("BW", "B") for op in order] for order in schedule.orders]


# -- torch -------------------------------------------------------------------------------


def torch_orders(devices: int, chunks: int, microbatches: int) -> list[list[str]] | None:
    """What the installed torch makes, by its own constructor; None where it refuses."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stages = [
        SimpleNamespace(
            group_size=devices,
            group_rank=0,
            num_stages=devices * chunks,
            stage_index=chunk * devices,
            is_first=chunk == 0,
            is_last=False,
            device="cpu",
            has_backward=True,
        )
        for chunk in range(chunks)
    ]
    try:
        made = schedules.ScheduleInterleaved1F1B(stages, microbatches, loss_fn=lambda *_: None)
    except ValueError:
        return None
    return [
        [str(action) for action in made.pipeline_order[rank] if action is not None]
        for rank in range(devices)
    ]


def test_the_order_is_torchs_for_all_that_torch_accepts_and_nothing_else() -> None:
    accepted = 0
    for shape in GRID:
        theirs = torch_orders(*shape)
        assert orders(interleaved(*shape)) == theirs, shape
        accepted += theirs is not None
    assert len(GRID) / 2 < accepted < len(GRID)


# -- Megatron-LM -------------------------------------------------------------------------


def megatron_orders(devices: int, chunks: int, microbatches: int, group: int) -> list[list[str]]:
    """Walk Megatron-LM's loop: forwards by its table, backwards first in, first out by chunk."""
    table = sorted(
        ((m, chunk) for m in range(microbatches) for chunk in range(chunks)),
        key=lambda step: (step[0] // group, step[1], step[0]),
    )
    ranks = []
    for rank in range(devices):
        order: list[str] = []
        inputs: dict[int, list[int]] = {chunk: [] for chunk in range(chunks)}
        warmup = min(2 * (devices - rank - 1) + (chunks - 1) * group, len(table))
        ahead, all_steps = range(warmup), range(len(table))
        steady = [
            (kind, k - w) for k in all_steps[warmup:] for kind, w in (("F", 0), ("B", warmup))
        ]
        behind = [("B", step) for step in all_steps[len(table) - warmup :]]
        for kind, step in [*(("F", step) for step in ahead), *steady, *behind]:
            m, chunk = table[step]
            if kind == "F":
                inputs[chunk].append(m)
            else:
                chunk = chunks - 1 - chunk
                m = inputs[chunk].pop(0)
            order.append(f"{chunk * devices + rank}{kind}{m}")
        ranks.append(order)
    return ranks


def megatron_accepts(devices: int, microbatches: int, group: int) -> bool:
    """PP ≤ group ≤ M, and a last group that is not whole is no shorter than PP."""
    return devices <= group <= microbatches and not 0 < microbatches % group < devices


def test_the_order_is_megatrons_for_every_size_of_groups_that_it_accepts() -> None:
    found = 0
    for devices, chunks, n in product(range(1, 7), range(2, 5), range(1, 20)):
        for group in range(1, n + 2):
            made = orders(interleaved(devices, chunks, n, group))
            if megatron_accepts(devices, n, group):
                assert made == megatron_orders(devices, chunks, n, group), (devices, n, group)
                found += 1
            else:  # torch makes one group where there are fewer micro-batches than devices
                assert made is None or group == equal_group(devices, n), (devices, n, group)
    assert found > 1000


def test_megatrons_own_example() -> None:
    """Two devices, groups of three of five micro-batches: 0 1 2 of both chunks, then 3 4."""
    schedule = interleaved(2, 2, 5, group_size=3)
    assert schedule is not None
    forwards = [str(op) for op in schedule.orders[0] if op.kind == "F"]
    assert forwards == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2", "0F3", "0F4", "2F3", "2F4"]


@given(st.integers(1, 8), st.integers(1, 40))
def test_frameworks_agree_where_both_have_a_default(devices: int, n: int) -> None:
    """Megatron-LM's group is D by default, and N then a multiple of it; torch's is D there, too."""
    if n % devices == 0:
        assert equal_group(devices, n) == devices
        assert devices in group_sizes(devices, n)
    assert all(megatron_accepts(devices, n, size) for size in group_sizes(devices, n))
    if n >= devices and (size := equal_group(devices, n)):
        assert size in group_sizes(devices, n)


# -- what it is worth, and what is refused -----------------------------------------------


@pytest.mark.parametrize(
    ("n", "expected_ms", "peak"), [(12, 405, 5.5), (8, 285, 5.5), (6, 225, 6), (3, 150, 3)]
)
def test_iteration_times(n: int, expected_ms: float, peak: float) -> None:
    """F 10, BW 20 on four devices, in halves.

    A device computes N·30 ms, and waits 3·5 + 3·10 ms for the halves of the three others. Six
    micro-batches make one group, which device 0 holds whole. Three leave a hole besides, of a step
    in either direction: 5 + 10 ms.
    """
    scenario = Scenario(microbatches=n).interleaved(2)
    timeline = simulate(scenario, plan(scenario, "interleaved-1f1b"))
    assert timeline.iteration_ms == expected_ms
    assert scenario.in_micro_batches(timeline.peak_activations)[0] == peak


@pytest.mark.parametrize(
    ("n", "group", "message"),
    [
        (9, None, "9 do not split so; 8 or 10 would, or a group size of 5"),
        (11, None, "11 do not split so; 10 or 12 would, or a group size of 6"),
        (8, 3, "for 8 micro-batches on 4 devices, a group size of 4, 8, not 3"),
        (8, 5, "a group size of 4, 8, not 5"),
        (24, 11, "a group size of 4, 5, 6, 8 … 24, not 11"),
        (2, 4, "for 2 micro-batches on 4 devices, a group size of 2, not 4"),
    ],
)
def test_what_is_refused_says_what_would_be_accepted(
    n: int, group: int | None, message: str
) -> None:
    scenario = Scenario(microbatches=n).interleaved(2)
    with pytest.raises(ScheduleError) as caught:
        plan(scenario, "interleaved-1f1b", group_size=group)
    assert message in str(caught.value)


def test_other_planners_take_no_group_size() -> None:
    with pytest.raises(ScheduleError, match="zerobubble takes no group size"):
        plan(Scenario(), "zerobubble", group_size=4)
