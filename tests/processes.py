"""Commands in the background that leave nothing behind when a test ends, however it ends."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests import ROOT

PATIENCE_S = 300.0
"""How long a test waits for what takes a second on an idle machine: only to catch what hangs."""

_BECOME = ROOT / "tests" / "become.py"
_LOOK_S = 0.02
_MARK = "PIPESIM_TEST_MARK"
T = TypeVar("T")


def waited_for(find: Callable[[], T | None], what: str) -> T:
    """Return the first result of ``find`` that is true."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := find():
            return found
        time.sleep(_LOOK_S)
    raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")


class Background:
    """A command in the background; its processes, and all that they start, carry a mark.

    It has a temporary folder, a session and a process group of its own. Everything with its
    mark is killed when its ``with`` ends, and the command when the test process does.
    """

    def __init__(
        self,
        folder: Path,
        *command: str,
        env: Mapping[str, str | None] | None = None,
        stderr: int | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.said_file = folder / "stderr"
        self.output_file = folder / "stdout"
        self._mark = secrets.token_hex(8)
        environment: dict[str, str | None] = {
            **os.environ,
            _MARK: self._mark,
            "TMPDIR": str(self.temporary),
            **(env or {}),
        }
        with self.said_file.open("wb") as said, self.output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_BECOME), str(os.getpid()), *command],
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=said if stderr is None else stderr,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        waited_for(self._none_is_left, "killed processes to end")

    def _none_is_left(self) -> bool:
        """Kill what is there: more may have been started since the last look."""
        pids = self.pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    def pids(self) -> list[int]:
        """All processes with the mark that still run."""
        mark = f"{_MARK}={self._mark}".encode()
        return [pid for pid in all_pids() if mark in read(pid, "environ")]

    def ended(self) -> None:
        """Wait until the last process has ended."""
        waited_for(lambda: self.process.poll() is not None, "the command to end")
        waited_for(lambda: not self.pids(), "all processes to end")

    @property
    def said(self) -> str:
        """What came on standard error."""
        return self.said_file.read_text(errors="replace")

    @property
    def output(self) -> str:
        """What came on standard output."""
        return self.output_file.read_text(errors="replace")

    @property
    def complaint(self) -> str:
        """The one line that was said, apart from progress."""
        lines = [line for line in re.split("[\r\n]+", self.said) if line]
        assert len(lines) == 1, self.said
        assert lines[0].startswith("error: "), self.said
        return lines[0].removeprefix("error: ")

    @property
    def leftovers(self) -> list[str]:
        """What lies in the temporary folder."""
        return sorted(path.name for path in self.temporary.iterdir())


def all_pids() -> Iterator[int]:
    """The numbers of all processes; none where the system has no list of them to read."""
    with suppress(FileNotFoundError):
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                yield int(path.name)


def read(pid: int, file: str) -> bytes:
    """Return what the system tells of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
