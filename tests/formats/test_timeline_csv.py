from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.formats.timeline_csv import COLUMNS, save_timeline_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.timeline import OpSpan, Timeline
from tests.strategies import cases


def test_exact_text(tmp_path: Path) -> None:
    spans = [
        [OpSpan(Op("F", 0, 0), 0, 10), OpSpan(Op("BW", 0, 0), 30.1, 1e-7 + 50)],
        [OpSpan(Op("B", 1, 0), 0.1 + 0.2, 1)],
    ]
    save_timeline_csv(Timeline(Scenario(stages=2), spans), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == (
        b"device,stage,op,microbatch,start_ms,end_ms\n"
        b"0,0,F,0,0.0,10.0\n"
        b"0,0,BW,0,30.1,50.0000001\n"
        b"1,1,B,0,0.30000000000000004,1.0\n"
    )


@given(cases())
def test_no_digit_is_lost(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Scenario, Schedule]
) -> None:
    path = tmp_path_factory.getbasetemp() / "timeline.csv"
    timeline = simulate(*case)
    save_timeline_csv(timeline, path)
    with path.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == COLUMNS
    assert [
        (int(device), int(stage), kind, int(m), float(start), float(end))
        for device, stage, kind, m, start, end in rows
    ] == [
        (device, s.op.stage, s.op.kind, s.op.microbatch, s.start_ms, s.end_ms)
        for device, spans in enumerate(timeline.compute)
        for s in spans
    ]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no folder"):
        save_timeline_csv(Timeline(Scenario(stages=1), [[]]), tmp_path / "no" / "a.csv")
