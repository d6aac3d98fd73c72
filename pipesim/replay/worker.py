"""A worker: one process for one device of a plan.

Started by ``pipesim replay``, or by hand on several machines::

    torchrun --nnodes 2 --nproc-per-node 2 … -m pipesim.replay.worker run.json -o result.json

It reads nothing but the run, which is JSON, and talks only to the addresses that the launcher
gives it. Rank 0 writes the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from pipesim.errors import ReplayError
from pipesim.files import write_text
from pipesim.replay.compute.kinds import payload, work
from pipesim.replay.device.cuda import CudaQueue
from pipesim.replay.device.cuda_device import Batches, Gpu, grouped
from pipesim.replay.device.delegation import Delegation
from pipesim.replay.device.direct import Direct
from pipesim.replay.device.failover import Failover
from pipesim.replay.device.launch_queue import LaunchQueue
from pipesim.replay.run import clocks
from pipesim.replay.run.guard import Guard, follow, launcher, wake_promptly
from pipesim.replay.run.logbook import rank_document, result_json
from pipesim.replay.run.meeting import Meeting
from pipesim.replay.run.roster import Roster
from pipesim.replay.run.run import Run
from pipesim.replay.run.run_json import load_run

__all__ = ["main"]

_STARTING = timedelta(seconds=60)
_FOREVER = timedelta(days=7)


class _Place(NamedTuple):
    """The place of this worker among the others, and where they meet, as torchrun says."""

    rank: int
    world: int
    host: str
    port: int

    @classmethod
    def of_environment(cls) -> _Place:
        try:
            rank, world, port = (
                int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
            )
            return cls(rank, world, os.environ["MASTER_ADDR"], port)
        except (KeyError, ValueError):
            sys.stderr.write("error: a worker is started by pipesim replay, or by torchrun\n")
            sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one worker to its end."""
    options = _options(arguments)
    place = _Place.of_environment()
    guard = Guard(place.rank, options.status and options.status / f"rank{place.rank}")
    try:
        if place.rank == 0 and not options.output.absolute().parent.is_dir():
            raise ReplayError(f"-o {options.output}: there is no folder {options.output.parent}")
        run = load_run(options.run)
        if run.devices != place.world:
            raise ReplayError(
                f"the plan is for {run.devices} devices, not for {place.world} processes"
            )
        _work(run, place, options.output, guard)
    except BaseException as error:
        guard.fail(error)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pipesim.replay.worker", description=main.__doc__)
    parser.add_argument("run", type=Path, help="what `pipesim replay --prepare` has written")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="where rank 0 writes the result"
    )
    parser.add_argument("--status", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _work(run: Run, place: _Place, output: Path, guard: Guard) -> None:
    rank, parent = place.rank, launcher()
    torch.set_num_threads(1)
    wake_promptly()
    follow(parent)
    store = TCPStore(place.host, place.port, is_master=False, timeout=_STARTING)
    delegation = Delegation(
        run,
        rank,
        lambda link: payload(run, link).size_bytes,
        PrefixStore("delegates", store),
        _STARTING.total_seconds(),
    )
    delegation.watch(guard)
    roster = Roster(PrefixStore("processes", store))
    delegates = {f"rank {rank}'s {name}": pid for name, pid in delegation.processes.items()}
    roster.publish(rank, {f"rank {rank}": os.getpid(), **delegates})
    gpu = Gpu.open(run) if run.device == "cuda" else None
    dist.init_process_group("gloo", timeout=_STARTING)
    patience = timedelta(seconds=run.timeout_s)
    group = dist.new_group(timeout=patience)
    meeting = Meeting(rank, group, patience)
    # A transfer that times out closes all connections of its group. Those that fail-over gives
    # up never do: it has timeouts of its own.
    transfers = dist.new_group(timeout=patience if run.failover_ms is None else _FOREVER)
    doing = work(run, rank, gpu.device if gpu else torch.device("cpu"))
    direct = Direct(run, doing.payload, transfers)
    path = direct if run.failover_ms is None else Failover(run, direct, delegation)
    queue: LaunchQueue | CudaQueue
    if gpu:
        batches = Batches(run, rank, gpu) if grouped(run) else None
        queue = CudaQueue(run, rank, doing, delegation, guard, gpu, batches)
    else:
        queue = LaunchQueue(run, rank, doing, path, delegation, guard)
    assert dist.group.WORLD is not None
    Meeting(rank, dist.group.WORLD, _STARTING).wait()
    roster.read(place.world)
    guard.roster = roster
    first = clocks.read(rank, group)
    records = []
    gc.collect()
    gc.freeze()
    gc.disable()
    for iteration in range(run.total_iterations):
        guard.enter(f"before {run.named(iteration)}")
        doing.begin(iteration)
        queue.begin(iteration)
        meeting.wait()
        record = queue.run()
        guard.enter(f"after {run.named(iteration)}")
        meeting.wait()
        delegation.record(record)
        records.append(record)
        doing.finish()
        gc.collect()
    guard.enter("at the end")
    queue.close()
    clock = clocks.Clock(first, clocks.read(rank, group))
    switches = path.switches if isinstance(path, Failover) else []
    said = rank_document(run, clock, records, switches, doing.report())
    delegation.close()
    _deliver(said, run, rank, output)
    dist.barrier()
    delegation.end()
    # Threads of a path that was given up may still wait for it.
    os._exit(0)


def _deliver(said: dict[str, object], run: Run, rank: int, output: Path) -> None:
    """Bring what every rank has to say to rank 0, which writes it."""
    content = json.dumps(said).encode()
    size = torch.tensor([len(content)])
    if rank:
        dist.send(size, 0)
        dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0)
        return
    ranks = [content.decode()]
    for other in range(1, run.devices):
        dist.recv(size, other)
        received = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(received, other)
        ranks.append(received.numpy().tobytes().decode())
    write_text(output, result_json(run, ranks))


if __name__ == "__main__":
    main()
