"""What to do about slow links of a data-parallel job, in one plain sentence.

Of the rows about as fast as the fastest, the one that moves the fewest nodes is advised; of those,
the one that changes least: nothing, then how messages travel, then the plan. Rows that nobody can
run are left out.
"""

from __future__ import annotations

from pipesim.adapt.mapping import Assignment
from pipesim.studies.advice import NEGLIGIBLE
from pipesim.studies.data_parallel import DataParallelComparison, DataParallelRow
from pipesim.text import counted, listed, milliseconds, percent, plain

__all__ = ["advised_row", "data_parallel_advice", "moves"]


_MOST_NAMED = 3


def moves(assignment: Assignment) -> str:
    """Say which nodes exchange places; where it is more than an exchange, how many move.

    Examples
    --------
    >>> from pipesim.adapt.mapping import Job, Node
    >>> here = Assignment(Job(2, 4))
    >>> there = here.exchanged(Node(0, 1), Node(1, 2))
    >>> moves(here), moves(there), moves(there.exchanged(Node(1, 2), Node(0, 0)))
    ('–', '0.1 ↔ 1.2', '3 nodes')
    """
    places = assignment.places
    if any(places[at] != node for node, at in places.items()):
        return counted(len(places), "node")
    return ", ".join(f"{a} ↔ {b}" for a, b in sorted(places.items()) if a < b) or "–"


def advised_row(comparison: DataParallelComparison) -> DataParallelRow | None:
    """Return the system to use and its places; None where there is none that fits and can be run.

    Examples
    --------
    >>> from pipesim import Scenario
    >>> from pipesim.adapt.mapping import Job
    >>> from pipesim.studies.data_parallel import compare_data_parallel
    >>> advised_row(compare_data_parallel(Scenario(), Job(2, 4))).system.name
    'zerobubble'
    """
    return _best(_runnable(comparison))


def data_parallel_advice(comparison: DataParallelComparison) -> str:
    """Say what to do, what it gains, and what the other ways to use the nodes would take."""
    rows = _runnable(comparison)
    best = _best(rows)
    if best is None:
        return "Nothing to advise: no system here both fits and can be run."
    here = _best([row for row in rows if row.places == "as is"])
    before = [here] if here else []
    if best is here:
        start = _do(best) if comparison.job.slow else f"No link is slow: {_do(best, lower=True)}"
        return f"{start}: {_takes(best)}{_than(best, _rivals(rows, best))}."
    sentence = f"{_do(best)}: {_takes(best)}{_than(best, before)}."
    mapped = [row for row in rows if row.places == "re-mapped"]
    fastest = _best(mapped)
    slower = [row for row in before if fastest and row.step.step_ms <= fastest.step.step_ms]
    if fastest is not None and fastest is not best and not slower:
        alone = _best([row for row in mapped if not _changes(row) and row is not fastest])
        sentence += (
            " To keep in use what is slow, as a pipeline link: "
            f"{_do(fastest, lower=True)}; {_takes(fastest)}"
            f"{_than(fastest, [*before, *([alone] if alone else [])])}."
        )
    return sentence


def _runnable(comparison: DataParallelComparison) -> list[DataParallelRow]:
    return [row for row in comparison.distinct if row.system.transport != "ideal" and row.fits]


def _best(rows: list[DataParallelRow]) -> DataParallelRow | None:
    if not rows:
        return None
    enough_ms = min(row.step.step_ms for row in rows) * (1 + NEGLIGIBLE)
    return min(
        (row for row in rows if row.step.step_ms <= enough_ms),
        key=lambda row: (row.assignment.moved, _changes(row), row.step.step_ms),
    )


def _changes(row: DataParallelRow) -> int:
    if row.replanned:
        return 2
    return int(row.system.transport == "delegated")


def _do(row: DataParallelRow, *, lower: bool = False) -> str:
    """What to do with the nodes, and why; and with the plan."""
    todo = []
    if row.assignment.moved:
        swap = moves(row.assignment)
        what = f"move {swap}" if "nodes" in swap else f"exchange nodes {swap}"
        todo.append(f"{what}, so that what is slow carries {_carried(row)},")
    if row.replanned:
        todo.append("re-plan")
    elif row.system.transport == "delegated":
        todo.append("delegate communication to the CPU")
    text = (" ".join(todo[:1]) + " and ".join(["", *todo[1:]])) or "keep nodes and plan"
    text = text.removesuffix(",")
    return text if lower else text[:1].upper() + text[1:]


def _carried(row: DataParallelRow) -> str:
    """What the slow links carry, in words."""
    words = {
        "nothing": "nothing",
        "pipeline": "link {number} of rank {rank}",
        "ring": "the all-reduce of stage {number}",
    }
    uses = row.assignment.uses
    named = list(dict.fromkeys(words[use.kind].format(**use._asdict()) for use in uses))
    if len(named) <= _MOST_NAMED:
        return listed(named)
    kinds = {"pipeline": "pipeline links", "ring": "all-reduces", "nothing": "nothing"}
    return " or ".join(word for kind, word in kinds.items() if kind in {use.kind for use in uses})


def _takes(row: DataParallelRow) -> str:
    return f"a step of {row.system.title} takes {milliseconds(row.step.step_ms)}"


def _than(row: DataParallelRow, others: list[DataParallelRow]) -> str:
    """How much less time than others."""
    gains = [_less(row, other) for other in others if row.step.step_ms < other.step.step_ms]
    return f", {listed(gains)}" if gains else ""


def _less(row: DataParallelRow, other: DataParallelRow) -> str:
    ratio = other.step.step_ms / row.step.step_ms if row.step.step_ms else 1.0
    gain = f"{plain(ratio, 2)} times faster" if ratio >= 2 else f"{percent(1 - 1 / ratio)} less"
    return f"{gain} than {other.system.title} {_WHERE[other.places]}"


_WHERE = {
    "as is": "on the nodes as they are",
    "re-mapped": "with re-mapping alone",
    "best": "in its best places",
}


def _rivals(rows: list[DataParallelRow], best: DataParallelRow) -> list[DataParallelRow]:
    slower = [row for row in rows if row.places == "as is" and row is not best]
    return sorted(slower, key=lambda row: row.step.step_ms)[:1]
