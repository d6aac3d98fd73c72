"""What runs beside a training job: delegates, and adapters for the runtimes that people have.

It needs the standard library, numpy and torch alone: nothing of the simulator is imported.
"""

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
