"""What GPUs make of plans: replays on CUDA, as many as fit in under four minutes, as JSON.

    python benchmarks/gpu_replay.py -o result.json

Without CUDA it says so. With one GPU, four processes share it: messages, gradients and the
order of operators mean something then, times do not, as kernels of different processes take
turns. Only the runs of one process have times. With two GPUs or more each process has its own,
up to four, and NCCL is tried too.

A run that fails is an entry with an ``error``, one for which no time was left one that was
``skipped``. ``--device cpu`` tries the script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

BUDGET_S = 220.0
LONGEST_RUN_S = 60.0
GRACE_S = 5.0
MICROBATCHES = 12
TOLERANCE_MS = 0.5
"""How long before the end of what it needs an operator may seem to start: clocks are not exact."""
GRADIENT_TOLERANCE = 1e-3
"""Of gradients in 32 bits, against the same training without a pipeline."""


class Case(NamedTuple):
    """One replay."""

    transport: str
    planner: str
    compute: str
    delay_ms: float
    stages: int
    device: str

    def __str__(self) -> str:
        return f"{self.planner} over {self.transport}, {self.compute}, {self.delay_ms:g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="where to write the JSON as well")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all runs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(outcome(Case(*options.case))))
        return
    try:
        result = measured(options.budget, options.device)
    except Exception as error:  # of a CUDA that is there but does not work
        result = {"cuda": False, "reason": f"{type(error).__name__}: {error}"}
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


def measured(budget_s: float, device: str) -> dict[str, object]:
    """Return everything: the machine, and an entry for each run."""
    deadline = monotonic() + budget_s
    try:
        import torch
    except ImportError:
        return {"cuda": False, "reason": "torch is not installed: pip install 'pipesim[replay]'"}
    cuda = torch.cuda.is_available()
    if not cuda and device == "cuda":
        return {"cuda": False, "reason": "there is no CUDA device that torch can use"}
    gpus = torch.cuda.device_count() if device == "cuda" else 4  # to try the cases of many
    runs = [entry(case, gpus, deadline) for case in cases(gpus, device)]
    failed = sum("error" in run for run in runs)
    return {"cuda": cuda, "system": system(), "failed": failed, "runs": runs}


def system() -> dict[str, object]:
    """Return what the machine and its software are."""
    import torch

    facts: dict[str, object] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "gpus": [],
    }
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts |= {"gpus": names, "cuda": torch.version.cuda}
        if torch.distributed.is_nccl_available():
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts


def cases(gpus: int, device: str) -> list[Case]:
    """Return what to run, the most telling first."""
    stages = min(gpus, 4) if gpus > 1 else 4
    delegated = [
        ("delegated", planner, compute, delay)
        for delay, computes in ((20.0, ("model", "sleep", "matmul")), (0.0, ("sleep", "model")))
        for compute in computes
        for planner in ("pipemorph", "zerobubble")
    ]
    delegated += [("delegated", planner, "matmul", 0.0) for planner in ("pipemorph", "zerobubble")]
    nccl = [
        ("nccl", "zerobubble", "model", 20.0),
        ("nccl", "zerobubble", "sleep", 20.0),
        ("nccl", "zerobubble", "sleep", 0.0),
        ("exchange", "1f1b", "sleep", 20.0),
        ("nccl", "pipemorph", "sleep", 20.0),
        ("nccl", "zerobubble", "matmul", 20.0),
    ]
    if gpus > 1:
        both = [case for pair in zip(nccl, delegated, strict=False) for case in pair]
        return [Case(*case, stages, device) for case in both + delegated[len(nccl) :]]
    alone = [Case("delegated", "zerobubble", kind, 0.0, 1, device) for kind in ("sleep", "matmul")]
    return alone + [Case(*case, stages, device) for case in delegated]


def entry(case: Case, gpus: int, deadline: float) -> dict[str, object]:
    """Run a case in a process of its own, as long as there is time."""
    said: dict[str, object] = {**case._asdict(), "timing": timing(case, gpus)}
    started = monotonic()
    left_s = deadline - started
    if left_s < LONGEST_RUN_S / 3:
        return said | {"skipped": "no time was left"}
    print(f"{case} …", file=sys.stderr)
    limit_s = min(left_s, LONGEST_RUN_S)
    command = [sys.executable, str(Path(__file__).resolve()), "--case", json.dumps(case)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
        said |= json.loads(printed.splitlines()[-1])
    except subprocess.TimeoutExpired:
        end(process)
        said["error"] = f"did not end in {limit_s:.0f} s"
    except (IndexError, ValueError):
        said["error"] = f"ended with code {process.returncode} and said nothing"
    return said | {"seconds": round(monotonic() - started, 1)}


def timing(case: Case, gpus: int) -> str:
    """Say what a run's times are worth."""
    if case.device == "cpu":
        return f"no GPU, {os.cpu_count()} CPUs: tries the script"
    return "shared GPU: not comparable" if case.stages > gpus else "a GPU for each process"


def end(process: subprocess.Popen[str]) -> None:
    """End a run; its launcher ends the workers, and workers end when it is gone."""
    process.terminate()
    try:
        process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def outcome(case: Case) -> dict[str, object]:
    """Replay a case and return what `pipesim replay --json` prints, and checks; or why not."""
    try:
        from pipesim import Scenario, plan
        from pipesim.replay.prepare import replay

        scenario = Scenario(stages=case.stages, microbatches=MICROBATCHES)
        if case.delay_ms:
            scenario = scenario.with_delay(case.delay_ms, links=[0])
        options: dict[str, Any] = {"compute": case.compute, "device": case.device}
        replayed = replay(
            scenario,
            plan(scenario, case.planner),
            case.transport,
            iterations=3,
            timeout_s=20.0,
            **options,
        )
        least_ms, slow_ms = least_waits_ms(replayed)
        checks: dict[str, object] = {
            "in_order": least_ms >= -TOLERANCE_MS,
            "least_wait_ms": least_ms,
            "least_wait_over_slow_link_ms": slow_ms,
        }
        if replayed.gradient_error is not None:
            checks["gradients_right"] = replayed.gradient_error < GRADIENT_TOLERANCE
        return {"checks": checks, "replay": replayed.as_dict()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def least_waits_ms(replayed: Any) -> tuple[float, float | None]:
    """Return the least time from the end of what an operator needs to its start.

    Over all pairs of operators, and over those that the delayed link 0 joins.
    """
    scenario, schedule = replayed.run.scenario, replayed.run.schedule
    everywhere, slow = [], []
    for timeline in replayed.measured.counted:
        for op, span in timeline.spans.items():
            for need in schedule.needs(op):
                everywhere.append(span.start_ms - timeline.spans[need].end_ms)
                if {op.stage, need.stage} == {0, 1} and scenario.delay_ms.any():
                    slow.append(everywhere[-1])
    return min(everywhere), min(slow, default=None)


if __name__ == "__main__":
    main()
