"""How a process of a run ends early: it says why, and the others follow.

A process that sees that the run cannot go on says why and ends, and the others follow. No process
outlives the one that started it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from pipesim.errors import PipesimError, ReplayError
from pipesim.replay.run.roster import Roster, waited_for_stopped

__all__ = [
    "LAUNCHER",
    "NOBODY_ANSWERS",
    "Guard",
    "LostPeerError",
    "Parent",
    "SilentPeerError",
    "follow",
    "is_silence",
    "launcher",
    "wake_promptly",
]

LAUNCHER = "PIPESIM_LAUNCHER"
"""In the environment of workers that ``pipesim replay`` starts: its process, and the temporary
folder that it cannot remove when it is killed."""

NOBODY_ANSWERS = "a rank does not answer"
"""What a worker says when it has given up waiting, and does not know for whom."""

_PATIENCE_S = 0.2
_LOST_PEER_WAITS_S = 1.5
_STATUS_BYTES = 200
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_GONE = re.compile("Connection (closed|reset) by peer|Broken pipe")  # in words of gloo
_SILENT = re.compile("Timed out (waiting|after)|timeout after|has timed out|Connect timeout")
_SCARCE = {
    "Too many open files": "too few file handles (ulimit -n)",
    "No space left on device": "no space",
    "MemoryError|Cannot allocate memory|bad_alloc|start new thread|failed to map": (
        "too little memory or address space (ulimit -v)"
    ),
}
"""What torch, gloo and Python say when something runs out, and what it is."""
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class LostPeerError(ReplayError):
    """A neighbour closed its connection; others will say why."""


class SilentPeerError(ReplayError):
    """Another process does not answer, or nothing comes of it."""


def is_silence(error: BaseException) -> bool:
    """Whether this process, gloo, or torch's store has given up waiting for another process."""
    said = isinstance(error, RuntimeError) and _SILENT.search(str(error)) is not None
    return said or isinstance(error, SilentPeerError)


class Parent(NamedTuple):
    """The process that started this one, and what it cannot remove when it is killed."""

    process: int
    folder: str = ""


def launcher() -> Parent:
    """Return this worker's parent; to be asked before it starts any process itself.

    What :data:`LAUNCHER` names counts: a parent may end before anybody asks who it is.
    """
    process, _, folder = os.environ.pop(LAUNCHER, "").partition(" ")
    return Parent(int(process or os.getppid()), folder)


def follow(parent: Parent) -> None:
    """End this process, from another thread, once ``parent`` is its parent no more.

    Where there is a folder to remove, Linux wakes it for that even if it is stopped.
    """
    if parent.folder and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT))

    def watch() -> None:
        while os.getppid() == parent.process:
            time.sleep(_PATIENCE_S)
        if parent.folder:
            shutil.rmtree(parent.folder, ignore_errors=True)
        os._exit(2)

    threading.Thread(target=watch, name="follow", daemon=True).start()


def wake_promptly() -> None:
    """Ask Linux not to round this thread's sleeps, nor those of threads that it starts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))


class Guard:
    """Knows what a worker is doing, and ends it with one clear line.

    Parameters
    ----------
    rank : int
        The worker's.
    status : path, optional
        A file in which others can read what this worker does, even after it was killed.

    Attributes
    ----------
    roster : Roster, optional
        Who is asked, once it is known, whether a peer that does not answer is stopped.
    """

    def __init__(self, rank: int, status: Path | None = None) -> None:
        self.rank = rank
        self.roster: Roster | None = None
        self._doing = "starting"
        self._failing = threading.Lock()
        self._file: int | None = None
        if status is not None:
            with suppress(OSError):
                self._file = os.open(status, os.O_WRONLY | os.O_CREAT, 0o600)
        self.enter(self._doing)

    def enter(self, doing: str) -> None:
        """Note what the worker does from now on."""
        self._doing = doing
        if self._file is not None:
            text = doing.encode()[:_STATUS_BYTES]
            with suppress(OSError):  # no space: what it does is lost, but not the run
                os.pwrite(self._file, text.ljust(_STATUS_BYTES), 0)

    def fail(self, error: BaseException) -> NoReturn:
        """Say what went wrong and end the process, from whatever thread."""
        if not self._failing.acquire(blocking=False):
            threading.Event().wait()  # another thread is at it
        try:
            if isinstance(error, LostPeerError) or _GONE.search(str(error)):
                # Let the one that was lost be seen first.
                time.sleep(_LOST_PEER_WAITS_S)
            message = str(error) if isinstance(error, PipesimError) else _described(error)
            rank = f"rank {self.rank}"
            failure = ReplayError(f"{rank}, {self._doing}: {message}")
            if is_silence(error) and self.roster and (stopped := self.roster.stopped):
                failure = ReplayError(waited_for_stopped(stopped, rank, self._doing))
            _record(failure)
            sys.stderr.write(f"error: {failure}\n")
            sys.stderr.flush()
        finally:  # even where nothing can be said: no space, or nobody listens
            os._exit(2)

    def guarded(self, task: Callable[[], None]) -> Callable[[], None]:
        """Return a task whose errors end the process."""

        def run() -> None:
            try:
                task()
            except BaseException as error:
                self.fail(error)

        return run


def _record(failure: ReplayError) -> None:
    """Leave a message for the launcher, all or nothing: it may end this process at any time."""
    file = os.environ.get(_ERROR_FILE)
    if file is None:
        return
    os.environ[_ERROR_FILE] = f"{file}.part"
    with suppress(OSError):
        get_error_handler().record_exception(failure)
        Path(f"{file}.part").replace(file)


def _described(error: BaseException) -> str:
    if _GONE.search(str(error)):
        return "lost another rank"
    if is_silence(error):
        return NOBODY_ANSWERS
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    scarce = next((what for words, what in _SCARCE.items() if re.search(words, said)), None)
    return f"{scarce}: {said}" if scarce else said
