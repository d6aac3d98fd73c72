"""A stock torch schedule that changes its plan between iterations, on four ranks over gloo.

``python -m tests.runtime.adapting FOLDER`` runs each case; each rank writes
``FOLDER/rank<i>.json``. ``FOLDER/plans.json`` holds the rows of three plans.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.formats.torch_runtime import RANKS, forked, meet
from tests.runtime.training import Pipeline

ITERATIONS = 9
LATE = range(2, 5)
"""Iterations in which link 1 is late."""

LATE_MS = 300.0
"""So late that a busy machine is no explanation."""


class Made(NamedTuple):
    rows: list[str]
    delegated: frozenset[tuple[int, str]]


class InTurn:
    """Changes the plan after each iteration, and delegates another link; the last one fails."""

    def __init__(self, plans: dict[str, list[str]]) -> None:
        self.plans = list(plans.values())
        self.asked = 0

    def _now(self) -> Made:
        link = self.asked % (RANKS - 1)
        return Made(self.plans[self.asked % len(self.plans)], frozenset({(link, "down")}))

    def first(self) -> Made:
        return self._now()

    def after(self, measured_ms: Any) -> Made:
        self.asked += 1
        if self.asked == ITERATIONS - 2:
            raise ValueError("no more plans")
        return self._now()


class WhereLate:
    """Delegates what takes longer than half of what late messages do; notes what it is told."""

    def __init__(self, plans: dict[str, list[str]]) -> None:
        self.plans = plans
        self.told: list[Any] = []
        self.last: frozenset[tuple[int, str]] = frozenset()

    def first(self) -> Made:
        return Made(self.plans["zerobubble"], frozenset())

    def after(self, measured_ms: Any) -> Made | None:
        self.told.append(measured_ms.tolist())
        slow = frozenset(
            (link, way)
            for link, both in enumerate(measured_ms.tolist())
            for way, time_ms in zip(("down", "up"), both, strict=True)
            if time_ms > LATE_MS / 2
        )
        if slow == self.last:
            return None
        self.last = slow
        return Made(self.plans["pipemorph" if slow else "zerobubble"], slow)


def in_turn(pipeline: Pipeline, plans: dict[str, list[str]]) -> dict[str, Any]:
    return _adapt(pipeline, InTurn(plans) if pipeline.rank == 0 else None)


def where_late(pipeline: Pipeline, plans: dict[str, list[str]]) -> dict[str, Any]:
    planner = WhereLate(plans) if pipeline.rank == 0 else None
    return _adapt(pipeline, planner) | {"told": planner.told if planner else []}


def _adapt(pipeline: Pipeline, planner: Any) -> dict[str, Any]:
    from pipesim.runtime.adaptive import Adaptive
    from pipesim.runtime.carriers import Late

    late: list[tuple[int, Late]] = []

    def late_ms(link: int) -> float:
        return LATE_MS if link == 1 and adaptive.iteration in LATE else 0.0

    def through(way: tuple[int, str], carrier: Any) -> Late:
        late.append((way[0], Late(carrier, late_ms(way[0]))))
        return late[-1][1]

    errors, swapped, delegated = [], [], []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with Adaptive(pipeline.schedule, planner, through=through) as adaptive:
            pipeline.runs = adaptive
            for iteration in range(ITERATIONS):
                for link, one in late:
                    one.late_ms = late_ms(link)
                errors.append(pipeline.step(iteration))
                swapped.append(adaptive.swapped)
                delegated.append(sorted(adaptive.delegated))
        pipeline.runs = pipeline.schedule
        errors.append(pipeline.step(ITERATIONS))  # the last plan, as torch sends it
    return {
        "error": max(errors),
        "swapped": swapped,
        "delegated": delegated,
        "left": pipeline.left(),
        "said": [str(warning.message) for warning in said],
    }


def twice(pipeline: Pipeline, plans: dict[str, list[str]]) -> dict[str, Any]:
    """Enter again what was left."""
    from pipesim.runtime.adaptive import Adaptive

    planner = WhereLate(plans) if pipeline.rank == 0 else None
    adaptive = Adaptive(pipeline.schedule, planner)
    errors, swapped, told = [], [], []
    for _ in range(2):
        with adaptive:
            pipeline.runs = adaptive
            for iteration in range(3):
                errors.append(pipeline.step(iteration))
                swapped.append(adaptive.swapped)
            deadline = time.monotonic() + 60.0
            while planner and len(planner.told) < 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            told.append(len(planner.told) if planner else 3)
            if planner:
                planner.told.clear()
    return {
        "error": max(errors),
        "swapped": swapped,
        "delegated": [],
        "left": pipeline.left(),
        "told": told,
    }


def left_by_one(pipeline: Pipeline, plans: dict[str, list[str]]) -> dict[str, Any]:
    """Rank 0 leaves first."""
    from pipesim.runtime.adaptive import Adaptive
    from pipesim.runtime.delegates import PeerError

    said = ""
    with Adaptive(pipeline.schedule, WhereLate(plans) if pipeline.rank == 0 else None) as adaptive:
        pipeline.runs = adaptive
        error = pipeline.step(0)
        if pipeline.rank:
            try:
                pipeline.step(1)
            except PeerError as gone:
                said = str(gone)
    return {
        "error": error,
        "swapped": [True],
        "delegated": [],
        "left": pipeline.left(),
        "said": said,
    }


def unlike(pipeline: Pipeline, plans: dict[str, list[str]]) -> dict[str, Any]:
    """Ranks ask for other links; none can go on."""
    from pipesim.runtime.adaptive import Adaptive

    said = ""
    planner = WhereLate(plans) if pipeline.rank == 0 else None
    try:
        with Adaptive(pipeline.schedule, planner, links=[pipeline.rank % 2]):
            pass
    except ValueError as error:
        said = str(error)
    return {"error": 0.0, "swapped": [True], "delegated": [], "left": pipeline.left(), "said": said}


CASES: dict[str, Callable[[Pipeline, dict[str, list[str]]], dict[str, Any]]] = {
    "in turn": in_turn,
    "where late": where_late,
    "twice": twice,
    "left by one": left_by_one,
    "unlike": unlike,
}


def main(folder: Path) -> int:
    return forked(RANKS, lambda rank: _run_rank(rank, folder))


def _run_rank(rank: int, folder: Path) -> None:
    import torch.distributed as dist

    meet(rank, RANKS, folder)
    plans = json.loads((folder / "plans.json").read_text())
    results = {
        name: case(Pipeline(rank, "pipemorph compute_comms", folder), plans)
        for name, case in CASES.items()
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
