"""What runs beside a training job: delegates, and adapters for the runtimes that people have.

It needs the standard library, numpy and torch alone: nothing of the simulator is imported.
"""

from pipesim.runtime.adaptive import Adaptive
from pipesim.runtime.delegates import DelegateError, PeerError
from pipesim.runtime.ends import Handle, Receiver, Sender
from pipesim.runtime.lanes import Lane, open_lanes
from pipesim.runtime.pipelining import delegated

__all__ = [
    "Adaptive",
    "DelegateError",
    "Handle",
    "Lane",
    "PeerError",
    "Receiver",
    "Sender",
    "delegated",
    "open_lanes",
]
