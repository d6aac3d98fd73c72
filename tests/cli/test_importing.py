"""``pipesim import``: what is written, what is printed, and how errors end."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipesim.cli.app import app
from pipesim.documents.scenario_toml import load_scenario
from pipesim.scenario import Scenario
from tests import ROOT
from tests.formats.megatron_logs import ALL, PLAIN
from tests.formats.production_traces import SAMPLE
from tests.formats.profiler_traces import RANK0, RANK1, rank

ZERO = ROOT / "traces" / "a10_timelines" / "zerobubble_link2_60ms.csv"
KINDS = ("timeline", "production", "megatron", "profiler")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with one good input of each kind."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLE, "trace.parquet")
    Path("train.log").write_text(ALL)
    for number, ops in enumerate((RANK0, RANK1)):
        Path(f"rank{number}.json").write_text(json.dumps(rank(number, ops)))


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, ["import", *args])


def imported(*args: str) -> tuple[Scenario, Sequence[str]]:
    """The scenario, and the lines that are printed."""
    result = invoke(*args, "-o", "s.toml")
    assert result.exit_code == 0, result.output
    assert result.stderr == "wrote s.toml\n"
    return load_scenario("s.toml"), result.stdout.splitlines()


def error(*args: str) -> str:
    result = invoke(*args, "-o", "s.toml")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    assert not Path("s.toml").exists()
    return result.stderr


def test_production() -> None:
    scenario, lines = imported("production", "trace.parquet", "--name", "job")
    assert (scenario.name, scenario.stages, scenario.microbatches) == ("job", 4, 4)
    assert lines[0].startswith("job: 4 stages × 4 micro-batches · F ")
    assert any("not used: 156 rows, outside the pipeline (" in line for line in lines)
    one, lines = imported("production", "trace.parquet", "--step", "34", "--dp-rank", "1")
    assert one != scenario
    assert "- medians over 1 step of dp rank 1 (1,906 ms)" in lines


def test_megatron() -> None:
    scenario, lines = imported("megatron", "train.log", "--stages", "2", "--microbatches", "12")
    assert scenario.forward_ms[:, 0].tolist() == [10.5, 11]
    assert any("left out iteration 1 (4293.3 ms): start-up" in line for line in lines)
    told, lines = imported("megatron", "train.log", "--microbatches", "12")
    assert told == scenario
    assert "- train.log: the number of stages is 2, by line 1" in lines
    assert any(line.startswith("- F 10.75 ms ± 0.12, BW 20.5 ms ± 0 (med") for line in lines)
    Path("plain.log").write_text(PLAIN)
    args = ("--stages", "4", "--microbatches", "19", "--iterations", "5,7", "-q")
    quiet = invoke("megatron", "plain.log", *args, "-o", "s.toml")
    assert (quiet.stdout.count("\n"), quiet.stderr) == (1, "")
    assert quiet.stdout.startswith("Check: none. The operator times were guessed")
    assert load_scenario("s.toml").forward_ms[0, 0] == pytest.approx(435 / 66, abs=1e-4)


def test_timeline() -> None:
    shutil.copy(ZERO, "ops.csv")
    scenario, lines = imported("timeline", "ops.csv", "--stages", "4", "--iterations", "5,6,7")
    assert scenario.stages == 4
    assert "- medians over iterations 5, 6 and 7 (1391 to 1395 ms)" in lines
    assert any(line.startswith("- F 34") and " ± " in line for line in lines)
    Path("s.toml").unlink()
    assert "(iteration 5 lacks stage 4)" in error("timeline", "ops.csv", "--stages", "5")


def test_profiler() -> None:
    scenario, lines = imported("profiler", "rank0.json", "rank1.json", "--message-bytes", "5")
    assert scenario.message_bytes.tolist() == [5]
    assert "- medians over 2 iterations: 5 and 6" in lines


@pytest.mark.parametrize("kind", KINDS)
def test_help(kind: str) -> None:
    result = invoke(kind, "--help")
    assert result.exit_code == 0
    assert f"pipesim import {kind} " in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("foo a", "no such command 'foo'"),
        ("production nope", "nope: cannot be read: No such file"),
        ("production train.log", "train.log: is not a whole parquet file"),
        ("production trace.parquet --step 35", "no complete iteration of step 35"),
        ("production trace.parquet --step x", "invalid value for '--step'"),
        (
            "megatron train.log",
            "train.log: does not say the number of micro-batches: give --micro",
        ),
        ("megatron train.log --stages 0 --microbatches 1", "invalid value for '--stages'"),
        (
            "megatron train.log --microbatches 5000000",
            "stages × micro-batches is 10,000,000: more",
        ),
        (
            "megatron train.log --stages 3 --microbatches 2",
            "train.log:1: says that the number of stages is 2",
        ),
        ("megatron rank0.json --stages 2 --microbatches 2", 'has no "iteration N/ M'),
        ("megatron trace.parquet --stages 2 --microbatches 2", "is not text in UTF-8"),
        ("megatron train.log --stages 2 --microbatches 2 --iterations 9", "no iteration 9"),
        ("profiler train.log", "train.log:1:1: is not JSON: Expecting value"),
        ("profiler rank1.json", "rank1.json: no file has stage 0 (no file is from rank 0)"),
        ("profiler rank0.json", "rank0.json: stage 0 sends forwards on, but no file has stage 1"),
        ("profiler rank0.json rank0.json", "rank0.json: is of rank 0, and so is rank0.json"),
        ("profiler rank0.json rank1.json --iterations 1,1", "--iterations: '1' is given twice"),
        ("profiler", "missing argument 'JSON...'"),
    ],
)
def test_an_error_is_one_line(args: str, words: str) -> None:
    assert words in error(*args.split())


@pytest.mark.parametrize("file", ["trace.parquet", "train.log", "rank0.json"])
def test_inputs_are_not_overwritten(file: str) -> None:
    before = Path(file).read_bytes()
    kinds = {
        "trace.parquet": ["production"],
        "train.log": ["megatron", "--stages=2", "--microbatches=2"],
        "rank0.json": ["profiler", "rank1.json"],
    }
    result = invoke(*kinds[file], file, "-o", file)
    assert (result.exit_code, "would overwrite an input" in result.stderr) == (2, True)
    assert Path(file).read_bytes() == before


@pytest.mark.parametrize("drops", [[], ["--explain-drops"]])
def test_what_is_printed_fits_a_terminal_and_says_what_was_not_used(drops: list[str]) -> None:
    args = ["import", "production", "trace.parquet", "-o", "s.toml", *drops]
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(app, args)
    wide = CliRunner().invoke(app, args)
    assert narrow.exit_code == wide.exit_code == 0
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    words = [text.replace("─", "").split() for text in (narrow.stdout, wide.stdout)]
    assert words[0] == words[1]  # nothing is broken inside a word
    assert wide.stdout.endswith(" %\n")
    assert wide.stderr == "wrote s.toml\n"
    lines = wide.stdout.splitlines()
    if drops:
        start = lines.index("not used: 156 rows, outside the pipeline:")
        assert lines[start + 2] == "  gc: 24 rows, from row 17 on"
    else:
        assert any(
            line.startswith("not used: 1 worker, which the scenario is not of (dp rank ")
            for line in lines
        )
    numbers = next(line.split() for line in lines if line.startswith("rows "))
    found, used = (int(text.replace(",", "")) for text in numbers[1:3])
    dropped = [line.split()[2] for line in lines if re.match(r"not used: \S+ rows, ", line)]
    assert found == used + sum(int(text.replace(",", "")) for text in dropped)


def test_files_are_called_by_their_names_where_these_tell_them_apart() -> None:
    Path("logs").mkdir()
    Path("logs/train.log").write_text(ALL)
    result = invoke("megatron", "logs/train.log", "--microbatches", "12", "-o", "s.toml")
    assert "- train.log: the number of stages is 2, by line 1" in result.stdout
    assert "logs/" not in result.stdout
