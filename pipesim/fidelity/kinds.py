"""What a file of measurements holds, by its first bytes."""

from __future__ import annotations

import csv
import os

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_bytes, read_text

__all__ = ["KINDS", "kind_of"]

KINDS = {
    "runs": ("healthy_ms", "slow_ms"),
    "throughput": ("samples_per_gpu_s", "comm_ms", "iteration_ms"),
    "dynamic": ("change_every_ms", "iteration", "elapsed_ms"),
    "delegation": ("experiment", "dp", "iteration", "elapsed_ms"),
    "production": (),
}
"""The kinds of measurements, and the columns by which a CSV is known as one.

A production trace is no CSV but parquet.
"""

_PARQUET = b"PAR1"


def kind_of(path: StrPath) -> str:
    """Return the kind of measurements in a file.

    Raises
    ------
    FormatError
        The file cannot be read, or its first line is that of no kind.
    """
    if read_bytes(path).startswith(_PARQUET):
        return "production"
    line = read_text(path).partition("\n")[0]
    columns = {name.strip() for name in next(csv.reader([line]), [])}
    for kind, known in KINDS.items():
        if known and columns.issuperset(known):
            return kind
    raise FormatError(
        "is no file of measurements: neither parquet nor CSV with the columns of "
        f"{', '.join(kind for kind, known in KINDS.items() if known)}",
        file=os.fspath(path),
        line=1,
    )
