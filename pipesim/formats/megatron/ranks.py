"""Operator times from the timers of all ranks.

Data-parallel copies of a stage do the same work. Where the times of some stand apart they are kept
apart: a step takes as long as the slowest copy of the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipesim.errors import FormatError
from pipesim.formats.megatron.dialects import OPERATORS
from pipesim.formats.megatron.guess import one_f_one_b_ms
from pipesim.formats.megatron.layout import Layout
from pipesim.formats.megatron.record import LoggedIteration
from pipesim.formats.megatron.sums import Chosen, Operators, divided, spread
from pipesim.formats.regimes import levels, ranges
from pipesim.formats.tally import Dropped, Tally
from pipesim.scenario import Array
from pipesim.text import counted, milliseconds

__all__ = ["of_all_ranks"]

_MOST_RANKS = 1_000_000


def of_all_ranks(
    timed: Chosen, chosen: int, layout: Layout, microbatches: int, dp_rank: int | None
) -> Operators:
    """Find the operator times in the timers of all ranks.

    Parameters
    ----------
    timed : sequence of (MegatronLog, LoggedIteration)
        The iterations with such timers.
    chosen : int
        How many iterations there are in all.
    layout, microbatches, dp_rank
        See :func:`~pipesim.formats.megatron.operators.operators_of`, which also tells the errors.
    """
    names = OPERATORS["Megatron-LM"][0][0], OPERATORS["Megatron-LM"][1][0]
    whole, ranks = _whole(timed, names, layout)
    sums_ms = np.array(
        [[[one.ranks_ms[n][r] for r in range(ranks)] for n in names] for one in whole]
    )
    places = [layout.place(rank, ranks) for rank in range(ranks)]
    copies = 1 + max(copy for _, copy in places)
    shape = (len(whole), 2, layout.devices, copies)
    of_copies_ms = np.empty(shape)  # by iteration, operator, stage and copy
    members: dict[tuple[int, int], list[int]] = {}
    for rank, place in enumerate(places):
        members.setdefault(place, []).append(rank)
    notes: list[str] = []
    for (stage, copy), own in members.items():
        of_copies_ms[:, :, stage, copy] = _together(sums_ms[:, :, own], own, stage, notes)
    if dp_rank is not None and not 0 <= dp_rank < copies:
        raise FormatError(
            f"there is no data-parallel rank {dp_rank} (there are {copies}, from 0 on)",
            file=timed[0][0].file,
        )
    taken = dp_rank
    usual_ms = np.median(of_copies_ms.sum(axis=1), axis=0)
    apart = _apart(usual_ms, members, notes)
    if apart and layout.sharing is None:
        notes.append(
            "the log does not tell which ranks share a stage's work: each counts as a "
            "data-parallel copy"
        )
    if apart and taken is None:
        each_ms = np.median(of_copies_ms, axis=0) / microbatches
        taken = _slowest(each_ms, apart, microbatches, notes)
    if taken is None:
        stages_ms = np.median(of_copies_ms, axis=3)
        each = f" of {ranks // layout.devices}" if ranks > layout.devices else ""
        how = f"median over its ranks{each} and over"
        others: list[str] = []
    else:
        stages_ms = of_copies_ms[:, :, :, taken]
        how = f"those of data-parallel rank {taken}, median over"
        others = [f"rank {rank}" for rank, (_, copy) in enumerate(places) if copy != taken]
    notes.append(
        f"F and BW of each stage: {how} {counted(len(whole), 'iteration')} with timers, divided by "
        f"{divided(layout, microbatches)}"
    )
    if chosen > len(whole):
        notes.append(
            f"{counted(chosen - len(whole), 'iteration')} without the timers of all "
            f"{counted(ranks, 'rank')}: only the iteration time is used"
        )
    tally = Tally("rank", ranks - len(others), [Dropped("of another data-parallel rank", others)])
    times = spread({"F": stages_ms[:, 0], "BW": stages_ms[:, 1]}, layout, microbatches)
    return Operators(times, (*notes, *times.notes), False, tally)


def _together(sums_ms: Array, ranks: Sequence[int], stage: int, notes: list[str]) -> Array:
    """Return the time of ranks that share a stage's work; shape [iterations, 2, ranks] → [:, 2].

    They wait for each other, so it is the median; if some stand apart, the slowest's.
    """
    usual_ms = np.median(sums_ms.sum(axis=1), axis=0)
    if usual_ms.min() > 0 and levels(usual_ms, smallest=1).max() > 0:
        slowest = int(np.argmax(usual_ms))
        notes.append(
            f"stage {stage}: F and BW take {milliseconds(float(usual_ms[slowest]))} on rank "
            f"{ranks[slowest]}, and from {milliseconds(float(usual_ms.min()))} on the others of "
            f"ranks {ranges(ranks)}, which share its work: the slowest counts"
        )
        return sums_ms[:, :, slowest]
    result: Array = np.median(sums_ms, axis=2)
    return result


def _whole(
    timed: Chosen, names: tuple[str, str], layout: Layout
) -> tuple[list[LoggedIteration], int]:
    """Return the iterations with the timers of all ranks, and how many ranks there are."""
    stages = layout.devices
    timed = [
        (log, one) for log, one in timed if all(name in one.ranks_ms for name in names)
    ] or timed
    seen = 1 + max(
        rank for _, one in timed for name in names for rank in one.ranks_ms.get(name, [0])
    )
    told = [log.shape["ranks"].value for log, _ in timed if "ranks" in log.shape]
    ranks = told[0] if told else seen
    if seen > ranks:
        log, one = next(
            (log, one)
            for log, one in timed
            if any(seen - 1 in one.ranks_ms.get(name, ()) for name in names)
        )
        raise FormatError(
            f"iteration {one.number} has timers of rank {seen - 1}, but there are "
            f"{counted(ranks, 'rank')}",
            file=log.file,
            line=one.line,
        )
    if ranks % (stages * (layout.sharing or 1)) or ranks > _MOST_RANKS:
        log, one = timed[0]
        by = f" of {layout.sharing} ranks each" if (layout.sharing or 1) > 1 else ""
        raise FormatError(
            f"iteration {one.number} has timers of {counted(ranks, 'rank')}, which "
            f"{counted(stages, 'stage')}{by} cannot share",
            file=log.file,
            line=one.line,
        )
    whole = [
        one for _, one in timed if all(len(one.ranks_ms.get(name, ())) == ranks for name in names)
    ]
    if not whole:
        log, one = timed[0]
        missing = next(
            f"{name} of rank {rank}"
            for name in names
            for rank in range(ranks)
            if rank not in one.ranks_ms.get(name, ())
        )
        raise FormatError(
            f"iteration {one.number} lacks the {missing}, and no other iteration is complete",
            file=log.file,
            line=one.line,
        )
    return whole, ranks


def _apart(
    usual_ms: Array, members: Mapping[tuple[int, int], Sequence[int]], notes: list[str]
) -> set[int]:
    """Return the copies that are slow on some stage, and say so; shape [S, copies]."""
    found: set[int] = set()
    for stage, of_stage_ms in enumerate(usual_ms):
        if of_stage_ms.min() <= 0:
            continue
        level = levels(of_stage_ms, smallest=1)
        if level.max() == 0:
            continue
        found.update(np.flatnonzero(level).tolist())
        parts = []
        for own in range(int(level.max()), -1, -1):
            copies = np.flatnonzero(level == own)
            ranks = [rank for copy in copies for rank in members[stage, int(copy)]]
            parts.append(
                f"{milliseconds(float(np.median(of_stage_ms[copies])))} on "
                f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)} "
                f"(data-parallel {ranges(copies.tolist())})"
            )
        notes.append(f"stage {stage} stands apart: F and BW take {', '.join(parts)}")
    return found


def _slowest(copies_ms: Array, apart: set[int], microbatches: int, notes: list[str]) -> int:
    """Return the copy whose pipeline is the slowest; shape [2, S, copies], of a micro-batch."""
    least = int(np.argmin(copies_ms.sum(axis=(0, 1))))
    steps_ms = {
        copy: one_f_one_b_ms(copies_ms[0, :, copy], copies_ms[1, :, copy], microbatches)
        for copy in sorted({*apart, least})
    }
    taken = max(steps_ms, key=lambda copy: steps_ms[copy])
    fastest = min(steps_ms, key=lambda copy: steps_ms[copy])
    notes.append(
        f"a data-parallel job's step is its slowest rank's: the scenario is of data-parallel rank "
        f"{taken}, {milliseconds(steps_ms[taken])} by 1F1B; rank {fastest} alone would take "
        f"{milliseconds(steps_ms[fastest])} (--dp-rank takes another)"
    )
    return taken
