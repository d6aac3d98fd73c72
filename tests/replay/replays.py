"""Replays in the background, for tests that look into them, break them, and count what is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.processes import Background, read, waited_for


class Replay(Background):
    """A launcher of workers, or one of several."""

    def workers(self) -> dict[int, int]:
        """The process of each rank."""
        # A delegate that does not run its program yet still looks like its worker.
        ranks = {pid: _rank(pid) for pid in self.pids() if _rank(parent(pid)) is None}
        return {rank: pid for pid, rank in ranks.items() if rank is not None}

    def delegates(self) -> dict[int, list[int]]:
        """The delegates of each rank."""
        found: dict[int, list[int]] = {}
        for rank, worker in self.workers().items():
            for pid in self.pids():
                if parent(pid) == worker and b"runtime/delegate.py" in read(pid, "cmdline"):
                    found.setdefault(rank, []).append(pid)
        return found

    def status(self, rank: int) -> str:
        """What a rank does at the moment."""
        files = list(self.temporary.glob(f"pipesim-*/rank{rank}"))
        return files[0].read_text().strip() if files else ""

    def running(self, ranks: Sequence[int] = (0, 1, 2)) -> Self:
        """Wait until ranks are in an instruction of an iteration."""

        def all_in() -> bool:
            assert self.process.poll() is None, self.said
            return all(re.match(r"iteration \d+, ", self.status(rank)) for rank in ranks)

        waited_for(all_in, "an instruction of every rank")
        return self


def replaying(folder: Path, *options: str, **more: object) -> Replay:
    """Start ``pipesim replay`` in the background."""
    return Replay(folder, sys.executable, "-m", "pipesim", "replay", *options, **more)  # type: ignore[arg-type]


def _rank(pid: int) -> int | None:
    """Return the rank of a worker; None: it is none."""
    found = re.search(rb"(?:^|\0)RANK=(\d+)\0", read(pid, "environ"))
    is_worker = b"pipesim.replay.worker" in read(pid, "cmdline")
    return int(found[1]) if found and is_worker else None


def parent(pid: int) -> int:
    """Return the process that started another; 0: unknown."""
    found = re.search(rb"PPid:\t(\d+)", read(pid, "status"))
    return int(found[1]) if found else 0


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped and has noticed."""
    return b"State:\tT" in read(pid, "status")


def shared_memory(pids: Sequence[int]) -> list[str]:
    """Return the files in memory that processes have mapped."""
    lines = [line for pid in pids for line in read(pid, "maps").decode().splitlines()]
    return [line.split(maxsplit=5)[-1] for line in lines if "memfd:" in line]


def listening(pids: Sequence[int]) -> list[str]:
    """Return the local addresses, in the kernel's hexadecimal, on which processes listen."""
    sockets = set()
    for pid in pids:
        try:
            entries = list(Path(f"/proc/{pid}/fd").iterdir())
        except FileNotFoundError:
            continue
        for entry in entries:
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
