"""Ctrl-C on the command line, at whatever moment: one line, and exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, Background, waited_for

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="POSIX signals"),
    pytest.mark.usefixtures("in_folder"),
]


def ran(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python code with these arguments."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


PLANS_FOR_EVER = """\
from pathlib import Path
from planners import plan, planner

@planner("endless")
def endless(scenario):
    Path("begun").touch()
    while True:
        plan(scenario, "pipemorph")

from pipesim.cli import main
main()
"""


def test_ctrl_c(in_folder: Path) -> None:
    args = ["plan", "--planner", "endless", "-o", "plan.json"]
    with Background(in_folder / "run", sys.executable, "-c", PLANS_FOR_EVER, *args) as run:
        waited_for(Path("begun").exists, "the planner to be at work")
        run.process.send_signal(signal.SIGINT)
        run.ended()
    assert (run.process.returncode, run.output, run.said) == (2, "", "error: interrupted\n")
    assert not Path("plan.json").exists()


INTERRUPTED = """\
import os, signal, sys
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                for _ in range({times}):
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                        for _ in range(1000): pass
                    except KeyboardInterrupt:
                        pass
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise {error} from None
sys.meta_path.insert(0, Presses())
from pipesim.cli import main
main()
"""


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TypeError", "ImportError"])
@pytest.mark.parametrize("module", ["typer", "pipesim.cli.app", "pipesim.plot.gantt"])
def test_ctrl_c_while_modules_are_loaded(module: str, error: str, times: int) -> None:
    code = INTERRUPTED.format(module=module, error=error, times=times)
    done = ran(code, "compare", "--plot", "plot.png")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: interrupted\n")


def test_ctrl_c_once_an_error_is_told() -> None:
    code = (
        "import atexit, os, signal\n"
        "from pipesim.cli import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "main()\n"
    )
    done = ran(code, "compare", "--delay", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_where_nothing_can_be_raised() -> None:
    code = (
        "import os, signal, sys, time\n"
        "class Deleted:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(0)\n"
        "class Presses:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            Deleted()\n"
        f"            time.sleep({2 * PATIENCE_S})\n"
        "sys.meta_path.insert(0, Presses())\n"
        "from pipesim.cli import main\n"
        "main()\n"
    )
    done = ran(code, "planners")
    assert (done.returncode, done.stderr) == (2, "error: interrupted\n")


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from pipesim.cli import main\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "main()\n"
    )
    done = ran(code, "planners")
    assert (done.returncode, done.stderr) == (0, "")
