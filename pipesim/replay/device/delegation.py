"""A worker's side of delegation: copy engines, slots, and the delegates it looks after."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import signal
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from torch import Tensor

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.device.delegates import LOST_PEER, Bell, Pair, Store, receive, send
from pipesim.replay.device.slots import DONE, DUE, FILLED, HANDED, LEAD, TAKEN, Slots
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.guard import Guard, LostPeerError
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Route, Run

__all__ = ["Delegation"]


_MOST_LEAD_MS = 2.0
"""Delegates make up for no more than this, and only on links with a longer delay."""


class _Side(NamedTuple):
    """One end of a route: its slots, and the bell of each of its delegates."""

    slots: Slots
    bells: tuple[Bell, ...]


class Delegation:
    """The routes of one device that have delegates.

    Must be made while the process has one thread: it forks the delegates.

    Parameters
    ----------
    run : Run
        What is run.
    device : int
        Whose messages.
    payload_bytes : callable
        Size of what crosses a link.
    store : Store
        Where delegates find their pairs.
    guard : Guard
        Ends this process when a delegate ends.
    """

    def __init__(
        self,
        run: Run,
        device: int,
        payload_bytes: Callable[[int], int],
        store: Store,
        guard: Guard,
    ) -> None:
        self._run = run
        self._guard = guard
        self._closing = False
        self._iteration = -1
        self._fetch: Callable[[Message], None] = lambda message: None
        self._waiting: frozenset[Message] = frozenset()
        self._queue: deque[Message] = deque()
        self._landed: set[Message] = set()
        self._heard_ns: dict[Message, int] = {}
        self._out: dict[Route, _Side] = {}
        self._into: dict[Route, _Side] = {}
        for route, delegates in run.delegates.items():
            if device not in (route.sender, route.receiver):
                continue
            sizes = [payload_bytes(message.link) for message in run.routes[route]]
            side = _Side(Slots(sizes), tuple(Bell() for _ in range(delegates)))
            (self._out if route.sender == device else self._into)[route] = side
        self._outgoing = self._places(self._out)
        self._incoming = self._places(self._into)
        self._processes: dict[str, BaseProcess] = dict(self._start(store))

    def _places(self, sides: Mapping[Route, _Side]) -> dict[Message, tuple[_Side, int]]:
        return {
            message: (side, slot)
            for route, side in sides.items()
            for slot, message in enumerate(self._run.routes[route])
        }

    def _start(self, store: Store) -> Iterable[tuple[str, BaseProcess]]:
        fork = multiprocessing.get_context("fork")
        for route, side in (self._out | self._into).items():
            occupied = [self._run.delegate_ms(message) for message in self._run.routes[route]]
            for index, bell in enumerate(side.bells):
                pair = Pair(route, index, store, os.getpid())
                process: BaseProcess = (
                    fork.Process(target=send, args=(pair, side.slots, bell, occupied))
                    if route in self._out
                    else fork.Process(target=receive, args=(pair, side.slots, bell))
                )
                process.daemon = True
                process.start()
                assert process.pid is not None
                self._guard.children.append(process.pid)
                yield str(pair), process

    @property
    def processes(self) -> dict[str, int]:
        """The delegates, by their names."""
        return {name: process.pid or 0 for name, process in self._processes.items()}

    def pin(self) -> None:
        """Pin the slots, so that copies between them and a GPU need not be waited for."""
        for side in (self._out | self._into).values():
            side.slots.register()

    def watch(self) -> None:
        """Start the threads that hear what lands and see which delegate ends."""
        for name, task in (("landing", self._land), ("delegates", self._mind)):
            threading.Thread(target=self._guard.guarded(task), name=name, daemon=True).start()

    def _land(self) -> None:
        """The copy engine to the device: takes what has landed, in the order it was given."""
        with selectors.DefaultSelector() as selector:
            for route, side in self._into.items():
                for bell in side.bells:
                    selector.register(bell, selectors.EVENT_READ, (route, bell))
            while selector.get_map():
                for key, _ in selector.select():
                    route, bell = key.data
                    message = self._run.routes[route][bell.heard()]
                    self._heard_ns[message] = now_ns()
                    if message in self._waiting:
                        self._landed.add(message)
                    else:
                        self._fetch(message)
                while self._queue and self._queue[0] in self._landed:
                    self._fetch(self._queue.popleft())

    def _mind(self) -> None:
        names = {process.sentinel: name for name, process in self._processes.items()}
        ended = wait(list(names)) if names else []
        if ended and not self._closing:
            name = names[ended[0]]  # type: ignore[index]
            process = self._processes[name]
            process.join()
            if process.exitcode == LOST_PEER:
                raise LostPeerError(f"{name} lost the delegate at the other end")
            code = process.exitcode or 0
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with code {code}"
            )
            raise ReplayError(f"{name} {how}")

    def begin(
        self, iteration: int, order: Sequence[Message], fetch: Callable[[Message], None]
    ) -> None:
        """Get ready for an iteration: before anybody may send.

        Parameters
        ----------
        iteration : int
            Its number.
        order : sequence of Message
            Those to be fetched in this order; others are the moment that they land.
        fetch : callable
            Takes a message that has landed.
        """
        self._iteration = iteration
        self._waiting = frozenset(order)
        self._queue = deque(order)
        self._landed = set()
        self._fetch = fetch

    def is_old(self, message: Message) -> bool:
        """Whether what a slot holds was sent in an earlier iteration."""
        side, slot = self._incoming[message]
        return int(side.slots.headers[slot, FILLED]) < self._iteration + 1

    def fetch(self, message: Message) -> Tensor:
        """Return a landed message's bytes in its slot."""
        side, slot = self._incoming[message]
        flag = int(side.slots.headers[slot, FILLED])
        if flag != self._iteration + 1:
            sent = self._run.named(flag - 1)
            raise ReplayError(f"{message} of {sent} came after the end of it")
        return side.slots.payload(slot)

    def slot(self, message: Message) -> Tensor:
        """Return the bytes of the slot from which ``message`` will be sent."""
        side, slot = self._outgoing[message]
        return side.slots.payload(slot)

    def dispatch(self, message: Message, at_ns: int) -> None:
        """Raise the flag of a filled slot and tell its delegate, whose turn it is."""
        side, slot = self._outgoing[message]
        header = side.slots.headers[slot]
        header[HANDED] = at_ns
        header[FILLED] = self._iteration + 1
        side.bells[slot % len(side.bells)].ring(slot)

    def record(self, record: Record) -> None:
        """Add when delegates of this host held messages of the iteration.

        Without one that is still on its way, because its direct path was quicker.
        """
        for route, side in self._out.items():
            for slot, message in enumerate(self._run.routes[route]):
                header = side.slots.headers[slot]
                times = [int(header[when]) for when in (HANDED, TAKEN, DONE)]
                if header[FILLED] == self._iteration + 1 and times == sorted(times):
                    record.step(message, "delegate", *times[1:])

    def learn(self, copying_ns: Mapping[Message, int]) -> None:
        """Let delegates make up for the time from their flag to the device, after the warm-up.

        Parameters
        ----------
        copying_ns : mapping of Message to int
            How long the messages of the iteration took to copy, beyond what is stated.
        """
        if self._iteration >= self._run.warmup:
            return
        for route, side in self._into.items():
            late = [
                self._heard_ns[message] + copying_ns[message] - int(header[DUE] - header[LEAD])
                for message, header in zip(self._run.routes[route], side.slots.headers, strict=True)
                if message in copying_ns and self._run.delegate_ms(message) > _MOST_LEAD_MS
            ]
            if late:
                lead = min(max(0, round(statistics.median(late))), round(1e6 * _MOST_LEAD_MS))
                side.slots.headers[:, LEAD] = lead

    def close(self) -> None:
        """Expect the delegates to end from now on."""
        self._closing = True

    def end(self) -> None:
        """End the delegates."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
