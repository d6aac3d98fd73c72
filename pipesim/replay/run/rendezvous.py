"""Where the workers of one machine meet: a store that listens on one address only.

Torch's own rendezvous backends listen on every address of the machine.
"""

from __future__ import annotations

import socket

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from pipesim.errors import ReplayError

__all__ = ["BACKEND", "listen", "register"]

BACKEND = "pipesim-one-address"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on one address; port 0: any that is free.

    Raises
    ------
    ReplayError
        The port is in use, or the address is not this machine's.
    """
    listening = socket.socket()
    try:
        # An earlier run's connections, long closed, may still occupy the port.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ReplayError(f"cannot listen on {host}:{port}: {reason}") from None
    return listening


def register(listening: socket.socket) -> None:
    """Make :data:`BACKEND` the rendezvous that uses a listening socket."""

    def make(parameters: RendezvousParameters) -> RendezvousHandler:
        return _OneAddress(listening, parameters.run_id)

    rendezvous_handler_registry._registry.pop(BACKEND, None)
    rendezvous_handler_registry.register(BACKEND, make)


class _OneAddress(RendezvousHandler):
    """The rendezvous of a single node."""

    def __init__(self, listening: socket.socket, run_id: str) -> None:
        self._run_id = run_id
        self._host, self._port = listening.getsockname()[:2]
        self._store = TCPStore(
            self._host,
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store),
            0,
            1,
            RendezvousStoreInfo(self._host, self._port),
        )

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True
