"""What a run takes of this machine: refused before any process starts, as it would not survive.

Where memory, file handles or room run out in the midst of a start, processes are killed or wait for
each other, and who says so first knows least.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from pipesim.errors import ReplayError
from pipesim.replay.compute.kinds import payload
from pipesim.replay.run.run import Run
from pipesim.text import counted

try:
    import resource
except ModuleNotFoundError:  # not a Unix
    resource = None  # type: ignore[assignment]

__all__ = ["check_machine"]

_WORKER_BYTES = 160 * 2**20
"""Memory of its own that a process has once torch is loaded, measured with torch 2.13."""
_DELEGATE_BYTES = 8 * 2**20
"""The same of a delegate."""
_WORKER_ADDRESSES = 640 * 2**20
"""Address space that a worker has beyond that of this process once torch is loaded: stacks of some
15 threads and the room that malloc reserves for each, measured with torch 2.13, and a quarter more.
"""

_HANDLES = 10
"""File handles that torch's launcher and its store take in this process, besides four a worker and
one a delegate, measured with torch 2.13 as all below."""
_WORKER_HANDLES = 16
"""The same of a worker, besides three for each worker, as three groups connect all, and five for
each of its delegates: two pipes, memory, and what is open while they start."""
_SPARE_HANDLES = 8
"""What is open only for a moment, while processes start."""

_FILE_BYTES = 4096
_SPAN_BYTES = 64
"""A row of a result file: two times of up to 19 digits and a name."""


def check_machine(run: Run) -> None:
    """Raise ReplayError where this machine or its limits have too little for a run."""
    _check_memory(run)
    _check_handles(run)
    _check_addresses()
    _check_folder(run)


def _delegates(run: Run) -> int:
    return 2 * sum(run.delegates.values())


def _check_memory(run: Run) -> None:
    facts = Path("/proc/meminfo")
    if not facts.is_file():
        return
    kib = re.search(r"^MemAvailable: *(\d+) kB$", facts.read_text(), re.MULTILINE)
    processes = run.devices * _WORKER_BYTES + _delegates(run) * _DELEGATE_BYTES
    messages = 2 * sum(payload(run, message.link).size_bytes for message in run.messages)
    if kib and processes + messages > 1024 * int(kib[1]) / 2:
        raise ReplayError(
            f"{counted(run.devices, 'worker')} would need {processes / 2**30:,.1f} GiB of memory "
            f"and an iteration's messages {messages / 2**30:,.1f} GiB, but "
            f"a run may use half of the {int(kib[1]) / 2**20:,.1f} GiB that are available"
        )


def _check_handles(run: Run) -> None:
    limit = _limit("RLIMIT_NOFILE")
    if limit is None:
        return
    own = Path("/proc/self/fd")
    opened = sum(1 for _ in own.iterdir()) if own.is_dir() else 0
    here = opened + _HANDLES + 4 * run.devices + _delegates(run)
    most = max(
        sum(number for route, number in run.delegates.items() if rank in route[:2])
        for rank in range(run.devices)
    )
    worker = _WORKER_HANDLES + 3 * run.devices + 5 * most
    needed = max(here, worker) + _SPARE_HANDLES
    if needed > limit:
        raise ReplayError(
            f"too few file handles: {counted(run.devices, 'worker')} and "
            f"{counted(_delegates(run), 'delegate')} need up to {needed} in a process, but only "
            f"{limit} are allowed (ulimit -n)"
        )


def _check_addresses() -> None:
    limit = _limit("RLIMIT_AS")
    facts = Path("/proc/self/statm")
    if limit is None or not facts.is_file():
        return
    mapped = int(facts.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    needed = mapped + _WORKER_ADDRESSES
    if needed > limit:
        raise ReplayError(
            f"too little address space: a worker may need {needed / 2**20:,.0f} MiB, but only "
            f"{limit / 2**20:,.0f} MiB are allowed (ulimit -v)"
        )


def _check_folder(run: Run) -> None:
    """Look for room for the result, and what workers say and log until then."""
    spans = 2 * len(run.ops) + 6 * len(run.messages)
    files = 8 + 4 * run.devices
    needed = run.total_iterations * spans * _SPAN_BYTES + files * _FILE_BYTES
    _check_writable(os.environ.get("TMPDIR"))
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ReplayError(
            f"the temporary folder {folder} is too full: a run needs {needed / 2**10:,.0f} KiB and "
            f"{free / 2**10:,.0f} KiB are free (TMPDIR names another)"
        )


def _check_writable(folder: str | None) -> None:
    """Refuse a temporary folder that was asked for, where Python would take another one."""
    if not folder:
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise ReplayError(
            f"cannot write to the folder of TMPDIR, {folder}: {error.strerror}"
        ) from None


def _limit(name: str) -> int | None:
    """Return a limit of this process; None if there is none."""
    if resource is None:
        return None
    soft: int = resource.getrlimit(getattr(resource, name))[0]
    return None if soft == resource.RLIM_INFINITY else soft
