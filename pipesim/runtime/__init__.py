"""What runs beside a training job: delegates, and adapters for the runtimes that people have.

It needs the standard library, numpy and torch alone: nothing of the simulator is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipesim.runtime.adaptive import Adaptive
    from pipesim.runtime.delegates import DelegateError, PeerError, SilenceError
    from pipesim.runtime.ends import Receiver, Sender
    from pipesim.runtime.handles import Handle
    from pipesim.runtime.lanes import Lane, open_lanes
    from pipesim.runtime.megatron import delegated_p2p
    from pipesim.runtime.pipelining import delegated

__all__ = [
    "Adaptive",
    "DelegateError",
    "Handle",
    "Lane",
    "PeerError",
    "Receiver",
    "Sender",
    "SilenceError",
    "delegated",
    "delegated_p2p",
    "open_lanes",
]

# Imported when first used: who opens lanes alone does not load torch's pipelining.
_HOMES = {
    "Adaptive": "adaptive",
    "DelegateError": "delegates",
    "Handle": "handles",
    "Lane": "lanes",
    "PeerError": "delegates",
    "Receiver": "ends",
    "Sender": "ends",
    "SilenceError": "delegates",
    "delegated": "pipelining",
    "delegated_p2p": "megatron",
    "open_lanes": "lanes",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
