"""A worker's side of delegation: the lanes of its device, and its copy engine from the host."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from pipesim.errors import ReplayError
from pipesim.program import Message
from pipesim.replay.run.clocks import now_ns
from pipesim.replay.run.guard import Guard, LostPeerError, SilentPeerError
from pipesim.replay.run.record import Record
from pipesim.replay.run.run import Route, Run
from pipesim.runtime import (
    DelegateError,
    Lane,
    PeerError,
    Receiver,
    Sender,
    SilenceError,
    open_lanes,
)
from pipesim.runtime.handles import Received, Sent

__all__ = ["Delegation"]

_FOREVER = timedelta(days=7)
_LOOK_S = 0.1
_MOST_LEAD_MS = 2.0
"""Delegates make up for no more than this, and only on links with a longer delay."""


class Delegation:
    """The routes of one device that have delegates: a lane each.

    A lane has as many slots as its messages of an iteration: nobody waits for a free one, as in
    the model.

    Parameters
    ----------
    run : Run
        What is run.
    device : int
        Whose messages.
    payload_bytes : callable
        Size of what crosses a link.
    store : Store
        Where the ends of lanes find each other.
    timeout_s : float
        How long to wait for that.

    Raises
    ------
    ReplayError
        There is not enough shared memory, or another rank does not open its ends.
    """

    def __init__(
        self,
        run: Run,
        device: int,
        payload_bytes: Callable[[int], int],
        store: Store,
        timeout_s: float,
    ) -> None:
        self._run = run
        self._payload_bytes = payload_bytes
        self._closing = threading.Event()
        self._iteration = -1
        self._fetch: Callable[[Message], None] = lambda message: None
        self._waiting: frozenset[Message] = frozenset()
        self._queue: deque[Message] = deque()
        self._copying = threading.Lock()
        self._landed: dict[Message, Received] = {}
        self._heard_ns: dict[Message, int] = {}
        self._sent: dict[Message, Sent] = {}
        self._lead_ns: dict[Route, int] = {}
        lanes = {
            route: Lane(
                str(route),
                route.sender,
                route.receiver,
                delegates,
                len(run.routes[route]),
                max(payload_bytes(message.link) for message in run.routes[route]),
            )
            for route, delegates in run.delegates.items()
        }
        with _named():
            ends = open_lanes(store, device, list(lanes.values()), timeout_s=timeout_s)
        self._out: dict[Route, Sender] = {}
        self._into: dict[Route, Receiver] = {}
        for route in run.delegates:
            match ends.get(str(route)):
                case Sender() as sender:
                    self._out[route] = sender
                case Receiver() as receiver:
                    self._into[route] = receiver

    @property
    def processes(self) -> dict[str, int]:
        """The delegates, by their names."""
        ends = (*self._out.values(), *self._into.values())
        return {each.name: each.process.pid for end in ends for each in end.delegates}

    def pin(self) -> None:
        """Pin the slots, so that copies between them and a GPU need not be waited for."""
        for end in (*self._out.values(), *self._into.values()):
            end.pin()

    def watch(self, guard: Guard) -> None:
        """Start the threads that hear what lands and see which delegate ends.

        Parameters
        ----------
        guard : Guard
            Ends this process when a delegate ends.
        """
        tasks: list[Callable[[], None]] = [partial(self._land, end) for end in self._into.values()]
        if self._out:
            tasks.append(self._mind)
        for task in tasks:
            threading.Thread(target=guard.guarded(task), name="delegation", daemon=True).start()

    def _land(self, receiver: Receiver) -> None:
        """Take what lands on a lane."""
        with self._until_closing():
            while True:
                received = receiver.irecv()
                received.wait(_FOREVER)
                iteration, number = divmod(received.tag, len(self._run.messages))
                message = self._run.messages[number]
                with self._copying:
                    if iteration == self._iteration:
                        self._arrive(message, received)
                        continue
                received.release()
                if self._run.failover_ms is None:
                    sent = self._run.named(iteration)
                    raise ReplayError(f"{message} of {sent} came after the end of it")
                # Else its direct path was quicker by an iteration.

    def _arrive(self, message: Message, received: Received) -> None:
        """Be the copy engine to the device: take what has landed, in the order it was given."""
        self._heard_ns[message] = now_ns()
        self._landed[message] = received
        if message not in self._waiting:
            self._fetch(message)
        while self._queue and self._queue[0] in self._landed:
            self._fetch(self._queue.popleft())

    def _mind(self) -> None:
        """Look after the delegates that send; whoever waits for the others hears of them."""
        with self._until_closing():
            while not self._closing.wait(_LOOK_S):
                for sender in self._out.values():
                    sender.check()

    @contextmanager
    def _until_closing(self) -> Iterator[None]:
        """Expect no delegate to end before."""
        try:
            with _named():
                yield
        except ReplayError:
            if not self._closing.is_set():
                raise

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
        with self._copying:
            for received in self._landed.values():
                received.release()
            self._iteration = iteration
            self._waiting = frozenset(order)
            self._queue = deque(order)
            self._landed = {}
            self._sent = {}
            self._fetch = fetch

    def fetch(self, message: Message) -> Tensor:
        """Return a landed message's bytes in its slot, until the next iteration."""
        return self._landed[message].content

    def slot(self, message: Message) -> Tensor:
        """Return the bytes of the slot from which ``message`` will be sent."""
        with _named():
            sent = self._sent[message] = self._out[self._run.route(message)].place()
        return sent.content[: self._payload_bytes(message.link)]

    def dispatch(self, message: Message, at_ns: int) -> None:
        """Hand a filled slot to its delegate, whose turn it is."""
        with _named():
            self._out[self._run.route(message)].hand_over(
                self._sent[message],
                self._payload_bytes(message.link),
                occupied_ms=self._run.delegate_ms(message),
                tag=self._iteration * len(self._run.messages) + self._run.number[message],
                at_ns=at_ns,
            )

    def record(self, record: Record) -> None:
        """Add when delegates of this host held messages of the iteration.

        Without one that is still on its way, because its direct path was quicker.
        """
        for message, sent in self._sent.items():
            if occupied := sent.occupied_ns:
                record.step(message, "delegate", *occupied)

    def learn(self, copying_ns: Mapping[Message, int]) -> None:
        """Let delegates make up for the time from their flag to the device, after the warm-up.

        Parameters
        ----------
        copying_ns : mapping of Message to int
            How long the messages of the iteration took to copy, beyond what is stated.
        """
        if self._iteration >= self._run.warmup:
            return
        for route, receiver in self._into.items():
            lead = self._lead_ns.get(route, 0)
            late = [
                self._heard_ns[message] + copying_ns[message] - due + lead
                for message in self._run.routes[route]
                if message in copying_ns
                and self._run.delegate_ms(message) > _MOST_LEAD_MS
                and (due := self._landed[message].due_ns)
            ]
            if late:
                most = round(1e6 * _MOST_LEAD_MS)
                self._lead_ns[route] = min(max(0, round(statistics.median(late))), most)
                receiver.lead(self._lead_ns[route] / 1e6)

    def close(self) -> None:
        """Expect the delegates to end from now on."""
        self._closing.set()

    def end(self) -> None:
        """End the delegates."""
        for end in (*self._out.values(), *self._into.values()):
            end.close()


@contextmanager
def _named() -> Iterator[None]:
    """Turn what lanes raise into a replay's errors."""
    try:
        yield
    except PeerError as error:
        raise LostPeerError(str(error)) from None
    except SilenceError as error:
        raise SilentPeerError(str(error)) from None
    except (DelegateError, MemoryError) as error:
        raise ReplayError(str(error)) from None
