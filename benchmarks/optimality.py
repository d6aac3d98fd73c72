"""How far planners are from the optimum, on two suites of seeded instances.

    python benchmarks/optimality.py --suite paper
    python benchmarks/optimality.py --suite capped
    python benchmarks/optimality.py --suite capped --prove --solver cpsat --time-limit 60

Each instance has a reference: the proven optimum, proven by a solver or by a plan that meets
the lower bound, else the best bound known. References are stored in ``optima.json``;
``--prove`` finds them again. Times are those of the transport
ideal; a plan that does not fit the activation limits does not count.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from instances import capped_suite, paper_suite  # the script's own folder

from pipesim import plan, simulate
from pipesim.analysis.bounds import horizon_bound_ms
from pipesim.errors import ScheduleError
from pipesim.scenario import Scenario
from pipesim.studies.optimum import optimum

PLANNERS = {
    "paper": ("zerobubble", "pipemorph", "quick-search", "search"),
    "capped": ("zerobubble", "zb-h1", "quick-search", "search"),
}
SUITES = {"paper": paper_suite, "capped": capped_suite}


def plans(scenario: Scenario, planners: tuple[str, ...]) -> Iterator[tuple[str, float, float]]:
    """Yield planner, iteration time and planning seconds of those within the limits."""
    for name in planners:
        started = perf_counter()
        try:
            schedule = plan(scenario, name)
        except ScheduleError:
            continue
        seconds = perf_counter() - started
        timeline = simulate(scenario, schedule)
        if (timeline.peak_activations <= scenario.activation_limit + 1e-9).all():
            yield name, timeline.iteration_ms, seconds


OPTIMA = Path(__file__).with_name("optima.json")


def reference(scenario: Scenario, best_ms: float, solver: str, limit_s: float) -> dict[str, object]:
    """Prove the optimum, or return the best bound."""
    bound_ms = horizon_bound_ms(scenario, incumbent_ms=best_ms)
    if bound_ms >= best_ms * (1 - 1e-9):
        return {"reference_ms": bound_ms, "proven_by": "bound"}
    result = optimum(scenario, solver=solver, time_limit_s=limit_s, threads=2)
    if result.status == "optimal":
        return {"reference_ms": result.objective_ms, "proven_by": solver}
    return {"reference_ms": max(bound_ms, result.bound_ms), "proven_by": None}


def measure(
    scenario: Scenario, suite: str, known: dict[str, object] | None, solver: str, limit_s: float
) -> dict[str, object]:
    """Return one instance's plans and its reference, ``known`` or proven now."""
    found = {name: (ms, seconds) for name, ms, seconds in plans(scenario, PLANNERS[suite])}
    best_ms = min(ms for ms, _ in found.values())
    given = known or reference(scenario, best_ms, solver, limit_s)
    reference_ms: float = given["reference_ms"]  # type: ignore[assignment]
    return {
        "name": scenario.name,
        "shape": f"{scenario.stages}x{scenario.microbatches}",
        **given,
        "gaps": {name: ms / reference_ms - 1 for name, (ms, _) in found.items()},
        "plan_seconds": {name: seconds for name, (_, seconds) in found.items()},
    }


def summary(rows: list[dict[str, object]], planners: tuple[str, ...]) -> dict[str, object]:
    """Return the gaps of each planner, over all and over the proven instances."""
    figures: dict[str, object] = {}
    for name in planners:
        gaps = [row["gaps"].get(name, math.nan) for row in rows]  # type: ignore[attr-defined]
        sure = [gap for gap, row in zip(gaps, rows, strict=True) if row["proven_by"]]
        largest = [row["plan_seconds"].get(name, math.nan) for row in rows]  # type: ignore[attr-defined]
        figures[name] = {
            "plans": int(np.isfinite(gaps).sum()),
            "mean_gap": float(np.nanmean(gaps)),
            "max_gap": float(np.nanmax(gaps)),
            "mean_gap_proven": float(np.nanmean(sure)) if sure else None,
            "within_1_percent_proven": float(np.mean(np.array(sure) <= 0.01)) if sure else None,
            "max_plan_seconds": float(np.nanmax(largest)),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=sorted(SUITES), default="paper")
    parser.add_argument("--prove", action="store_true", help="find and store the references again")
    parser.add_argument("--solver", choices=["highs", "cbc", "cpsat"], default="cpsat")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds an instance")
    parser.add_argument("--shape", help="only this one, such as 4x12")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    planners = PLANNERS[options.suite]
    scenarios = [
        scenario
        for scenario in SUITES[options.suite]()
        if options.shape in (None, f"{scenario.stages}x{scenario.microbatches}")
    ]
    for name in planners:
        plan(scenarios[0], name)  # compiled, or loaded from the cache, before the clock runs
    optima = json.loads(OPTIMA.read_text()) if OPTIMA.exists() else {}
    rows = []
    for scenario in scenarios:
        known = None if options.prove else optima.get(scenario.name)
        rows.append(measure(scenario, options.suite, known, options.solver, options.time_limit))
        if not options.json:
            row = rows[-1]
            gaps = " ".join(f"{k} {100 * v:.2f} %" for k, v in row["gaps"].items())  # type: ignore[attr-defined]
            print(f"{row['name']}: {row['reference_ms']:g} ms ({row['proven_by']}), {gaps}")
    if options.prove:
        optima |= {
            row["name"]: {key: row[key] for key in ("reference_ms", "proven_by")} for row in rows
        }
        OPTIMA.write_text(json.dumps(optima, indent=1, sort_keys=True) + "\n")
    result = {
        "suite": options.suite,
        "instances": len(rows),
        "proven": sum(1 for row in rows if row["proven_by"]),
        "planners": summary(rows, planners),
    }
    print(json.dumps(result | ({"rows": rows} if options.json else {}), indent=2))


if __name__ == "__main__":
    main()
