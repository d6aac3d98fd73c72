"""Measured runs are read strictly."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import FormatError
from pipesim.fidelity.runs import load_runs
from tests import ROOT

SHIPPED = ROOT / "traces" / "measured_iterations.csv"
HEADER, *LINES = SHIPPED.read_text().splitlines()


def test_the_shipped_runs() -> None:
    runs = load_runs(SHIPPED)
    assert len(runs) == 48
    assert {run.testbed for run in runs} == {"h800", "a10"}
    first = runs[0]
    assert (first.stages, first.microbatches, first.message_bytes) == (8, 24, 10 * 2**20)
    assert first.slow_sends == ((6, 7), (7, 6))
    assert first.delegates is None
    assert first.place == f"{SHIPPED}:2"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("h800,", ",", "runs.csv:2: testbed must be a name, not ''"),
        ("14B,8,", "14B,eight,", "runs.csv:2: stages must be a whole number above 0, not 'eight'"),
        ("14B,8,24", "14B,8,0", "runs.csv:2: microbatches must be a whole number above 0"),
        (",1f1b,", ",2f2b,", "runs.csv:2: system must be one of 1f1b, zerobubble"),
        ("6>7 7>6", "6>7 7>8", "runs.csv:2: slow_sends must be sends between neighbours"),
        ("6>7 7>6", "6-7", "runs.csv:2: slow_sends must be sends"),
        ("6>7 7>6", "", "runs.csv:2: delay_ms is 10, but slow_sends names no send"),
        (",871.8,", ",nan,", "runs.csv:2: healthy_ms must be a time above 0, not 'nan'"),
        (",871.8,", ",-1,", "runs.csv:2: healthy_ms must be a time above 0"),
        (",1084.5,3\n", ",1084.5\n", "runs.csv:2: does not have as many values as the header"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "runs.csv"
    line = LINES[0] + "\n"
    assert old in line
    path.write_text(f"{HEADER}\n{line.replace(old, new)}")
    with pytest.raises(FormatError) as caught:
        load_runs(path)
    assert message in str(caught.value)


def test_files_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text, message in [
        ("", "x.csv:1: is empty"),
        (HEADER + "\n", "x.csv:1: has a header, but no rows"),
        ("a,b\n1,2\n", "x.csv:1: has no column testbed"),
        (HEADER + ",delay_ms\n", "x.csv:1: has several columns delay_ms"),
        (HEADER.replace("slow_ms", "fast_ms", 1), "x.csv:1: has no column slow_ms"),
    ]:
        path.write_text(text)
        with pytest.raises(FormatError, match=message):
            load_runs(path)


@given(st.integers(0, 600), st.binary(max_size=4))
def test_damage_is_an_error_or_no_damage(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    content = "\n".join([HEADER, *LINES[:3], ""]).encode()
    path.write_bytes(content[:at] + noise + content[at + len(noise) :])
    with suppress(FormatError):
        assert all(run.healthy_ms > 0 for run in load_runs(path))
