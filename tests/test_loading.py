"""A command loads only what it uses: a large library costs a second, and most need none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.formats.test_megatron import ALL
from tests.formats.test_profiler import RANK0, RANK1, rank

HEAVY = ["matplotlib", "pandas", "pyarrow", "numba", "torch", "pulp", "highspy", "ortools"]

RUN = """
import contextlib, io, json, sys
heavy, commands = json.loads(sys.argv[1])
loaded = lambda: {name for name in heavy if name in sys.modules}
import pipesim
seen = loaded()
new = {"import pipesim": sorted(seen)}
from pipesim.cli.app import app
for command in commands:
    code = None
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            app(command.split(), prog_name="pipesim")
        except SystemExit as end:
            code = end.code
    if code != 0:
        sys.exit(f"{command}: exit code {code}")
    new[command] = sorted(loaded() - seen)
    seen |= loaded()
print(json.dumps(new))
"""

LIGHT = [
    "--help",
    "--version",
    "planners",
    "replay --help",
    "import megatron --help",
    "compare --delay 20ms --link 0 --csv rows.csv --trace trace.json",
    "compare --delay 20ms --link 0 --json",
    "plan --delay 20ms --link 0 -o plan.json",
    "simulate plan.json --delay 20ms --link 0 --transport delegated",
    "budget --slow 0=20ms",
    "explain --slow 0=20ms --transport nccl",
    "export plan.json --format chrome-trace -o trace.json",
    "export plan.json --format torch-csv -o schedule.csv",
    "import torch-csv schedule.csv -o plan.json",
    "import megatron --stages 2 --microbatches 12 train.log -o scenario.toml",
    "import profiler rank0.json rank1.json -o scenario.toml",
    "import timeline traces/a10_timelines/zerobubble_link2_60ms.csv -o scenario.toml",
    "compare --scenario scenario.toml",
    "compare --testbed h800 --delay 20ms --link 0",
    "trace make -o hour.csv",
    "trace show hour.csv --csv links.csv",
]
"""Commands that need no large library, in an order in which they feed each other."""

USES = {
    "simulate --planner 1f1b --plot chart.png": {"matplotlib"},
    "plan --planner search": {"numba"},
    "validate traces/measured_iterations.csv --calibration traces/calibration.toml": {"numba"},
    "optimal --delay 20ms --link 0": {"numba", "pulp", "highspy"},
    "import production traces/production/trace-ST.parquet -o scenario.toml": {
        "pandas",
        "pyarrow",
    },
}
"""Commands that need some, and which these may be."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "train.log").write_text(ALL)
    for number, operators in enumerate((RANK0, RANK1)):
        (tmp_path / f"rank{number}.json").write_text(json.dumps(rank(number, operators)))
    return tmp_path


def loaded(commands: list[str], folder: Path) -> dict[str, list[str]]:
    """Which heavy modules each command loads, beyond those of the commands before it."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([HEAVY, commands])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    new: dict[str, list[str]] = json.loads(ran.stdout)
    return new


def test_most_commands_load_no_large_library(folder: Path) -> None:
    new = loaded(LIGHT, folder)
    assert list(new) == ["import pipesim", *LIGHT]
    assert {command: names for command, names in new.items() if names} == {}


@pytest.mark.parametrize("command", USES)
def test_a_command_loads_only_what_it_uses(command: str, folder: Path) -> None:
    names = set(loaded([command], folder)[command])
    assert names
    assert names <= USES[command]
