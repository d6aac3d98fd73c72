"""Replays in the background, for tests that look into them, break them, and count what is left."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

PATIENCE_S = 60.0
"""How long a test waits for what happens in a second on an idle machine."""

PROMPT_S = 10.0
"""How soon after a fault the last process of a run has ended."""

_MARK = "PIPESIM_TEST_MARK"
T = TypeVar("T")


def waited_for(find: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    """Return the first result of ``find`` that is true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if found := find():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s:g} s for {what}")


class Background:
    """A command in the background; its processes, and all that they start, carry a mark.

    It has a temporary folder, a session and a process group of its own.
    """

    def __init__(
        self,
        folder: Path,
        *command: str,
        env: Mapping[str, str | None] | None = None,
        stderr: int | None = None,
        prepare: Callable[[], object] | None = None,
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
                command,
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=said if stderr is None else stderr,
                start_new_session=True,
                preexec_fn=prepare,
            )

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    # -- processes -----------------------------------------------------------------------

    def pids(self) -> list[int]:
        """All processes with the mark that still run."""
        mark = f"{_MARK}={self._mark}".encode()
        return [pid for pid in all_pids() if mark in read(pid, "environ")]

    def workers(self) -> dict[int, int]:
        """The process of each rank."""
        return {
            int(environment(pid)["RANK"]): pid
            for pid in self.pids()
            if _is_worker(pid) and not _is_worker(parent(pid))
        }

    def delegates(self) -> dict[int, list[int]]:
        """The delegates of each rank."""
        found: dict[int, list[int]] = {}
        for pid in self.pids():
            if _is_worker(pid) and _is_worker(parent(pid)):
                found.setdefault(int(environment(pid)["RANK"]), []).append(pid)
        return found

    def status(self, rank: int) -> str:
        """What a rank does at the moment."""
        files = list(self.temporary.glob(f"pipesim-*/rank{rank}"))
        return files[0].read_text().strip() if files else ""

    def running(self, ranks: Sequence[int] = (0, 1, 2)) -> Background:
        """Wait until ranks are in an instruction of an iteration."""

        def all_in() -> bool:
            assert self.process.poll() is None, self.said
            return all(re.match(r"iteration \d+, ", self.status(rank)) for rank in ranks)

        waited_for(all_in, "an instruction of every rank")
        return self

    def ended(self, patience_s: float = PATIENCE_S) -> float:
        """Wait until the last process has ended; returns how long that took, in seconds."""
        start = time.monotonic()
        waited_for(lambda: self.process.poll() is not None, "the command to end", patience_s)
        left = patience_s - (time.monotonic() - start)
        waited_for(lambda: not self.pids(), "all processes to end", max(left, 0.1))
        return time.monotonic() - start

    # -- what is left --------------------------------------------------------------------

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


def replaying(folder: Path, *options: str, **more: object) -> Background:
    """Start ``pipesim replay`` in the background."""
    return Background(folder, sys.executable, "-m", "pipesim", "replay", *options, **more)  # type: ignore[arg-type]


def all_pids() -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            yield int(path.name)


def read(pid: int, file: str) -> bytes:
    """Return what the system tells of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def environment(pid: int) -> dict[str, str]:
    """What a process's environment was when it started."""
    pairs = (pair.partition("=") for pair in read(pid, "environ").decode().split("\0"))
    return {name: value for name, _, value in pairs}


def parent(pid: int) -> int:
    """Return the process that started another; 0: unknown."""
    found = re.search(rb"PPid:\t(\d+)", read(pid, "status"))
    return int(found[1]) if found else 0


def _is_worker(pid: int) -> bool:
    return b"pipesim.replay.worker" in read(pid, "cmdline") and "RANK" in environment(pid)


def listening(pids: list[int]) -> list[str]:
    """Return the local addresses, in the kernel's hexadecimal, on which processes listen."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = entry.readlink()
            except FileNotFoundError:
                continue
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(target)):
                sockets.add(found[1])
    addresses = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            listens = fields[3] == "0A" or table.startswith("udp")
            if listens and fields[9] in sockets:
                addresses.append(f"{table} {fields[1].partition(':')[0]}")
    return addresses
