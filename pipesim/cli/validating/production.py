"""A production trace: every step replayed from its own durations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipesim.cli.output import note, progress, show, show_json
from pipesim.text import percent

__all__ = ["check_production"]


def check_production(measured: Path, json: bool, quiet: bool) -> None:
    """Replay a production trace and print how long its steps come out."""
    from pipesim.fidelity.production import check_replay

    with progress(quiet) as report:
        report("replaying every step")
        found = check_replay(measured)
    if json:
        show_json(found.as_dict())
        return
    median, ninetieth, largest = np.quantile(found.abs_errors, [0.5, 0.9, 1.0]).tolist()
    if not quiet:
        show(
            "Replay check: every step is run again from its own measured durations. It predicts "
            "nothing.",
            "",
        )
    show(
        f"steps                  {found.steps} ({len(found.rows)} over all data-parallel ranks)",
        f"median absolute error  {percent(median, 4)}",
        f"90th percentile        {percent(ninetieth, 4)}",
        f"largest                {percent(largest, 4)}",
    )
    if not quiet:
        for line in found.notes:
            note(line)
