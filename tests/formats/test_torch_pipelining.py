"""Exported schedules run in stock torch.distributed.pipelining, and train as they should."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipesim.actions import Action, Upkeep
from pipesim.communication import sending_of
from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.engine import deadlocked
from pipesim.errors import FormatError
from pipesim.formats.torch_csv import TorchKind, load_torch_csv, save_torch_csv, torch_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Nccl
from planners import plan
from tests import ROOT
from tests.formats import torch_dumps, torch_runtime
from tests.formats.torch_runtime import RANKS
from tests.processes import Background

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

PLAIN = Scenario(stages=RANKS, microbatches=7, latency_ms=[20.0, 0.0, 0.0])


def looped(kind: str, microbatches: int = 2 * RANKS) -> Scenario:
    return Scenario(
        stages=2 * RANKS,
        microbatches=microbatches,
        placement=Scenario.place(kind, RANKS, 2),  # type: ignore[arg-type]
    )


PLANS = {
    "1f1b": PLAIN,
    "zerobubble": PLAIN,
    "pipemorph": PLAIN,
    "interleaved-1f1b": looped("interleaved"),
    "odd interleaved-1f1b": looped("interleaved", 6),
    "interleaved zerobubble": looped("interleaved"),
    "v zerobubble": looped("v"),
    "v pipemorph": looped("v"),
}
RUNTIME, IN_STEP = "_PipelineScheduleRuntime", "PipelineScheduleMulti"
KINDS: tuple[TorchKind, ...] = ("compute_only", "compute_comms")
RUNS: list[tuple[str, str, TorchKind]] = [
    *((name, RUNTIME, kind) for name in PLANS for kind in KINDS),
    # This one cannot hand a result to another stage on the same rank.
    *((name, IN_STEP, "compute_only") for name in PLANS if not name.startswith("v ")),
]


def received_late(schedule: Schedule) -> Schedule:
    """Each message received right before its operator, and sent right after."""
    rows: list[list[Action]] = []
    for order in schedule.orders:
        row: list[Action] = []
        for op in order:
            for need in schedule.needs(op):
                sending = sending_of(need, schedule.placement)
                if sending and need.stage != op.stage:
                    row.append(sending.other)
            sending = sending_of(op, schedule.placement)
            row += [op, sending] if sending else [op]
        rows.append([*row, *(Upkeep("REDUCE_GRAD", stage) for stage in {op.stage for op in order})])
    return Schedule.of_actions(rows, schedule.placement, schedule.microbatches)


LATE = "1f1b received late"
"""Neighbours that both send first: blocking sends hang, gloo does not."""
QUEUED = "one-queue"
"""Messages in batches, taken apart for torch."""


def test_stock_torch_runs_what_is_exported(tmp_path: Path) -> None:
    """One test, since all cases run in one group of processes."""
    late = received_late(plan(PLAIN, "1f1b"))
    assert deadlocked(late, "exchange")
    assert deadlocked(late, Nccl(p2p_streams="peer"))
    save_torch_csv(late, tmp_path / "late.csv", "compute_comms")
    save_torch_csv(late, tmp_path / "late-only.csv")
    cases = {
        LATE: {
            "runner": RUNTIME,
            "kind": "compute_comms",
            "file": "late.csv",
            "compute": "late-only.csv",
            "comms": "late.csv",
            "placement": list(late.placement),
            "microbatches": late.microbatches,
        }
    }
    late_first = PLAIN.replaced(latency_ms=0.0, occupancy_ms=PLAIN.latency_ms)
    queued = plan(late_first, "one-queue", over=Nccl())
    save_torch_csv(queued, tmp_path / "queued.csv", "compute_comms")
    save_torch_csv(queued, tmp_path / "queued-only.csv")
    cases[QUEUED] = cases[LATE] | {
        "file": "queued.csv", "comms": "queued.csv", "compute": "queued-only.csv"
    }  # fmt: skip
    for number, (name, scenario) in enumerate(PLANS.items()):
        schedule = plan(scenario, name.rpartition(" ")[2])
        files: dict[TorchKind, str] = {kind: f"{number}-{kind}.csv" for kind in KINDS}
        for kind, file in files.items():
            save_torch_csv(schedule, tmp_path / file, kind)
        for _, runner, kind in (run for run in RUNS if run[0] == name):
            cases[f"{name} {runner} {kind}"] = {
                "runner": runner,
                "kind": kind,
                "file": files[kind],
                "compute": files["compute_only"],
                "comms": files["compute_comms"],
                "placement": list(schedule.placement),
                "microbatches": schedule.microbatches,
            }
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    _run(tmp_path)
    for rank in range(RANKS):
        errors = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert errors.keys() == cases.keys()
        assert {name: error for name, error in errors.items() if not error < 1e-9} == {}
    same = json.loads((tmp_path / "same.json").read_text())
    assert [name for name in cases if not same[name]] == [LATE, QUEUED]


# -- torch's own schedules ---------------------------------------------------------------

EVERY = list(torch_dumps.every())


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    command = [sys.executable, "-m", torch_dumps.__name__, str(folder)]
    with Background(folder / "run", *command, env={"PYTHONPATH": str(ROOT)}) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
    return folder


def _cells(text: str) -> list[list[str]]:
    return [[cell for cell in line.split(",") if cell] for line in text.splitlines()]


@pytest.mark.parametrize("made", EVERY, ids=lambda made: made.file("csv")[:-8])
def test_torchs_own_schedules_come_in_and_go_out_as_they_are(
    made: torch_dumps.Made, dumps: Path, tmp_path: Path
) -> None:
    files = {kind: dumps / made.file(kind) for kind in KINDS}
    compute, comms = map(load_torch_csv, files.values())
    style = "v" if made.name in torch_dumps.V_SHAPED else "interleaved"
    assert compute.orders == comms.orders
    assert compute.placement == Scenario.place(style, made.ranks, made.chunks)  # type: ignore[arg-type]
    assert compute.microbatches == made.microbatches
    assert not compute.communicates
    assert (compute.actions is not None) == (made.name == "DualPipeV")
    assert torch_csv(comms, "compute_comms") == files["compute_comms"].read_text()
    assert _cells(torch_csv(compute)) == _cells(files["compute_only"].read_text())
    assert _cells(torch_csv(comms)) == _cells(files["compute_only"].read_text())
    ours = tmp_path / "ours.csv"
    save_torch_csv(compute, ours, "compute_comms")
    for schedule in (compute, comms, load_torch_csv(ours)):
        save_plan(schedule, tmp_path / "plan.json")
        assert load_plan(tmp_path / "plan.json") == schedule
        for over in ("exchange", "nccl"):
            assert deadlocked(schedule, over) == ()


def test_receives_that_torch_defers_are_kept_or_refused(dumps: Path) -> None:
    """Some of these files mix up their messages: torch computes wrong gradients with them.

    ZBVZeroBubble on 2 ranks × 2 stages × 4 micro-batches over gloo: wrong by up to 0.33.
    """
    refused = set()
    for made in EVERY:
        file = dumps / made.file("deferred")
        try:
            schedule = load_torch_csv(file)
        except FormatError as error:
            refused.add(made)
            wanted = r"csv:\d+:\d+: \S+ would get what .* match messages by their order alone$"
            assert re.search(wanted, str(error))  # noqa: PT017
        else:
            assert torch_csv(schedule, "compute_comms") == file.read_text()
    assert torch_dumps.Made("ZBVZeroBubble", 2, 2, 4) in refused
    assert {made.name for made in refused} <= {
        "ZBVZeroBubble",
        "InterleavedZeroBubble",
        "DualPipeV",
    }


def _run(folder: Path) -> None:
    """Run the script; whatever happens, none of its processes is left."""
    command = [sys.executable, "-m", torch_runtime.__name__, str(folder)]
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    with Background(folder / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
