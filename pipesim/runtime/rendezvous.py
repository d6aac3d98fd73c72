"""How the two ends of a lane find each other: through a store, without trusting who connects."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from typing import NamedTuple

from torch.distributed import Store  # type: ignore[attr-defined]

from pipesim.runtime.delegates import DelegateError, PeerError, SilenceError

__all__ = ["Door", "Invitation", "connect", "own_address", "read"]

_KEY = "pipesim/lanes/"
_HELLO = struct.Struct("=16si")
_HELLO_WITHIN_S = 5.0
_SIOCGIFADDR = 0x8915
_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = f"; from another host, its rank needs an address, or {_INTERFACE}"


class Invitation(NamedTuple):
    """What a receiver publishes of a lane.

    Attributes
    ----------
    host, port : str, int
        Where it listens.
    token : str
        What who connects must say, in hexadecimal.
    delegates, slot_bytes : int
        Of the lane.
    """

    host: str
    port: int
    token: str
    delegates: int
    slot_bytes: int


class Door:
    """Where a rank listens for the delegates of its lanes; a context manager."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, 0), family=family, backlog=4096)
        except OSError as error:
            raise DelegateError(f"cannot listen on {address}: {error.strerror or error}") from None
        self._tokens: dict[bytes, str] = {}

    def invite(self, store: Store, name: str, delegates: int, slot_bytes: int) -> None:
        """Publish how to connect for a lane."""
        token = secrets.token_bytes(16)
        self._tokens[token] = name
        host, port = self._listener.getsockname()[:2]
        said = Invitation(host, port, token.hex(), delegates, slot_bytes)
        store.set(_KEY + name, json.dumps(said))

    def accept(
        self, expected: Mapping[str, int], deadline_s: float
    ) -> dict[tuple[str, int], socket.socket]:
        """Wait for delegates 0 to expected[name] - 1 of each lane."""
        found: dict[tuple[str, int], socket.socket] = {}
        missing = {(name, index) for name, k in expected.items() for index in range(k)}
        try:
            while missing:
                self._listener.settimeout(max(deadline_s - time.monotonic(), 1e-3))
                connection, _ = self._listener.accept()
                connection.settimeout(_HELLO_WITHIN_S)
                said = b""
                with suppress(OSError):
                    said = connection.recv(_HELLO.size, socket.MSG_WAITALL)
                token, index = _HELLO.unpack(said) if len(said) == _HELLO.size else (b"", -1)
                key = self._tokens.get(token, ""), index
                if key not in missing:  # a stranger
                    connection.close()
                    continue
                missing.discard(key)
                found[key] = _ready(connection)
        except TimeoutError:
            for connection in found.values():
                connection.close()
            raise SilenceError(f"nobody has connected for lane {min(missing)[0]}") from None
        return found

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()


def read(store: Store, name: str, receiver: int, deadline_s: float) -> Invitation:
    """Wait for a lane's invitation and take it out of the store, so its name can be used again.

    Raises
    ------
    DelegateError
        Nobody publishes one.
    """
    left = timedelta(seconds=max(deadline_s - time.monotonic(), 1e-3))
    try:
        store.wait([_KEY + name], left)
        said = store.get(_KEY + name)
    except RuntimeError:
        raise SilenceError(f"rank {receiver} has not opened lane {name}") from None
    store.delete_key(_KEY + name)
    return Invitation(*json.loads(said))


def connect(invitation: Invitation, index: int, deadline_s: float) -> socket.socket:
    """Return the connection of one delegate."""
    left = max(deadline_s - time.monotonic(), 1e-3)
    place = invitation.host, invitation.port
    try:
        connection = socket.create_connection(place, left)
        connection.sendall(_HELLO.pack(bytes.fromhex(invitation.token), index))
    except OSError as error:
        here = "" if not ip_address(place[0].partition("%")[0]).is_loopback else _LOOPBACK
        raise PeerError(
            f"cannot connect to {place[0]}:{place[1]}: {error.strerror or error}{here}"
        ) from None
    return _ready(connection)


def _ready(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def own_address(store: Store) -> str:
    """Return the address that others reach this host at.

    That of the interface that ``GLOO_SOCKET_IFNAME`` names, as for gloo; else that from which
    this host reaches the store's; the loopback address if the store is on no host.

    Raises
    ------
    DelegateError
        There is no such interface, or no way to the store.
    """
    if interface := os.environ.get(_INTERFACE, "").partition(",")[0]:
        return _of_interface(interface)
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", ""), getattr(store, "port", 0)
    if not host:
        return "127.0.0.1"
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise DelegateError(f"no way to the store's host {host}: {error.strerror}") from None
    return "127.0.0.1" if ip_address(address.partition("%")[0]).is_loopback else address


def _of_interface(name: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            facts = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise DelegateError(f"{_INTERFACE}={name}: {error.strerror}") from None
    return socket.inet_ntoa(facts[20:24])
