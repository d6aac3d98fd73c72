"""Group kernels: communication that holds a stream until all its transfers have ended."""

from __future__ import annotations

from simpy import Event

from pipesim.engine.simpy.state import State, after, on
from pipesim.program import Group, Message
from pipesim.transport import Nccl

__all__ = ["Kernels"]


class _Kernel:
    """One side of a group, and its transfers that have not ended yet."""

    def __init__(self, device: int, group: Group, start_ms: float, end: Event) -> None:
        self.device = device
        self.group = group
        self.start_ms = start_ms
        self.end = end
        self.open = {*group.sends, *group.receives}


class Kernels:
    """Starts group kernels and joins the two ends of every transfer.

    A transfer begins when both ends' kernels run (rendezvous), or with the sender's alone
    below the eager limit. A kernel ends when all its transfers have. An operator that
    needs one of its receives waits for that, and for the latency of the link.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._senders: dict[Message, _Kernel] = {}
        self._receivers: dict[Message, _Kernel] = {}
        self._flights: dict[Message, Event] = {}
        self._running: dict[int, list[_Kernel]] = {}
        transport = state.program.transport
        self._eager_bytes = transport.eager_bytes if isinstance(transport, Nccl) else 0.0

    def launch(self, device: int, group: Group) -> Event:
        """Start a group's kernel on ``device``; the event is its end."""
        env = self.state.env
        kernel = _Kernel(device, group, env.now, env.event())
        self._running.setdefault(device, []).append(kernel)
        for message in group.sends:
            self._senders[message] = kernel
            if message in self._receivers or self._is_eager(message):
                self._transfer(message)
        for message in group.receives:
            self._receivers[message] = kernel
            if message in self._flights:
                self._receive(message)
            elif message in self._senders and not self._is_eager(message):
                self._transfer(message)
        return kernel.end

    def _is_eager(self, message: Message) -> bool:
        return self._eager_bytes > 0 and self.state.message_bytes(message) <= self._eager_bytes

    def _transfer(self, message: Message) -> None:
        after(self.state.env, self.state.transfer_ms(message), lambda: self._transferred(message))

    def _transferred(self, message: Message) -> None:
        state, now = self.state, self.state.env.now
        sender = self._senders[message]
        latency = state.latency_ms[message.link][message.direction]
        if latency > 0:
            state.record(message, "wire", sender.device, now, now + latency)
        self._close(sender, message)
        self._flights[message] = state.env.timeout(latency)
        if message in self._receivers:
            self._receive(message)

    def _receive(self, message: Message) -> None:
        self._close(self._receivers[message], message)

    def _close(self, kernel: _Kernel, message: Message) -> None:
        kernel.open.discard(message)
        if kernel.open:
            return
        self._running[kernel.device].remove(kernel)
        kernel.end.succeed()
        for sent in (*kernel.group.sends, *kernel.group.receives):
            self.state.record(sent, "kernel", kernel.device, kernel.start_ms, self.state.env.now)
        for received in kernel.group.receives:
            flight, arrived = self._flights[received], self.state.arrived[received]
            if flight.processed:
                arrived.succeed()
            else:
                on(flight, arrived.succeed)

    def open(self, device: int) -> list[Message]:
        """The messages that keep the running kernels of a device open."""
        return [
            message
            for kernel in self._running.get(device, [])
            for message in (*kernel.group.sends, *kernel.group.receives)
            if message in kernel.open
        ]

    def unmatched(self) -> list[str]:
        """Say which kernels still run although nothing happens any more."""
        return [
            f"device {device} never completes {' and '.join(map(str, self.open(device)))}"
            for device, kernels in sorted(self._running.items())
            if kernels
        ]
