"""What Megatron-LM logs, with all timers, with their extremes, and with none."""

from __future__ import annotations


def iteration(number: int, elapsed_ms: object, stamp: str = "[2025-01-02 03:04:05] ") -> str:
    return (
        f" {stamp}iteration {number:8d}/      15 | consumed samples: {number * 12:12d} | elapsed "
        f"time per iteration (ms): {elapsed_ms} | learning rate: 1.500000E-04 | global batch size: "
        "   12 | lm loss: 1.084910E+01 | loss scale: 1.0 | grad norm: 3.513 | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |\n"
    )


SETUP = """\
using world size: 4, data-parallel size: 2, pipeline-model-parallel size: 2
> building train, validation, and test datasets ...
times across ranks (ms):
  model-and-optimizer-setup:
     rank  0: 1020.90
     rank  1: 1022.97
[before the start of training step] datetime: 2025-01-02 03:04:01
"""
TIMERS = """\
times across ranks (ms):
  forward-backward:
     rank  0: 400.00
     rank  1: 400.00
     rank  2: 400.00
     rank  3: 400.00
  forward-compute:
     rank  0: 118.00
     rank  1: 122.00
     rank  2: 130.00
     rank  3: 134.00
  backward-compute:
     rank  0: 240.00
     rank  1: 240.00
     rank  2: 251.00
     rank  3: 253.00
"""
ALL = (
    SETUP
    + iteration(1, 4293.3)
    + "/opt/megatron/training.py:718: UserWarning: something\n  warnings.warn(\n"
    + TIMERS
    + iteration(2, 429.3)
    + TIMERS
    + iteration(3, 430.3)
    + TIMERS.replace("118.00", "128.00").replace("122.00", "136.00")
)
MINMAX = (
    iteration(2, 429.3)
    + """\
(min, max) time across ranks (ms):
    forward-backward ...............................: (400.00, 401.00)
    forward-compute ................................: (118.00, 144.00)
    backward-compute ...............................: (240.00, 264.00)
    optimizer-clip-main-grad .......................: (1.00, 2.00)
"""
)
PLAIN = "".join(iteration(n, ms) for n, ms in ((5, 430.0), (6, 450.0), (7, 440.0)))
