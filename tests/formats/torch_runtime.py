"""Run schedule files with stock torch.distributed.pipelining, four ranks over gloo.

``python -m tests.formats.torch_runtime FOLDER`` reads ``FOLDER/cases.json``, runs every case in one
process group, and each rank writes ``FOLDER/rank<i>.json``: for each case the largest error
of a gradient, relative to that of the model without a pipeline. torch is imported here only
when it is run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 4
WIDTH, BATCH = 5, 16


def main(folder: Path) -> int:
    return forked(RANKS, lambda rank: _run_rank(rank, folder))


def forked(ranks: int, run: Callable[[int], None]) -> int:
    """Run every rank in a process of its own; return 1 if one fails, and then end the others."""
    import torch.distributed.pipelining  # before the fork: once for all ranks

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    children = {_fork(rank, run) for rank in range(ranks)}
    failed = 0
    while children:
        ended, status = os.wait()
        children.remove(ended)
        if status and not failed:  # the others would wait for it for ever
            failed = 1
            for child in children:
                os.kill(child, signal.SIGKILL)
    return failed


def _fork(rank: int, run: Callable[[int], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(rank)
            code = 0
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(code)
    return child


def meet(rank: int, ranks: int, folder: Path) -> None:
    """Join the other ranks over gloo, through a file in a folder that they share."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(minutes=10),
    )


def _run_rank(rank: int, folder: Path) -> None:
    import torch.distributed as dist

    meet(rank, RANKS, folder)
    cases = json.loads((folder / "cases.json").read_text())
    results = {name: _largest_error(rank, folder, case) for name, case in cases.items()}
    if rank == 0:
        same = {name: _as_torch_adds_it(folder, case) for name, case in cases.items()}
        (folder / "same.json").write_text(json.dumps(same))
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _stages(rank: int, placement: list[int]) -> tuple[list[Any], Any]:
    """The stages of a rank, and the whole model with the same weights."""
    import copy

    import torch
    from torch.distributed.pipelining import PipelineStage

    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in placement
    ]
    stages = [
        PipelineStage(copy.deepcopy(block), stage, len(placement), torch.device("cpu"))
        for stage, block in enumerate(blocks)
        if placement[stage] == rank
    ]
    return stages, torch.nn.Sequential(*blocks)


def _largest_error(rank: int, folder: Path, case: dict[str, Any]) -> float:
    import torch
    from torch.distributed.pipelining import schedules

    stages, model = _stages(rank, case["placement"])
    loss = torch.nn.functional.mse_loss
    runner = getattr(schedules, case["runner"])(stages, case["microbatches"], loss_fn=loss)
    runner._load_csv(str(folder / case["file"]), format=case["kind"])
    data, target = torch.randn(2, BATCH * case["microbatches"], WIDTH)
    loss(model(data), target).backward()
    first, last = case["placement"][0] == rank, case["placement"][-1] == rank
    losses: list[Any] = []
    for _ in range(2):  # the second time must find nothing left over from the first
        for stage in stages:
            stage.submod.zero_grad()
        runner.step(*([data] if first else []), target=target if last else None, losses=losses)
    errors = [0.0]
    for stage in stages:
        right = model[stage.stage_index].parameters()
        for ours, reference in zip(stage.submod.parameters(), right, strict=True):
            wrong = (ours.grad - reference.grad).abs().max() / reference.grad.abs().max()
            errors.append(float(wrong))
    return max(errors)


def _as_torch_adds_it(folder: Path, case: dict[str, Any]) -> bool:
    """Whether the communication in a file is that which torch adds to the compute alone."""
    from torch.distributed.pipelining import schedules

    def rows(name: str) -> dict[int, list[Any]]:
        lines = (folder / name).read_text().splitlines()
        return {
            rank: [schedules._Action.from_str(cell) for cell in line.split(",")]
            for rank, line in enumerate(lines)
        }

    placement = case["placement"]
    added = schedules._add_send_recv(rows(case["compute"]), placement.__getitem__, len(placement))
    written = {
        rank: [action for action in row if action.computation_type != schedules.REDUCE_GRAD]
        for rank, row in rows(case["comms"]).items()
    }
    schedules._simulate_comms_compute(written, placement.__getitem__, len(placement))
    return bool(added == written)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
