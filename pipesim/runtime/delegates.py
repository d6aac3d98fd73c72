"""A worker's side of a delegate: it starts it, hears from it, and says why it has ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipesim.runtime import delegate as program
from pipesim.runtime.delegate import LOST_PEER, Job

__all__ = ["Delegate", "DelegateError", "PeerError", "SilenceError", "is_stopped"]

_LOOK_MS = 500
_RECORDS = 64
_ENDS_WITHIN_S = 5.0


class DelegateError(ConnectionError):
    """A delegate is gone, or does not answer."""


class PeerError(DelegateError):
    """The delegate at the other end is gone: that end knows why."""


class SilenceError(DelegateError, TimeoutError):
    """A delegate or another rank does not answer in time."""


def is_stopped(process: int) -> bool:
    """Whether a process of this host is stopped by a signal; False where nobody can tell."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    # The name, in brackets, may hold anything; the state is the word after it.
    return facts.rpartition(")")[2].split()[:1] == ["T"]


class Delegate:
    """A process that serves one end of a lane; any thread may use it.

    Parameters
    ----------
    name : str
        What errors call it.
    job : Job
        What it does; its pipes are made here.
    connection : socket
        To its pair; is its own from now on.
    news : Struct
        Layout of what it says: first the number of a message.

    Attributes
    ----------
    said : dict of int to tuple of int
        What it has said of each message and was heard, for others to take out.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        connection: socket.socket,
        news: struct.Struct,
    ) -> None:
        self.name = name
        self.said: dict[int, tuple[int, ...]] = {}
        self._layout = news
        self._changed = threading.Condition()
        self._listening = self._closed = False
        bell, self._bell = os.pipe()
        self._news, told = os.pipe()
        job = job._replace(
            parent=os.getpid(),
            at_once=threading.current_thread() is threading.main_thread(),
            connection=connection.fileno(),
            bell=bell,
            news=told,
        )
        try:
            # A group of its own: Ctrl-C on a terminal is for its worker alone.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", program.__file__, *(str(int(fact)) for fact in job)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(job.connection, job.memory, bell, told),
                process_group=0,
            )
        except BaseException:
            os.close(self._bell)
            os.close(self._news)
            raise
        finally:
            os.close(bell)
            os.close(told)
            connection.close()

    def tell(self, record: bytes) -> None:
        """Ring its bell.

        Raises
        ------
        DelegateError
            It is gone.
        """
        try:
            os.write(self._bell, record)
        except OSError:
            raise self._gone() from None

    def wait(self, happens: Callable[[], bool], deadline_s: float) -> bool:
        """Listen to it until something happens, or until a time of the monotonic clock.

        One thread listens for all that wait. Whether it has happened is asked under a lock.

        Raises
        ------
        DelegateError
            It is gone.
        """
        while True:
            with self._changed:
                if happens():
                    return True
                left = deadline_s - time.monotonic()
                if self._listening:
                    if left <= 0:
                        return False
                    self._changed.wait(left)
                    continue
                if self._closed:
                    raise DelegateError(f"{self.name} was closed")
                self._listening = True
            records: list[tuple[int, ...]] = []
            try:
                records = self._listen(max(left, 0.0))
            finally:
                with self._changed:
                    self.said |= {record[0]: record for record in records}
                    self._listening = False
                    self._changed.notify_all()
            if not records and left <= 0:
                return False

    def _listen(self, patience_s: float) -> list[tuple[int, ...]]:
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        if not poll.poll(min(1e3 * patience_s, _LOOK_MS)):
            if self.process.poll() is None or poll.poll(0):
                return []
            raise self._gone()
        # Records are written at once and whole.
        said = os.read(self._news, self._layout.size * _RECORDS)
        if not said:
            raise self._gone()
        return list(self._layout.iter_unpack(said))

    def _gone(self) -> DelegateError:
        """Say why it has ended."""
        if self._closed:
            return DelegateError(f"{self.name} was closed")
        try:
            code = self.process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return DelegateError(f"{self.name} says nothing any more")
        if code == LOST_PEER:
            return PeerError(f"{self.name} lost the delegate at the other end")
        if code < 0:
            return DelegateError(f"{self.name} was killed by {signal.Signals(-code).name}")
        return DelegateError(f"{self.name} ended with code {code}")

    def check(self) -> None:
        """Raise DelegateError if it is gone."""
        if not self._closed and self.process.poll() is not None:
            raise self._gone()

    def close(self, patience_s: float = 0.0) -> None:
        """End it, if it does not end in time by itself."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        self.process.kill()
        self.process.wait()
        with self._changed:
            self._changed.wait_for(lambda: not self._listening)
            os.close(self._bell)
            os.close(self._news)
