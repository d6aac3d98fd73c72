"""A stock torch schedule adapts: plans and delegates change at boundaries, gradients do not."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from pipesim.formats.torch_csv import torch_csv
from pipesim.scenario import Scenario
from planners import plan
from tests import ROOT
from tests.formats.torch_runtime import RANKS
from tests.processes import Background
from tests.runtime import adapting, training

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.slow,
]

Found = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, in one run of all cases."""
    folder = tmp_path_factory.mktemp("adapting")
    scenario = Scenario(stages=RANKS, microbatches=training.MICROBATCHES)
    texts = {
        name: torch_csv(plan(scenario, name), "compute_comms")
        for name in ("1f1b", "zerobubble", "pipemorph")
    }
    rows = {name: text.splitlines() for name, text in texts.items()}
    (folder / "plans.json").write_text(json.dumps(rows))
    (folder / "pipemorph compute_comms.csv").write_text(texts["pipemorph"])
    command = [sys.executable, "-m", adapting.__name__, str(folder)]
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    with Background(folder / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("case", adapting.CASES)
def test_gradients_are_exact_and_nothing_is_left(case: str, found: Found) -> None:
    assert max(rank[case]["error"] for rank in found) < 1e-9
    assert [rank[case]["left"] for rank in found] == [[]] * RANKS


@pytest.mark.parametrize("case", adapting.CASES)
def test_all_ranks_swap_at_the_same_boundaries(case: str, found: Found) -> None:
    first = found[0][case]
    assert first["swapped"][0]
    for rank in found[1:]:
        assert rank[case]["swapped"] == first["swapped"]
        assert rank[case]["delegated"] == first["delegated"]


def test_plans_change_often_until_the_planner_fails(found: Found) -> None:
    rank = found[0]["in turn"]
    assert sum(rank["swapped"]) > 2
    assert len({str(one) for one in rank["delegated"]}) > 1
    assert rank["said"] == ["the job goes on without re-planning: no more plans"]
    assert all(other["in turn"]["said"] == [] for other in found[1:])


def test_a_late_link_is_seen_delegated_and_let_go(found: Found) -> None:
    rank = found[0]["where late"]
    for iteration, told in enumerate(rank["told"]):
        for link, both in enumerate(told):
            slow = link == 1 and iteration in adapting.LATE
            assert all((time_ms > adapting.LATE_MS / 2) == slow for time_ms in both), iteration
    late, last = adapting.LATE[-1], rank["delegated"][-1]
    assert rank["delegated"][late] == [[1, "down"], [1, "up"]]
    assert rank["delegated"][1] == last == []


def test_what_was_left_can_be_entered_again(found: Found) -> None:
    assert [rank["twice"]["told"] for rank in found] == [[3, 3]] * RANKS
    assert found[0]["twice"]["swapped"][::3] == [True, True]


def test_who_goes_on_hears_that_rank_0_has_left(found: Found) -> None:
    for rank in found[1:]:
        assert rank["left by one"]["said"] == "rank 0 has left, and plans no iteration 1"


def test_ranks_must_agree(found: Found) -> None:
    assert all("ranks differ in links" in rank["unlike"]["said"] for rank in found)
