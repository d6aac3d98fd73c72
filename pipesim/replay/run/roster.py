"""Which process of a run is which, so that one that is stopped is named itself.

A stopped process cannot say so, and the first to miss it may be anybody, who then blames the
neighbour that it waits for. Linux tells everybody the state of all processes of a host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pipesim.runtime.delegates import is_stopped
from pipesim.text import listed

__all__ = ["Roster", "waited_for_stopped"]


class _Store(Protocol):
    def set(self, key: str, value: str) -> object: ...
    def get(self, key: str) -> bytes: ...


class Roster:
    """The processes of a run.

    Parameters
    ----------
    store : Store
        Where all ranks can read what one has written.
    """

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._here: dict[str, int] = {}

    def publish(self, rank: int, processes: Mapping[str, int]) -> None:
        """Tell all ranks of the processes of this one, each by its name."""
        entry = {"host": _host(), "processes": dict(processes)}
        self._store.set(str(rank), json.dumps(entry))

    def read(self, ranks: int) -> None:
        """Learn of all processes on this host, once all ranks have published theirs."""
        for rank in range(ranks):
            entry = json.loads(self._store.get(str(rank)))
            if entry["host"] == _host():
                self._here |= entry["processes"]

    @property
    def stopped(self) -> list[str]:
        """The names of those on this host that are stopped."""
        return [name for name, process in self._here.items() if is_stopped(process)]


def waited_for_stopped(names: list[str], waiting: str, doing: str) -> str:
    """Say that processes are stopped, and who has given up waiting, and where.

    For whom it waited is not said: it may be one that waits in vain itself.

    Examples
    --------
    >>> waited_for_stopped(["rank 0"], "rank 2", "iteration 7, 2F3")
    'rank 0 is stopped (SIGSTOP), so rank 2 waited in vain (iteration 7, 2F3)'
    """
    are = "is" if len(names) == 1 else "are"
    return f"{listed(names)} {are} stopped (SIGSTOP), so {waiting} waited in vain ({doing})"


def _host() -> str:
    """Return what names the same processes by the same numbers: a running kernel, a namespace."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return _read("/proc/sys/kernel/random/boot_id").strip() + namespace


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
