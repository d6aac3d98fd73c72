"""Which traces belong together: the ranks of a run, and the pipelines that they form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipesim.errors import FormatError
from pipesim.formats.profiler.kineto import KinetoTrace
from pipesim.text import counted, listed

__all__ = ["absent", "by_rank", "check_whole", "pipelines", "stages"]

_MOST_NAMED = 8
"""So many missing ranks are named one by one."""

Ranks = dict[int, KinetoTrace]


def by_rank(traces: Sequence[KinetoTrace], notes: list[str]) -> Ranks:
    """Return the traces of one run by rank.

    Raises
    ------
    FormatError
        A rank comes twice, some times are of the GPU and some of the host, or the runs are of
        different sizes.
    """
    ranks: Ranks = {}
    for position, trace in enumerate(traces):
        rank = position if trace.rank is None else trace.rank
        if rank in ranks:
            raise FormatError(f"is of rank {rank}, and so is {ranks[rank].file}", file=trace.file)
        ranks[rank] = trace
    nameless = [trace.file for trace in traces if trace.rank is None]
    if nameless and len(traces) > 1:
        notes.append(f"no rank in {listed(nameless)}: ranks follow the order of the files")
    on_host = {trace.clock == "host": trace.file for trace in reversed(traces)}
    if len(on_host) > 1:
        raise FormatError(
            f"has no GPU annotations, but {on_host[False]} has: their times are not comparable",
            file=on_host[True],
        )
    for trace in traces:
        if trace.world_size != traces[0].world_size:
            sizes = [
                "an unknown number of ranks" if size is None else counted(size, "rank")
                for size in (trace.world_size, traces[0].world_size)
            ]
            raise FormatError(
                f"is from a run of {sizes[0]}, but {traces[0].file} from one of {sizes[1]}",
                file=trace.file,
            )
    return dict(sorted(ranks.items()))


def stages(rank: int, trace: KinetoTrace) -> set[int]:
    """Return the stages of a rank; the rank's own number where its annotations name none."""
    named = {
        action.stage
        for ops in trace.iterations.values()
        for action in ops
        if action.stage is not None
    }
    return named or {sorted(trace.group).index(rank) if rank in trace.group else rank}


def pipelines(ranks: Ranks, notes: list[str]) -> list[Ranks]:
    """Take data- or tensor-parallel copies apart; each is a whole pipeline.

    The process groups tell which ranks are together. Without them, ranks with the same stages
    are copies, and the first of each stage are taken to be together, the second, and so on.

    Raises
    ------
    FormatError
        A stage is on several ranks, and they are no copies.
    """
    if all(trace.group for trace in ranks.values()):
        together: dict[frozenset[int], Ranks] = defaultdict(dict)
        for rank, trace in ranks.items():
            together[trace.group][rank] = trace
        return list(together.values())
    alike: dict[frozenset[int], list[int]] = defaultdict(list)
    for rank, trace in ranks.items():
        alike[frozenset(stages(rank, trace))].append(rank)
    copies = max(alike.values(), key=len)
    whole = len(alike) > 1 and all(len(found) == len(copies) for found in alike.values())
    if len(copies) > 1 and not whole:
        raise _twice(ranks, copies[0], copies[1])
    rank_of: dict[int, int] = {}
    for rank in (found[0] for found in alike.values()):
        for stage in sorted(stages(rank, ranks[rank])):
            if rank_of.setdefault(stage, rank) != rank:
                raise _twice(ranks, rank_of[stage], rank)
    if len(copies) > 1:
        notes.append(
            f"{len(copies)} ranks have each stage, and no process groups say which are together: "
            "taken in their order"
        )
    return [
        {rank: ranks[rank] for rank in sorted(found[copy] for found in alike.values())}
        for copy in range(len(copies))
    ]


def _twice(ranks: Ranks, first: int, second: int) -> FormatError:
    stage = min(stages(first, ranks[first]) & stages(second, ranks[second]))
    return FormatError(
        f"stage {stage} is in {ranks[first].file} too: give the ranks of one pipeline, or all "
        "ranks of each of its copies",
        file=ranks[second].file,
    )


def check_whole(ranks: Ranks, placement: Sequence[int], given: Ranks, notes: list[str]) -> None:
    """Raise unless the traces are of a whole pipeline, as far as they tell; note the doubts.

    Parameters
    ----------
    ranks : mapping of int to KinetoTrace
        Of the pipeline.
    placement : sequence of int
        The position in ``ranks`` of each of its stages.
    given : mapping of int to KinetoTrace
        All ranks that were given.
    notes : list of str
        Receives the doubts.
    """
    traces = list(ranks.values())
    last = traces[placement[-1]]
    if len(placement) - 1 in last.sends_on:
        raise FormatError(
            f"stage {len(placement) - 1} sends forwards on, but no file has stage "
            f"{len(placement)}{absent(given, ' (', ')')}",
            file=last.file,
        )
    groups = [(trace, trace.group) for trace in traces if trace.group]
    for trace, group in groups:
        if missing := sorted(group - set(ranks)):
            raise FormatError(
                f"its pipeline has {counted(len(group), 'rank')}, but no file is from "
                f"{_named_ranks(missing, len(missing))}",
                file=trace.file,
            )
    world_size, lacking = traces[0].world_size, absent(given)
    if world_size is None or not lacking:
        return
    if len(groups) == len(traces):
        text = f"{lacking}: not in this pipeline, by the process groups"
    elif len(traces) == 1 or world_size % len(traces):
        # Copies of this pipeline would make the ranks a multiple of it; and one is no pipeline.
        raise FormatError(
            f"is from a run of {counted(world_size, 'rank')}, but {lacking}", file=traces[0].file
        )
    else:
        text = f"{lacking}: taken to be copies of this pipeline"
    if text not in notes:
        notes.append(text)


def absent(ranks: Mapping[int, KinetoTrace], before: str = "", after: str = "") -> str:
    """Say which ranks of the run are not given, or nothing."""
    world_size = next(iter(ranks.values())).world_size or 0
    # At most len(ranks) of the first ones are given, and a run may claim any size.
    first = [rank for rank in range(min(world_size, len(ranks) + _MOST_NAMED)) if rank not in ranks]
    count = world_size - sum(rank < world_size for rank in ranks)
    return f"{before}no file is from {_named_ranks(first, count)}{after}" if count else ""


def _named_ranks(ranks: Sequence[int], count: int) -> str:
    """Return the names of ``count`` ranks, which ``ranks`` starts with."""
    shown: list[object] = list(ranks[:_MOST_NAMED])
    if more := count - len(shown):
        shown.append(f"{more} more")
    return f"rank{'s' if count > 1 else ''} {listed(shown)}"
