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


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "torch.distributed.launcher.api"])
def test_ctrl_c_while_a_replay_loads_torch(module: str) -> None:
    code = INTERRUPTED.format(module=module, error="KeyboardInterrupt", times=1)
    done = ran(code, "replay", "--planner", "1f1b", "--transport", "nccl")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: interrupted\n")


def test_ctrl_c_in_code_that_was_made() -> None:
    """Python notes that it has left such code by KeyboardInterrupt, and would end by SIGINT."""
    code = (
        "import sys\n"
        "class Presses:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            exec('import os, signal; os.kill(os.getpid(), signal.SIGINT)')\n"
        "sys.meta_path.insert(0, Presses())\n"
        "from pipesim.cli import main\n"
        "main()\n"
    )
    done = ran(code, "planners")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: interrupted\n")


def test_ctrl_c_that_comes_too_late() -> None:
    code = (
        "import atexit, os, signal\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "from pipesim.cli import main\n"
        "main()\n"
    )
    done = ran(code, "planners")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pipemorph" in done.stdout


PRESSED_IN_A_CALL = """\
import os, signal, sys
left = int(sys.argv.pop(1))
def count(frame, event, argument):
    global left
    left -= 1
    if left == 0:
        sys.setprofile(None)
        open("pressed", "w").close()
        os.kill(os.getpid(), signal.SIGINT)
from pipesim.cli import main
sys.setprofile(count)
main()
"""

SLOW_LINK = ["--delay", "20ms", "--link", "0"]
COMMANDS = {
    "compare": SLOW_LINK,
    "plan": [*SLOW_LINK, "--planner", "search"],
    "optimal": SLOW_LINK,
    "simulate": [*SLOW_LINK, "--planner", "1f1b"],
    "budget": SLOW_LINK,
    "explain": [*SLOW_LINK, "--planner", "1f1b"],
    "planners": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("calls", [10, 10_000, 150_000, 400_000])
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_in_any_command(in_folder: Path, command: str, calls: int) -> None:
    """Pressed after so many calls and returns of functions, if there are as many."""
    done = ran(PRESSED_IN_A_CALL, str(calls), command, *COMMANDS[command])
    pressed = (in_folder / "pressed").exists()
    assert done.returncode == (2 if pressed else 0), done.stderr
    assert done.stderr.endswith("error: interrupted\n") == pressed
