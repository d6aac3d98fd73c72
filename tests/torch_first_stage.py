"""Say what each action of a stock torch schedule computes: two stages in one process, over gloo.

``python -m tests.torch_first_stage FOLDER`` writes ``FOLDER/seen.json``: for each action the
backward passes through the stage that it made, and how many of the stage's parameters have a
gradient after it. torch is imported here only when it is run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.formats.torch_runtime import WIDTH, meet

ORDER = "0F0,1F0,1I0,0I0,0W0,1W0"


def main(folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    passes = [0, 0]

    class Counted(torch.nn.Module):
        def __init__(self, stage: int) -> None:
            super().__init__()
            self.layer, self.stage = torch.nn.Linear(WIDTH, WIDTH), stage

        def forward(self, data: Any) -> Any:
            result = self.layer(data).tanh()
            result.grad_fn.register_hook(self._passed)
            return result

        def _passed(self, *_: object) -> None:
            passes[self.stage] += 1

    meet(0, 1, folder)
    stages = [PipelineStage(Counted(s), s, 2, torch.device("cpu")) for s in range(2)]
    (folder / "order.csv").write_text(ORDER + "\n")
    runner = _PipelineScheduleRuntime(stages, 1, loss_fn=torch.nn.functional.mse_loss)
    runner._load_csv(str(folder / "order.csv"))
    seen: dict[str, list[int]] = {}

    def watched(stage: Any, name: str, letter: str) -> None:
        original = getattr(stage, name)

        def run(chunk: int, *args: Any, **told: Any) -> Any:
            before = passes[stage.stage_index]
            result = original(chunk, *args, **told)
            there = sum(p.grad is not None for p in stage.submod.parameters())
            made = passes[stage.stage_index] - before
            seen[f"{stage.stage_index}{letter}{chunk}"] = [made, there]
            return result

        setattr(stage, name, run)

    data = torch.randn(4, WIDTH)
    runner.step(data, target=data)  # torch tries its stages out before the first one
    for stage in stages:
        stage.submod.zero_grad()
        watched(stage, "backward_one_chunk", "I")
        watched(stage, "backward_weight_one_chunk", "W")
    runner.step(data, target=data)
    dist.destroy_process_group()
    (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
