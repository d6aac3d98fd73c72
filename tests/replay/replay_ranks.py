"""Runs prepared replays one after the other, forking their workers. Arguments: folders.

Each folder holds ``run.json`` and gets ``result.json``. Importing torch takes longer than such
a run; here it is imported once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import TCPStore

from pipesim.replay import worker
from pipesim.replay.compute import model, training  # noqa: F401
from pipesim.replay.device import failover  # noqa: F401
from pipesim.replay.run.run_json import load_run
from tests.become import end_with_parent


def main() -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # imports much when first made
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for folder in map(Path, sys.argv[1:]):
        run = load_run(folder / "run.json")
        listening = socket.create_server(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(listening.getsockname()[1])
        os.environ["WORLD_SIZE"] = str(run.devices)
        store = forked(lambda listening=listening: serve(listening))
        listening.close()
        try:
            ranks = [forked(lambda r=rank, f=folder: work(r, f)) for rank in range(run.devices)]
            codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        finally:
            os.kill(store, signal.SIGKILL)
            os.waitpid(store, 0)
        if any(codes):
            sys.exit(f"{folder}: {codes}")


def serve(listening: socket.socket) -> None:
    host, port = listening.getsockname()
    store = TCPStore(  # noqa: F841
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    signal.pause()


def work(rank: int, folder: Path) -> None:
    os.environ["RANK"] = str(rank)
    worker.main([str(folder / "run.json"), "-o", str(folder / "result.json")])


def forked(task: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        end_with_parent()
        task()
        os._exit(1)
    return child


if __name__ == "__main__":
    main()
