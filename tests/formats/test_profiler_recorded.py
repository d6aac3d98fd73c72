"""Traces that torch recorded itself: of its own schedules, with stages that sleep a known while."""

from __future__ import annotations

import gzip
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.profiler import import_profiler
from pipesim.schedule import Op
from tests import ROOT
from tests.formats import profiler_recorder
from tests.formats.profiler_recorder import BACKWARD_MS, FORWARD_MS, RECORDED, SCHEDULES
from tests.processes import Background

ANNOTATED = [name for name in SCHEDULES if name != "1F1B"]
OVERHEAD_MS = {"receive": 1.5, "operator": 2.5, "clock": 4.5}
"""What torch computes besides, at most, in these recordings; with "clock" with the message."""


def kept(event: dict[str, Any], evidence: str) -> bool:
    """Whether an event stays in a trace that tells the wait by some evidence and no better."""
    if evidence == "receive":
        return True
    message = event["name"].startswith("gloo:")
    return not message and (evidence == "operator" or event["cat"] == "user_annotation")


def imported(name: str, folder: Path, evidence: str) -> Measurement:
    paths = []
    for path in sorted(RECORDED.glob(f"{name}-rank*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [one for one in trace["traceEvents"] if kept(one, evidence)]
        paths.append(folder / path.stem)
        paths[-1].write_text(json.dumps(trace))
    return import_profiler(paths)


def slept_ms(op: Op) -> float:
    """torch runs all of the first stage's backward in W: no stage needs its gradient."""
    match op.kind:
        case "F":
            return FORWARD_MS[op.stage]
        case "BW":
            return BACKWARD_MS[op.stage]
        case "B":
            return BACKWARD_MS[op.stage] if op.stage else 0.0
        case _:
            return 0.0 if op.stage else BACKWARD_MS[0]


@pytest.mark.parametrize("evidence", OVERHEAD_MS)
@pytest.mark.parametrize("name", ANNOTATED)
def test_operators_take_what_their_stages_slept(name: str, evidence: str, tmp_path: Path) -> None:
    """Whatever tells when the wait for a message was over."""
    made = imported(name, tmp_path, evidence)
    assert made.scenario.placement == SCHEDULES[name]
    (iteration,) = made.iterations
    for op, span in iteration.timeline.spans.items():
        over_ms = span.end_ms - span.start_ms - slept_ms(op)
        assert 0 <= over_ms < OVERHEAD_MS[evidence], op
    check = check_import(made)
    assert check is not None
    assert abs(check.error) < 0.06
    (waits,) = [note for note in made.notes if "include the wait for their message" in note]
    says = {
        "receive": "the receive inside",
        "operator": "the first operator inside",
        "clock": "the clocks",
    }
    assert says[evidence] in waits
    pairs = [note for note in made.notes if "OVERLAP_F_B" in note]
    assert len(pairs) == (name == "DualPipeV")


def test_what_annotates_nothing_is_named() -> None:
    with pytest.raises(FormatError) as error:
        import_profiler(sorted(RECORDED.glob("1F1B-rank*.json.gz")))
    assert "no pipeline annotations such as PP:0F0 or Forward 0" in str(error.value)
    assert "Schedule1F1B, which has one stage a rank, annotates nothing" in str(error.value)


def test_the_recordings_tell_nothing_of_their_machine() -> None:
    for path in RECORDED.iterdir():
        text = gzip.decompress(path.read_bytes()).decode()
        assert "host" not in text
        assert ".py" not in text
        assert path.stat().st_size < 5000


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_torch_as_installed(tmp_path: Path) -> None:
    """Causes come before effects on any machine, however slow it is."""
    command = [sys.executable, "-m", profiler_recorder.__name__, str(tmp_path / "traces")]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with Background(tmp_path / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
    for name, placement in SCHEDULES.items():
        files = sorted((tmp_path / "traces").glob(f"{name}-rank*.json.gz"))
        if name == "1F1B":
            with pytest.raises(FormatError, match="annotates nothing"):
                import_profiler(files)
            continue
        made = import_profiler(files)
        assert made.scenario.placement == placement
        assert made.schedule is not None
        for iteration in made.iterations:
            spans = iteration.timeline.spans
            for op, span in spans.items():
                assert span.end_ms - span.start_ms > 0.99 * slept_ms(op), op
                for need in made.schedule.needs(op):
                    slept = spans[need].start_ms + 0.99 * slept_ms(need)
                    assert span.start_ms >= slept, (name, op, need)
        # GPipe sends before its annotation ends, by how much depends on the machine.
        assert made.iterations or name == "GPipe"
