"""Schedules of torch.distributed.pipelining as CSV."""

from __future__ import annotations

from pipesim.formats.torch_csv.reader import TorchSchedule, import_torch_csv, load_torch_csv
from pipesim.formats.torch_csv.writer import TorchKind, save_torch_csv, torch_csv

__all__ = [
    "TorchKind",
    "TorchSchedule",
    "import_torch_csv",
    "load_torch_csv",
    "save_torch_csv",
    "torch_csv",
]
