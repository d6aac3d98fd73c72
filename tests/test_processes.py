"""Nothing that a test starts outlives it, however the test ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.processes import PATIENCE_S, Background, read, waited_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SLEEP = f"import time; time.sleep({10 * PATIENCE_S})"
# Its child has a session of its own, so that no signal to the group reaches it.
FAMILY = f"""\
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True).wait()
"""


def test_a_failing_test_leaves_neither_a_command_nor_what_it_has_started(tmp_path: Path) -> None:
    started = Background(tmp_path, sys.executable, "-c", FAMILY)

    def fail() -> None:
        with started:
            waited_for(lambda: len(started.pids()) == 2, "a child")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert started.pids() == []
    assert started.process.returncode == -signal.SIGKILL


STARTS_AND_WAITS = """\
import sys
from pathlib import Path
from tests.processes import Background
with Background(Path(sys.argv[1]), sys.executable, "-c", sys.argv[2]) as run:
    print(run.process.pid, flush=True)
    run.process.wait()
"""


def test_a_killed_test_process_takes_its_command_along(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_AND_WAITS, str(tmp_path), SLEEP]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as testing:
        assert testing.stdout
        pid = int(testing.stdout.readline())
        testing.kill()
    waited_for(lambda: not read(pid, "cmdline"), "the command to end")
