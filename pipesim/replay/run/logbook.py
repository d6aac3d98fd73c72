"""What a worker has to say in the end, with all times on rank 0's clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from pipesim.replay.device.failover import Switch
from pipesim.replay.run.clocks import Clock
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Run
from pipesim.replay.run.run_json import run_document

__all__ = ["rank_document", "result_json"]


def rank_document(
    run: Run,
    clock: Clock,
    records: Sequence[Record],
    switches: Iterable[Switch],
    report: dict[str, object],
) -> dict[str, object]:
    """Return one rank's part of the result; see :mod:`pipesim.replay.run.measured`."""
    at = clock.aligned_ns
    return {
        "clock": {
            "offset_ms": clock.offset_ms,
            "drift_ppm": clock.drift_ppm,
            "uncertainty_ms": clock.uncertainty_ms,
        },
        "iterations": [
            {
                "compute": [[str(op), at(start), at(end)] for op, start, end in record.compute],
                "logical": [[at(start), at(end)] for start, end in record.logical],
                "steps": [
                    [run.number[step.message], step.path, at(step.start_ns), at(step.end_ns)]
                    for step in record.steps
                ],
            }
            for record in records
        ],
        "switches": [
            [switch.iteration, run.number[switch.message], at(switch.at_ns), switch.waited_ns]
            for switch in switches
        ],
        "report": report,
    }


def result_json(run: Run, ranks: Iterable[str]) -> str:
    """Return the text of a result, from the JSON that each rank has sent."""
    parts = ",\n".join(ranks)
    head = json.dumps({"format": "pipesim-replay-result", "version": 2, "run": run_document(run)})
    return f'{head[:-1]}, "ranks": [\n{parts}\n]}}\n'
