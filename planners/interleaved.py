"""Interleaved 1F1B: the order of Megatron-LM and of torch for several chunks per device.

Micro-batches go through the chunks of a device in groups: a whole group through one chunk, then
through the next. Megatron-LM sets the size of a group by hand; torch derives it from the number of
micro-batches. The rest is the same: device d runs 2·(D − d − 1) + (v − 1)·group forwards before it
first alternates, and backwards take the groups in the same order through the chunks in reverse.

Sources: ``get_schedule_table`` and ``get_pp_rank_microbatches`` in Megatron-LM's
``core/pipeline_parallel/schedules.py``, and ``ScheduleInterleaved1F1B`` in
``torch.distributed.pipelining``.
"""

from __future__ import annotations

from itertools import count

from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.text import counted
from planners.fused import ASSUMED, alternating
from planners.registry import planner

__all__ = ["equal_group", "group_sizes", "interleaved_1f1b"]


@planner("interleaved-1f1b", chunks=2)
def interleaved_1f1b(scenario: Scenario, *, group_size: int | None = None) -> Schedule:
    """1F1B over v chunks per device, as Megatron-LM and torch run it.

    Parameters
    ----------
    scenario : Scenario
        Stage s is on device s mod D, and each device has v stages.
    group_size : int, optional
        Micro-batches that go through one chunk before the next, as Megatron-LM's
        ``--microbatch-group-size-per-virtual-pipeline-stage`` says; see :func:`group_sizes`.
        Default: torch's, see :func:`equal_group`. It is D where N is a multiple of D, which is
        Megatron-LM's default, too.

    Raises
    ------
    ScheduleError
        The placement is another, or neither framework makes such groups.

    Examples
    --------
    >>> scenario = Scenario(stages=2, microbatches=5).interleaved(2)
    >>> [str(op) for op in interleaved_1f1b(scenario, group_size=3).orders[0][:10]]
    ['0F0', '0F1', '0F2', '2F0', '2F1', '2F2', '2BW0', '0F3', '2BW1', '0F4']
    """
    devices, n = scenario.devices, scenario.microbatches
    chunks = scenario.stages // devices
    if scenario.placement != scenario.place("interleaved", devices, chunks):
        raise ScheduleError(
            "interleaved-1f1b needs stage s on device s mod D, and v stages on each"
        )
    size = _group(devices, n, group_size)
    groups = [range(first, min(first + size, n)) for first in range(0, n, size)]
    orders = []
    for d, stages in enumerate(scenario.stages_of):
        forwards = [Op("F", s, m) for group in groups for s in stages for m in group]
        backwards = [Op("BW", s, m) for group in groups for s in reversed(stages) for m in group]
        ahead = 2 * (devices - d - 1) + (chunks - 1) * size
        orders.append(alternating(forwards, backwards, min(ahead + 1, len(forwards))))
    return Schedule(orders, scenario.placement, n, "interleaved-1f1b", ASSUMED)


def equal_group(devices: int, microbatches: int) -> int | None:
    """Return the size of torch's groups: as many as hold at least D each, all equal, at least one.

    None where torch refuses: N cannot be split into ⌊N / D⌋ equal groups.

    Examples
    --------
    >>> [equal_group(4, n) for n in (3, 6, 8, 9, 10)]
    [3, 6, 4, None, 5]
    """
    size, rest = divmod(microbatches, max(1, microbatches // devices))
    return None if rest else size


def group_sizes(devices: int, microbatches: int) -> list[int]:
    """Return the sizes of groups that Megatron-LM accepts: D to N, and no less than D left over.

    Examples
    --------
    >>> group_sizes(4, 9), group_sizes(4, 3)
    ([5, 9], [])
    """
    return [
        size
        for size in range(devices, microbatches + 1)
        if microbatches % size == 0 or microbatches % size >= devices
    ]


def _group(devices: int, n: int, given: int | None) -> int:
    """The size of a group, checked."""
    equal, sizes = equal_group(devices, n), group_sizes(devices, n)
    if given is None:
        if equal is not None:
            return equal
        fewer = next(m for m in count(n - 1, -1) if equal_group(devices, m))
        more = next(m for m in count(n + 1) if equal_group(devices, m))
        raise ScheduleError(
            f"interleaved-1f1b needs {n // devices} groups of equally many micro-batches, at least "
            f"{devices} each: {n} do not split so; {fewer} or {more} would, or a group size of "
            f"{sizes[0]}"
        )
    if given in (equal, *sizes):
        return given
    known = sizes or [n]
    some = ", ".join(map(str, known[:4])) + (f" … {n}" if len(known) > 4 else "")
    raise ScheduleError(
        f"interleaved-1f1b needs, for {counted(n, 'micro-batch')} on {counted(devices, 'device')}, "
        f"a group size of {some}, not {given}: a group, the last one too, holds at least as many "
        "micro-batches as there are devices"
    )
