"""Exported schedules run in stock torch.distributed.pipelining, and train as they should."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipesim.formats.torch_csv import TorchKind, load_torch_csv, save_torch_csv
from pipesim.scenario import Scenario
from planners import plan
from tests import ROOT
from tests.formats import torch_runtime
from tests.formats.torch_runtime import OWN, RANKS
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


def test_stock_torch_runs_what_is_exported(tmp_path: Path) -> None:
    """One test, since all cases run in one group of processes."""
    cases = {}
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
    assert [name for name in cases if not same[name]] == []
    _check_dumps(tmp_path)


def _check_dumps(folder: Path) -> None:
    """torch's own schedules are read, and both kinds of file hold the same one."""
    for name, placed in OWN.items():
        compute, comms = (load_torch_csv(folder / f"{name}-{kind}.csv") for kind in KINDS)
        assert compute == comms
        assert compute.placement == looped(placed).placement
        assert compute.microbatches == looped(placed).microbatches


def _run(folder: Path) -> None:
    """Run the script; whatever happens, none of its processes is left."""
    command = [sys.executable, "-m", torch_runtime.__name__, str(folder)]
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    with Background(folder / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
