"""Production traces: two files, and one made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests import ROOT

SAMPLE = ROOT / "tests" / "data" / "production" / "three-steps.parquet"
SHIPPED = ROOT / "traces" / "production" / "trace-ST.parquet"


def small(steps: int = 2, dp_ranks: int = 1) -> pd.DataFrame:
    """Two stages, one micro-batch: F 10 and 20 ms, BW 30 and 40 ms, messages 1 ms."""
    operations = [
        (0, "params-all-gather", -5, 5, -1),
        (0, "forward-compute", 0, 10, 0),
        (0, "forward-send", 10, 11, -1),
        (1, "forward-recv", -2, 11, -1),
        (1, "forward-compute", 11, 31, 0),
        (1, "backward-compute", 31, 71, 0),
        (1, "backward-send", 71, 72, -1),
        (0, "backward-recv", 11, 72, -1),
        (0, "backward-compute", 72, 102, 0),
    ]
    return pd.DataFrame(
        {
            "dp_rank": np.int8(dp),
            "stage": np.int8(stage),
            "rank": np.int16(2 * stage + dp),
            "step": 7 + step,
            "optype": optype,
            "start_ts": np.float32(1 + start / 1e3),
            "duration": np.float32((end - start) / 1e3),
            "seq_id": np.int32(0),
            "mc": np.int8(0),
            "mb_id": np.int8(m),
            "gmc": np.int16(stage),
        }
        for step in range(steps)
        for dp in range(dp_ranks)
        for stage, optype, start, end, m in operations
    )
