"""The program of a delegate: carries messages between slots of two hosts, over one connection.

It needs the standard library alone, so it starts quickly and holds little memory. Its worker
starts it with a connection to its pair on the other host, memory that both see, and two pipes: a
bell, on which it is told of a message to send or of a slot that is free again, and news, on which
it tells of a message that it has passed on or that has landed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import NamedTuple, NoReturn

__all__ = [
    "END",
    "FREED",
    "HANDED",
    "LANDED",
    "LEAD",
    "LOST_PEER",
    "PASSED",
    "Job",
    "hold_until",
]

LOST_PEER = 3
"""Exit code of a delegate whose pair is gone."""

HANDED = struct.Struct("=qqqqq")
"""Bell of one that sends: number of the message, or END; bytes; tag; how long it is occupied and
when it was handed over, in nanoseconds."""

FREED = struct.Struct("=qq")
"""Bell of one that receives: number of the message whose slot is free, and 0; or LEAD and how
much earlier than it is due a message shall land, in nanoseconds."""

PASSED = struct.Struct("=qqq")
"""News of one that sends: number of the message, from when to when it was occupied by it."""

LANDED = struct.Struct("=qqqqqq")
"""News of one that receives: number of the message; bytes; tag; when it was handed over, when it
was due, or 0, and when it was there, on this host's clock."""

END, LEAD = -1, -2

_SENT = struct.Struct("=qqqqq")
"""Between two delegates, before each message: number, bytes, tag, handed over, due or 0."""

_TIME = struct.Struct("=q")
_EXCHANGES = 50
_INEXACT_NS = 80_000
_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class Job(NamedTuple):
    """What a delegate is told on its command line.

    Attributes
    ----------
    sends : int
        Whether it sends, or receives.
    memory : int
        File descriptor of the slots.
    ring, delegates : int
        Which of how many it is: it serves the messages n with n mod delegates = ring.
    depth : int
        Slots of each delegate.
    room : int
        Bytes of each slot.
    parent : int
        The process that it ends with.
    at_once : int
        Whether Linux may end it with the thread that started it, as that is the main one.
    connection, bell, news : int
        File descriptors.
    """

    sends: int
    memory: int
    ring: int
    delegates: int
    depth: int
    room: int
    parent: int = 0
    at_once: int = 0
    connection: int = -1
    bell: int = -1
    news: int = -1


def hold_until(time_ns: int, early_ns: int = _INEXACT_NS) -> None:
    """Return when the monotonic clock shows ``time_ns``.

    Sleeps, but wakes ``early_ns`` earlier and spins for the rest, as sleeping is not that exact:
    the longer, the more exact, and the more it takes from others on few cores.
    """
    remaining = time_ns - time.monotonic_ns() - early_ns
    if remaining > 0:
        time.sleep(remaining / 1e9)
    while time.monotonic_ns() < time_ns:
        pass


class _Delegate:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection = socket.socket(fileno=job.connection)
        self.slots = memoryview(mmap.mmap(job.memory, job.delegates * job.depth * job.room))
        self.poll = select.poll()
        self.poll.register(job.connection, select.POLLIN)
        self.poll.register(job.bell, select.POLLIN)

    def slot(self, number: int, size: int) -> memoryview:
        """Return the bytes of a message in its slot."""
        job = self.job
        place = job.ring * job.depth + number // job.delegates % job.depth
        return self.slots[place * job.room :][:size]

    def ready(self) -> set[int]:
        """Wait for the bell, or the other delegate; returns which of them it is."""
        return {descriptor for descriptor, _ in self.poll.poll()}

    def heard(self, size: int) -> bytes:
        """Return what the worker says; ends this process if it says nothing any more."""
        record = os.read(self.job.bell, size)
        if not record:
            os._exit(0)
        return record

    def fill(self, room: memoryview) -> None:
        """Receive exactly what there is room for; ends this process if the other is gone."""
        while room:
            got = self.connection.recv_into(room)
            if not got:
                os._exit(LOST_PEER)
            room = room[got:]

    def read(self, layout: struct.Struct) -> tuple[int, ...]:
        """Receive a record from the other delegate."""
        record = bytearray(layout.size)
        self.fill(memoryview(record))
        return layout.unpack(record)


def _send(delegate: _Delegate) -> NoReturn:
    """Pass on messages: at once, with the time when they are due.

    A message occupies its delegates from when it was handed over, or they were free, for a time
    that is given. The receiving one holds it until then: so that the time that a machine needs
    is a part of it.
    """
    job, connection = delegate.job, delegate.connection
    for _ in range(_EXCHANGES):  # so the other learns what this clock shows
        delegate.read(_TIME)
        connection.sendall(_TIME.pack(time.monotonic_ns()))
    due = 0
    while True:
        if job.connection in delegate.ready():  # it has nothing to say, so it is gone
            os._exit(LOST_PEER)
        number, size, tag, occupied, handed = HANDED.unpack(delegate.heard(HANDED.size))
        if number == END:
            os._exit(0)
        taken = max(handed, due)
        due = taken + occupied
        head = _SENT.pack(number, size, tag, handed, due if occupied else 0)
        message = delegate.slot(number, size)
        rest = connection.sendmsg([head, message])
        if rest < len(head):
            connection.sendall(head[rest:])
        connection.sendall(message[max(rest - len(head), 0) :])
        os.write(job.news, PASSED.pack(number, taken, max(time.monotonic_ns(), due)))


def _receive(delegate: _Delegate) -> NoReturn:
    """Fill slots, and say so when the messages are due."""
    job = delegate.job
    offset = _offset(delegate)
    lead = 0
    filled: set[int] = set()

    def listen() -> None:
        nonlocal lead
        number, value = FREED.unpack(delegate.heard(FREED.size))
        if number == LEAD:
            lead = value
        else:
            filled.discard(number)

    while True:
        ready = delegate.ready()
        if job.bell in ready:
            listen()
            continue
        number, size, tag, handed, due = delegate.read(_SENT)
        while number - job.depth * job.delegates in filled:
            listen()
        delegate.fill(delegate.slot(number, size))
        filled.add(number)
        if due:
            hold_until(due - offset - lead)
        times = handed - offset, due and due - offset, time.monotonic_ns()
        os.write(job.news, LANDED.pack(number, size, tag, *times))


def _offset(delegate: _Delegate) -> int:
    """Return the other host's clock minus this one's, in nanoseconds.

    As in NTP: the quickest of many exchanges is off by at most half of its duration.
    """

    def exchange() -> tuple[int, int]:
        asked = time.monotonic_ns()
        delegate.connection.sendall(_TIME.pack(asked))
        (there,) = delegate.read(_TIME)
        answered = time.monotonic_ns()
        return answered - asked, there - (asked + answered) // 2

    return min(exchange() for _ in range(_EXCHANGES))[1]


def _end_with(parent: int, at_once: int) -> None:
    """End this process with its parent: Linux does so even while it is stopped."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))  # sleeps are not rounded
        if at_once:
            prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _main() -> NoReturn:
    job = Job(*map(int, sys.argv[1:]))
    _end_with(job.parent, job.at_once)
    delegate = _Delegate(job)
    try:
        if job.sends:
            _send(delegate)
        _receive(delegate)
    except ConnectionError:  # the worker may be gone too, but then it does not ask
        os._exit(LOST_PEER)


if __name__ == "__main__":
    _main()
