"""Starts the workers of a run on this machine, through torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    SubprocessContext,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipesim.errors import ReplayError
from pipesim.replay.device.cuda_device import refuse
from pipesim.replay.machine import check_machine
from pipesim.replay.run import rendezvous
from pipesim.replay.run.guard import LAUNCHER, NOBODY_ANSWERS
from pipesim.replay.run.measured import Measured, load_result
from pipesim.replay.run.roster import waited_for_stopped
from pipesim.replay.run.run import Run
from pipesim.replay.run.run_json import save_run
from pipesim.runtime.delegates import is_stopped

__all__ = ["launch"]

_LOOPBACK = "127.0.0.1"
_SHUTDOWN_S = 3
_WORD_BYTES = 4096
"""What a file takes, even of one line."""
_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT


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
    if run.device == "cuda":
        refuse(run, torch.cuda.device_count(), run.devices)
    check_machine(run)
    with closing(rendezvous.listen(_LOOPBACK, port)) as listening:
        rendezvous.register(listening)
        try:
            return _launched(run)
        except SignalException:
            raise ReplayError("interrupted") from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            why = error.strerror or error
            raise ReplayError(f"cannot start processes: {place}{why}") from None
        except DistError as error:  # of torch's store
            why = str(error).partition("\n")[0]
            raise ReplayError(f"cannot start processes: {why}") from None


def _launched(run: Run) -> Measured:
    with (
        _signals(),
        tempfile.TemporaryDirectory(prefix="pipesim-") as folder,
        _environment(folder),
        _impatient() as (outlived, stopped),
        # torch leaves the workers' log files to the garbage collector.
        warnings.catch_warnings(action="ignore", category=ResourceWarning),
    ):
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
            failures = [f for rank, f in error.failures.items() if rank not in outlived]
            blame = _blame(failures, place)
            if stopped and blame.endswith(NOBODY_ANSWERS):  # who is stopped was not known there
                names = [f"rank {rank}" for rank in sorted(stopped)]
                rank, _, doing = blame.removesuffix(f": {NOBODY_ANSWERS}").partition(", ")
                blame = waited_for_stopped(names, rank, doing)
            raise ReplayError(blame) from None
        except SignalException:
            raise ReplayError(f"interrupted at rank 0, {_status(0, place)}") from None
        return load_result(place / "result.json")


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """Set what the launcher and the workers read from the environment, and put it back."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    wanted = {
        LAUNCHER: f"{os.getpid()} {folder}",
        "GLOO_SOCKET_IFNAME": loopback,
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": folder,  # which importing an optimizer makes
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


@contextmanager
def _signals() -> Iterator[None]:
    """Put back this process's signal handlers; torch leaves its own behind."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        _take(before)


def _take(ways: Mapping[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, way in ways.items():
            if way is not None:  # one that Python knows
                signal.signal(number, way)


@contextmanager
def _impatient() -> Iterator[tuple[set[int], set[int]]]:
    """Give workers less time to end after another has failed: torch gives half a minute.

    Nothing can interrupt that wait. Yields the ranks that were still running, and so were not the
    first to fail, and those of them that were stopped.
    """
    context: Any = SubprocessContext
    close = context.close
    outlived: set[int] = set()
    stopped: set[int] = set()

    def close_soon(self: Any, death_sig: signal.Signals | None = None, timeout: int = 0) -> None:
        _take(dict.fromkeys(_SIGNALS, signal.SIG_IGN))
        for rank, handler in self.subprocess_handlers.items():
            if handler.proc.poll() is None:
                outlived.add(rank)
                if is_stopped(handler.proc.pid):
                    stopped.add(rank)
        close(self, death_sig, _SHUTDOWN_S)

    context.close = close_soon
    try:
        yield outlived, stopped
    finally:
        context.close = close


def _blame(failures: Sequence[ProcessFailure], folder: Path) -> str:
    """Say who ended the run: a killed process, rather than those that then missed it."""
    first = min(failures, key=lambda failure: (failure.exitcode > 0, failure.timestamp))
    said: object = first.message
    if first.exitcode > 0 and isinstance(said, dict):
        return str(said.get("message")).removeprefix("ReplayError: ")
    killed = f"was killed by {first.signal_name()}"
    why = killed if first.exitcode < 0 else _last_words(first.local_rank, folder)
    if why.startswith("error: "):  # it has said where
        return why.removeprefix("error: ")
    return f"rank {first.local_rank}, {_status(first.local_rank, folder)}: {why}"


def _last_words(rank: int, folder: Path) -> str:
    """Return the last line on the standard error of a worker that could not say more."""
    lines = [
        line.strip()
        for path in folder.glob(f"*/*/{rank}/stderr.log")
        for line in path.read_text(errors="replace").splitlines()
        if line.strip()
    ]
    if lines:
        return lines[-1]
    full = shutil.disk_usage(folder).free < _WORD_BYTES
    return f"ended without an error message{', as the temporary folder is full' if full else ''}"


def _status(rank: int, folder: Path) -> str:
    path = folder / f"rank{rank}"
    return path.read_text().strip() if path.exists() else "starting"
