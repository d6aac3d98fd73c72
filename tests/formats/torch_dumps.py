"""Let torch make its own schedules, without processes, and write them.

``python -m tests.formats.torch_dumps FOLDER`` writes
``FOLDER/<schedule>-<ranks>-<stages a rank>-<micro-batches>-<kind>.csv`` for each of torch's
schedules that it can write. The kind ``deferred`` is ``compute_comms`` with receives as late as
torch's option ``defer_pp_recv`` puts them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LOOPED = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class Made(NamedTuple):
    """One of torch's schedules, for one shape."""

    name: str
    ranks: int
    chunks: int
    microbatches: int

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.ranks * self.chunks

    def file(self, kind: str) -> str:
        """The name of its file."""
        return f"{'-'.join(map(str, self))}-{kind}.csv"


def every() -> Iterator[Made]:
    """All that are written: N from as many as ranks to four times that, odd counts too."""
    for ranks in (2, 4):
        for n in (ranks, ranks + ranks // 2, 2 * ranks, 4 * ranks):
            for name in LOOPED:
                yield from (Made(name, ranks, chunks, n) for chunks in (2, 3))
            for name in V_SHAPED:
                if name != "DualPipeV" or n >= 2 * ranks:
                    yield Made(name, ranks, 2, n)


def _dump(made: Made, folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=made.ranks)
    own = [0, made.stages - 1] if made.name in V_SHAPED else range(0, made.stages, made.ranks)
    stages = [
        PipelineStage(torch.nn.Linear(1, 1), stage, made.stages, torch.device("cpu"))
        for stage in own
    ]
    schedule = schedules.get_schedule_class(made.name)(
        stages, made.microbatches, loss_fn=torch.nn.functional.mse_loss
    )
    schedule._prepare_schedule_with_comms(schedule.pipeline_order)
    for kind in ("compute_only", "compute_comms"):
        schedule._dump_csv(str(folder / made.file(kind)), format=kind)
    schedule._defer_pp_recv = True
    schedule._prepare_schedule_with_comms(schedule.pipeline_order)
    schedule._dump_csv(str(folder / made.file("deferred")), format="compute_comms")
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in every():
        _dump(each, Path(sys.argv[1]))
