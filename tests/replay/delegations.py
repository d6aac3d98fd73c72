"""The delegations of all devices of a run, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from torch.distributed import HashStore

from pipesim.replay.compute.kinds import payload
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.run.run import Run
from tests.processes import PATIENCE_S


@contextmanager
def opened(run: Run) -> Iterator[list[Delegation]]:
    """Open all; whatever becomes of them, their delegates end."""
    store = HashStore()

    def at(device: int) -> Delegation:
        return Delegation(
            run, device, lambda link: payload(run, link).size_bytes, store, PATIENCE_S
        )

    with ThreadPoolExecutor(run.devices) as threads:
        delegations = list(threads.map(at, range(run.devices)))
        with ExitStack() as ends:
            for delegation in delegations:
                ends.callback(delegation.end)
                ends.callback(delegation.close)
            yield delegations
