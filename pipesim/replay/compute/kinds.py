"""Which Work a kind of compute stands for."""

from __future__ import annotations

import torch

from pipesim.replay.compute.held import Held, busy, multiplying, sleeping, stamped
from pipesim.replay.compute.work import Payload, Work
from pipesim.replay.run.run import Run

__all__ = ["payload", "work"]

_MATRIX = {"cpu": (256, torch.float32), "cuda": (2048, torch.bfloat16)}


def payload(run: Run, link: int) -> Payload:
    """Return what crosses a link, without making anything."""
    if run.compute == "model":
        from pipesim.replay.compute.model import activation

        return activation(run)
    return stamped(run, link)


def work(run: Run, index: int, device: torch.device) -> Work:
    """Return the operators of device ``index`` of the plan, to run on ``device``."""
    match run.compute, run.device:
        case "model", _:
            from pipesim.replay.compute.model import Model

            return Model(run, index, device)
        case "matmul", _:
            size, dtype = _MATRIX[run.device]
            return Held(run, multiplying(device, dtype, size), device)
        case _, "cuda":
            return Held(run, busy(device), device)
        case _:
            return Held(run, sleeping, device)
