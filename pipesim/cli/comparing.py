"""What ``pipesim compare --dp`` prints: a data-parallel job on its nodes, and on others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.adapt.mapping import Assignment
from pipesim.cli.options import DataParallelOptions, ScenarioOptions, head
from pipesim.cli.output import Column, progress, show, show_json, show_rows
from pipesim.files import write_csv
from pipesim.studies.data_parallel import (
    DataParallelComparison,
    DataParallelRow,
    compare_data_parallel,
    job_of,
)
from pipesim.studies.data_parallel_advice import advised_row, data_parallel_advice, moves
from pipesim.studies.systems import system
from pipesim.text import counted, decimals, fixed, listed, milliseconds, plain

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["compare_ranks"]

_MIB = 2**20
_MOST_NAMED = 3

_NESTED = ("assignment", "pipelines")
"""What a row in CSV leaves out."""


def compare_ranks(
    scenario: ScenarioOptions,
    parallel: DataParallelOptions,
    cluster: Cluster | None,
    systems: Sequence[str] | None,
    told: Mapping[str, Any],
    *,
    json: bool,
    csv_file: Path | None,
    quiet: bool,
) -> None:
    """Compare systems on a data-parallel job, and print a row for each and each use of the nodes.

    Parameters
    ----------
    scenario, parallel, cluster, systems
        The options given.
    told : mapping of str
        What the comparison is told of costs, transports and engines.
    json, csv_file, quiet
        What to print, and where to.
    """
    assert parallel.dp is not None
    ranks = scenario.ranks(parallel.dp, cluster)
    job = job_of(ranks, parallel.rings(ranks[0], scenario.injected_as))
    with progress(quiet) as report:
        result = compare_data_parallel(
            ranks[0],
            job,
            parallel.reduction(cluster),
            systems,
            overlap=parallel.overlap is not False,
            progress=lambda title: report(f"placing nodes for {title}"),
            **told,
        )
    if csv_file:
        records = [row.as_dict() | _flat(row.assignment) for row in result.rows]
        write_csv(csv_file, [name for name in records[0] if name not in _NESTED], records)
    if json:
        best = advised_row(result)
        advised = best and {"system": best.system.name, "nodes": best.places}
        asked = {
            "message_cost_ms": told["message_cost_ms"],
            "testbed": cluster and cluster.as_dict(result.scenario),
        }
        says = {"advised": advised, "advice": data_parallel_advice(result)}
        show_json(asked | result.as_dict() | says)
        return
    if not quiet:
        lines = head(result.scenario, told["message_cost_ms"], cluster, slow=_slow(result))
        show(*lines, _all_reduce(result), "")
    _show_rows(result.distinct)
    over = [_name(row) for row in result.distinct if not row.fits]
    notes = [f"Over the activation limit: {listed(over)}"] if over else []
    notes += [f"No row for {system(name).title}: {why}" for name, why in result.left_out.items()]
    if not result.surely_best:
        notes.append("Not all places were tried: there may be better ones than the best found")
    if notes:
        show("", *notes)
    if not quiet:
        show("", data_parallel_advice(result))


def _flat(assignment: Assignment) -> dict[str, object]:
    """Where nodes went, and what slow links carry there, for a row in CSV."""
    moved = [f"{node}→{place}" for node, place in sorted(assignment.places.items())]
    return {"moved": moved, "slow_links_carry": "; ".join(map(str, assignment.uses))}


def _slow(result: DataParallelComparison) -> str:
    """Which links are slow, and what they carry at first."""
    job, here = result.job, Assignment(result.job)
    parts = []
    for pair in job.slow_pairs:
        both = [job.slow[way].total_ms for way in (pair, pair[::-1]) if way in job.slow]
        each = len(both) == 2 and both[0] == both[1]
        delay = f"{milliseconds(both[0])} each way" if each else milliseconds(max(both))
        parts.append(f"{here.carried(pair)}: {delay}")
    if len(parts) > _MOST_NAMED:
        return counted(len(parts), "slow link")
    return ", ".join(parts) or "no slow link"


def _all_reduce(result: DataParallelComparison) -> str:
    """What is all-reduced, how, and when."""
    ranks, reduction = result.job.ranks, result.reduction
    rate = reduction.bytes_per_ms
    bandwidth = "" if math.isinf(rate) else f" at {plain(rate * 1000 / 2**30)} GiB/s"
    when = "as soon as the stage has ended" if result.overlap else "when all stages have ended"
    return (
        f"{ranks} data-parallel ranks: each stage all-reduces "
        f"{plain(reduction.gradient_bytes / _MIB)} MiB of gradients{bandwidth} in "
        f"{counted(reduction.buckets(ranks), 'bucket')} of {2 * (ranks - 1)} ring steps, {when}"
    )


def _name(row: DataParallelRow) -> str:
    return f"{row.places}: {row.system.title}"


def _show_rows(rows: Sequence[DataParallelRow]) -> None:
    digits = decimals(max(row.step.step_ms for row in rows))

    def times(values: list[float]) -> list[str]:
        return [fixed(value, digits) for value in values]

    shown = Column("nodes: system", list(map(_name, rows)), numeric=False)
    costs = [
        Column("transport", [row.system.transport for row in rows], numeric=False),
        Column("step\nms", times([row.step.step_ms for row in rows])),
        Column("slowdown", list(map(_times_as_long, rows)), tight="slow-\ndown"),
        Column("slowest pipeline\nms", times([row.step.pipeline_ms for row in rows]),
               tight="pipeline\nms"),
        Column("+ all-reduce\nms", times([row.step.exposed_ms for row in rows])),
    ]  # fmt: skip
    places = [
        Column("exchanged\nrank.stage", [moves(row.assignment) for row in rows], numeric=False),
        Column("slow links carry", list(map(_carried, rows)), numeric=False),
    ]
    fastest = min(range(len(rows)), key=lambda index: rows[index].step.step_ms)
    show_rows(shown, costs, places, bold=fastest)


def _carried(row: DataParallelRow) -> str:
    counts: dict[str, int] = {}
    for use in map(str, row.assignment.uses):
        counts[use] = counts.get(use, 0) + 1
    words = [use if n == 1 else f"{use} ({n} times)" for use, n in counts.items()]
    few = words if len(words) <= _MOST_NAMED else [*words[:_MOST_NAMED], "…"]
    return ", ".join(few) or "–"


def _times_as_long(row: DataParallelRow) -> str:
    return "–" if row.slowdown is None else f"{row.slowdown:.2f}×"
