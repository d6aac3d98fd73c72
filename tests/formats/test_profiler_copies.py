"""Traces with unlike samples: copies of a pipeline of which one is slow, and unlike iterations."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.profiler import import_profiler
from pipesim.scenario import Scenario
from pipesim.timeline import Timeline
from planners import plan
from tests.formats.profiler_traces import saved, traced

HEALTHY = Scenario(stages=2, microbatches=4, forward_ms=10.0, fused_backward_ms=20.0)
SLOW = HEALTHY.replaced(forward_ms=[10.0, 25.0], fused_backward_ms=[20.0, 50.0])
"""Its second device is slow."""

DELAYED = HEALTHY.replaced(latency_ms=40.0)


def run(scenario: Scenario) -> Timeline:
    return simulate(scenario, plan(scenario, "1f1b"), "ideal")


def copies(*scenarios: Scenario, groups: bool, stages: bool = True) -> list[dict[str, Any]]:
    """Data-parallel copies, stage by stage; every rank is of stage ``rank // copies``."""
    of_copy = [traced([run(one)] * 2, "receives", stages=stages) for one in scenarios]
    documents = list(chain(*zip(*of_copy, strict=True)))
    for rank, one in enumerate(documents):
        first = rank % len(scenarios)
        members = list(range(first, len(documents), len(scenarios)))
        info = {"rank": rank, "world_size": len(documents), "backend": "gloo"}
        if groups:
            info["pg_config"] = [{"pg_desc": "mesh_pp", "pg_size": 2, "ranks": members}]
        one["distributedInfo"] = info
    return documents


@pytest.mark.parametrize("groups", [True, False])
def test_a_step_is_that_of_the_slowest_copy(groups: bool, tmp_path: Path) -> None:
    documents = copies(HEALTHY, SLOW, HEALTHY, groups=groups)
    made = import_profiler(saved(documents, tmp_path))
    assert made.scenario.forward_ms == pytest.approx(SLOW.forward_ms, abs=1e-3)
    assert made.scenario.fused_backward_ms == pytest.approx(SLOW.fused_backward_ms, abs=1e-3)
    assert made.iteration_ms == pytest.approx([run(SLOW).iteration_ms] * 2, abs=1e-3)
    (note,) = [note for note in made.notes if "copies of the pipeline" in note]
    assert note == (
        "the files hold 3 copies of the pipeline, data- or tensor-parallel, whose iterations take "
        "150 ms (ranks 0 and 3), 330 ms (ranks 1 and 4) and 150 ms (ranks 2 and 5): the scenario "
        "is of the slowest, for which the others wait, ranks 1 and 4"
    )
    apart = [note for note in made.notes if "the same stages" in note]
    assert apart == [
        "rank 4 works 300 ms an iteration, and the same stages 120 ms in the other copies"
    ]
    guess = "3 ranks have each stage, and no process groups say which are together"
    assert any(guess in note for note in made.notes) != groups
    (traces,) = (tally for tally in made.tallies if tally.noun == "trace")
    assert (traces.found, traces.used) == (6, 2)
    check = check_import(made)
    assert check is not None
    assert abs(check.error) < 1e-4


def test_copies_of_unlike_shape(tmp_path: Path) -> None:
    """Nothing says that all pipelines of a run have the same stages."""
    wide = Scenario(stages=4, microbatches=4, placement=(0, 1, 0, 1))
    timeline = simulate(wide, plan(wide, "interleaved-1f1b"), "ideal")
    documents = copies(HEALTHY, SLOW, groups=True)
    for one, other in zip(documents[1::2], traced([timeline], "receives"), strict=True):
        one["traceEvents"] = other["traceEvents"]
    made = import_profiler(saved(documents, tmp_path))
    assert made.scenario.stages == 4
    assert not any("the same stages" in note for note in made.notes)


def test_process_groups_number_stages_that_annotations_do_not(tmp_path: Path) -> None:
    gpipe = HEALTHY.replaced(forward_ms=[10.0, 12.0])
    documents = copies(gpipe, gpipe, groups=True, stages=False)
    made = import_profiler(saved(documents, tmp_path))
    assert made.scenario.forward_ms == pytest.approx(gpipe.forward_ms, abs=1e-3)


def test_copies_must_be_whole(tmp_path: Path) -> None:
    documents = copies(HEALTHY, SLOW, groups=False)
    with pytest.raises(
        FormatError, match=r"rank1.json: stage 0 is in .*rank0.json too: give the ranks of one pip"
    ):
        import_profiler(saved(documents[:3], tmp_path))
    documents = copies(HEALTHY, SLOW, groups=True)
    with pytest.raises(FormatError, match=r"its pipeline has 2 ranks, but no file is from rank 3$"):
        import_profiler(saved(documents[:3], tmp_path))


def test_delayed_iterations_are_told_from_healthy_ones(tmp_path: Path) -> None:
    runs = [run(HEALTHY)] * 4 + [run(DELAYED)] * 3
    paths = saved(traced(runs, "annotations"), tmp_path)
    made = import_profiler(paths)
    assert [one.used for one in made.iterations] == [True] * 4 + [False] * 3
    assert made.scenario.forward_ms == pytest.approx(HEALTHY.forward_ms, abs=1e-3)
    assert (
        "iterations are of unlike length: 150 ms (3, 4, 5 and 6) and 310 ms (7, 8 and 9): the "
        "medians are over the fastest; --iterations takes others"
    ) in made.notes
    assert [part.why for part in made.tallies[1].dropped] == ["slower, 310 ms"]
    chosen = import_profiler(paths, iterations=[7, 8])
    assert [part.why for part in chosen.tallies[1].dropped] == ["not among the chosen"]
    assert [one.label for one in chosen.iterations if one.used] == ["7", "8"]
    assert chosen.iteration_ms == pytest.approx([run(DELAYED).iteration_ms] * 2, abs=1e-3)


@pytest.mark.parametrize("order", [[0, 1], [1, 0, 0], [0, 1, 0, 1]])
def test_few_iterations_are_not_pooled_either(tmp_path: Path, order: list[int]) -> None:
    runs = [run((HEALTHY, DELAYED)[late]) for late in order]
    made = import_profiler(saved(traced(runs, "annotations"), tmp_path))
    assert [one.used for one in made.iterations] == [not late for late in order]
    assert made.scenario.forward_ms == pytest.approx(HEALTHY.forward_ms, abs=1e-3)
