"""Stock torch trains as it should, whatever carries its messages."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest

from pipesim.formats.torch_csv import save_torch_csv
from pipesim.scenario import Scenario
from planners import plan
from tests import ROOT
from tests.formats.torch_runtime import RANKS
from tests.processes import Background
from tests.runtime import training

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What each rank found, in one run of all cases."""

    folder = tmp_path_factory.mktemp("training")
    for name, placement in training.PLACEMENTS.items():
        planner, _, kind = name.partition(" ")
        if kind:
            scenario = Scenario(
                stages=len(placement), microbatches=training.MICROBATCHES, placement=placement
            )
            save_torch_csv(plan(scenario, planner), folder / f"{name}.csv", kind)  # type: ignore[arg-type]
    command = [sys.executable, "-m", training.__name__, str(folder)]
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    with Background(folder / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("schedule", training.PLACEMENTS)
def test_messages_of_a_process_group_train_as_before(schedule: str, found: Any) -> None:
    ranks = [rank[f"directly {schedule}"] for rank in found]
    placement = training.PLACEMENTS[schedule]
    assert max(rank["error"] for rank in ranks) < 1e-9
    assert [rank["left"] for rank in ranks] == [[]] * RANKS
    assert all(rank["quiet"] for rank in ranks)
    apart = [link for link in range(len(placement) - 1) if placement[link] != placement[link + 1]]
    each = [  # evaluated too, with activations alone
        (link, direction, microbatch)
        for link in apart
        for direction, times in (("down", 3 if placement == training.V else 6), ("up", 3))
        for microbatch in range(training.MICROBATCHES)
        for _ in range(times)
    ]
    sent: dict[tuple[Any, ...], list[int]] = {}
    landed: dict[tuple[Any, ...], list[int]] = {}
    for rank in ranks:
        for messages, times in (rank["sent"], sent), (rank["landed"], landed):
            for *message, ns, posted_ns in messages:
                times.setdefault(tuple(message), []).append(ns)
                assert max(ns, posted_ns) < rank["now_ns"]
    for times in sent, landed:
        assert sorted(key for key, all_ns in times.items() for _ in all_ns) == sorted(each)
    for (link, *message), all_ns in landed.items():
        for handed_ns, landed_ns in zip(sent[link, *message], all_ns, strict=True):
            late_ns = 3_000_000 if link == 0 else 0
            assert handed_ns + late_ns < landed_ns  # all ranks are on one host, with one clock


@pytest.mark.parametrize("schedule", training.PLACEMENTS)
def test_delegates_train_as_before_and_leave_nothing(schedule: str, found: Any) -> None:
    ranks = [rank[f"by delegates {schedule}"] for rank in found]
    placement = training.PLACEMENTS[schedule]
    assert max(rank["error"] for rank in ranks) < 1e-9
    assert [rank["left"] for rank in ranks] == [[]] * RANKS
    apart = [pair for pair in pairwise(placement) if pair[0] != pair[1]]
    ends = [sum(pair.count(rank) for pair in apart) for rank in range(RANKS)]
    evaluates = placement != training.V
    assert [rank["delegates"][0] for rank in ranks] == [2 * n for n in ends]
    few = [2 if rank in placement[:2] else 0 for rank in range(RANKS)]
    assert [rank["delegates"][1] for rank in ranks] == few
    each_way = training.MICROBATCHES * (6 + 6 + 3 * evaluates)
    for index, role in enumerate(("sent", "landed")):
        assert sum(rank["messages"][index] for rank in ranks) == each_way * len(apart), role
    assert [rank["ways"] for rank in ranks] == [
        [[0, "up"]] if rank == placement[1] else [] for rank in range(RANKS)
    ]


def test_mistakes_are_named(found: Any) -> None:
    for said in (each["refused"] for each in found):
        assert said["beyond"] == "no link 7: 8 stages have links 0 to 6"
        assert said["below"] == "no link -1: 8 stages have links 0 to 6"
        assert said["inside"] == "link 3 joins two stages of rank 3: no messages go over it"
        assert said["direction"] == "no direction 'left': there are down and up"
        assert said["delegates"] == "at least one delegate is needed, not 0"
        assert said["twice"].startswith("rerouted already: ")
        assert float(said["error"]) < 1e-9
        assert said["left"] == ""
        assert said["unlike"].startswith("ranks differ in links and delegates: ")
