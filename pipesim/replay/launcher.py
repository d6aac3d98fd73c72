"""Starts the workers of a run on this machine, through torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipesim.errors import ReplayError
from pipesim.replay import rendezvous
from pipesim.replay.measured import Measured, load_result
from pipesim.replay.run import Run
from pipesim.replay.run_json import save_run

__all__ = ["launch"]

_LOOPBACK = "127.0.0.1"
_SHUTDOWN_S = 3


def launch(run: Run, port: int = 0) -> Measured:
    """Run ``run`` in one process for each device, and return what they measured.

    Parameters
    ----------
    run : Run
        What to run.
    port : int
        Where the processes meet, on the loopback address. 0: any port that is free.

    Raises
    ------
    ReplayError
        The processes could not start, or one of them ended early; the message names its
        rank and its instruction. All of them have ended.
    """
    listening = rendezvous.listen(_LOOPBACK, port)
    rendezvous.register(listening)
    with tempfile.TemporaryDirectory(prefix="pipesim-") as folder, _environment():
        place = Path(folder)
        save_run(run, place / "run.json")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=run.devices,
            run_id="pipesim",
            rdzv_backend=rendezvous.BACKEND,
            max_restarts=0,
            local_addr=_LOOPBACK,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.ALL),
        )
        worker = ["-m", "pipesim.replay.worker", str(place / "run.json")]
        options = ["-o", str(place / "result.json"), "--status", folder]
        try:
            elastic_launch(config, sys.executable)(*worker, *options)
        except ChildFailedError as error:
            raise ReplayError(_blame(error.failures, place)) from None
        except SignalException:
            raise ReplayError("interrupted") from None
        return load_result(place / "result.json")


@contextmanager
def _environment() -> Iterator[None]:
    """Set what the launcher and the workers read from the environment, and put it back."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    wanted = {
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SHUTDOWN_S),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    before = dict(os.environ)
    os.environ |= wanted
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        for name in (*wanted, "TORCHELASTIC_SIGNALS_TO_HANDLE"):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


def _blame(failures: Mapping[int, ProcessFailure], folder: Path) -> str:
    """Say who ended the run: a killed process rather than those that missed it."""
    killed = [failure for failure in failures.values() if failure.exitcode < 0]
    # The launcher itself ends the others by SIGTERM.
    first = next((failure for failure in killed if failure.signal_name() != "SIGTERM"), None)
    said = [failure for failure in failures.values() if failure.exitcode > 0]
    if first is None and said:
        first = min(said, key=lambda failure: failure.timestamp)
        said_it: object = first.message
        message = said_it.get("message") if isinstance(said_it, dict) else said_it
        return str(message).removeprefix("ReplayError: ")
    first = first or killed[0]
    doing = _status(first.local_rank, folder)
    return f"rank {first.local_rank}, {doing}: was killed by {first.signal_name()}"


def _status(rank: int, folder: Path) -> str:
    path = folder / f"rank{rank}"
    return path.read_text().strip() if path.exists() else "starting"
