"""What a replay says where a machine or its limits have too little: one line, and no process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from pipesim.errors import ReplayError
from pipesim.replay import launcher, machine
from pipesim.replay.machine import check_machine
from pipesim.replay.prepare import prepare
from pipesim.replay.run.guard import Guard
from pipesim.scenario import Scenario
from planners import plan
from tests import ROOT
from tests.processes import PATIENCE_S, Background
from tests.replay.replays import replaying
from tests.replay.test_faults import NEVER, SHORT, TRANSPORTS, check_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and files of Linux")

SCENARIO = """\
format = "pipesim-scenario"
version = 1
[pipeline]
stages = 3
microbatches = 4
[operators]
forward_ms = 1.0
backward_ms = 1.0
weight_ms = 1.0
[links]
message_bytes = {}
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1e10, pytest.param(1e15, marks=pytest.mark.slow)])
def test_messages_larger_than_the_memory(tmp_path: Path, transport: str, size: float) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.format(size))
    options = ["--scenario", str(file), "--planner", "1f1b", "--warmup", "0"]
    says = r"3 workers would need [\d,.]+ GiB of memory and an iteration's messages [\d,.]+ GiB, .*"
    with replaying(tmp_path, *options, "--transport", transport) as run:
        check_end(run, says)


FEW = Scenario(stages=3, microbatches=1)


def test_more_workers_than_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepare(FEW, plan(FEW, "1f1b"), "nccl")
    monkeypatch.setattr(machine, "_WORKER_BYTES", 2**50)
    with pytest.raises(ReplayError, match=r"3 workers would need 3,145,728\.0 GiB of memory"):
        launcher.launch(run)


LIMITED = """\
import resource, sys
name, limit = sys.argv.pop(1), int(sys.argv.pop(1))
resource.setrlimit(getattr(resource, name), (limit, limit))
from pipesim.cli import main
main()
"""


def limited(folder: Path, name: str, limit: int, *arguments: str) -> Background:
    """Run pipesim with a limit of its own."""
    return Background(folder, sys.executable, "-c", LIMITED, name, str(limit), *arguments)


def test_no_space_in_shared_memory(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.format(2**20))
    options = ["--scenario", str(file), "--planner", "1f1b", "--transport", "delegated"]
    with limited(tmp_path, "RLIMIT_FSIZE", 2**20, "replay", *options) as run:
        check_end(
            run,
            r"rank \d, starting: no room for [\d,]+\.\d KiB of messages in shared memory: "
            "File too large",
        )


REPLAY = ["replay", *SHORT, "--microbatches", "4", "--iterations", "2", "--transport", "delegated"]
REPLAY += ["--timeout", NEVER]
HANDLES = (
    r"too few file handles: 3 workers and 8 delegates need up to (\d+) in a process, but only "
)


def test_too_few_file_handles(tmp_path: Path) -> None:
    with limited(tmp_path, "RLIMIT_NOFILE", 20, *REPLAY) as run:
        check_end(run, HANDLES + r"20 are allowed \(ulimit -n\)")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["delegated", "nccl", "exchange"])
def test_as_many_file_handles_as_are_asked_for_are_enough(tmp_path: Path, transport: str) -> None:
    arguments = [*REPLAY, "--transport", transport, "--quiet"]
    with limited(tmp_path, "RLIMIT_NOFILE", 16, *arguments) as run:
        run.ended()
        needed = re.search(r"need up to (\d+)", run.complaint)
        assert needed, run.complaint
    with limited(tmp_path, "RLIMIT_NOFILE", int(needed[1]), *arguments) as run:
        run.ended()
        assert (run.process.returncode, run.said) == (0, "")


ADDRESSES = (
    r"too little address space: a worker may need [\d,]+ MiB, but only 900 MiB are allowed .*"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mib", "says"),
    [
        (900, ADDRESSES),
        (300, r"torch cannot be loaded: .* \(ulimit -v allows too little address space\)"),
        (100, r"out of memory: only 100 MiB of address space are allowed \(ulimit -v\)"),
        (30, r"out of memory: only 30 MiB of address space are allowed \(ulimit -v\)"),
    ],
)
def test_too_little_address_space(tmp_path: Path, mib: int, says: str) -> None:
    with limited(tmp_path, "RLIMIT_AS", mib * 2**20, *REPLAY) as run:
        check_end(run, says)


@pytest.mark.parametrize(
    ("name", "words"),
    [("RLIMIT_NOFILE", "too few file handles"), ("RLIMIT_AS", "too little address space")],
)
def test_limits(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepare(FEW, plan(FEW, "1f1b"), "delegated")
    monkeypatch.setattr(machine, "_limit", {name: 10}.get)
    with pytest.raises(ReplayError, match=words):
        check_machine(run)
    monkeypatch.setattr(machine, "_limit", {name: 2**50}.get)
    check_machine(run)


Usage = namedtuple("Usage", ["free"])


def test_a_full_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [prepare(FEW, plan(FEW, "1f1b"), "nccl", iterations=n) for n in (1, 10_000)]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**20))
    check_machine(runs[0])
    with pytest.raises(ReplayError, match=r"the temporary folder .* is too full: a run needs .*"):
        check_machine(runs[1])


@pytest.mark.parametrize(
    ("folder", "why"),
    [("nowhere", "No such file or directory"), ("file", "Not a directory")],
)
def test_a_temporary_folder_that_was_asked_for_and_cannot_be_used(
    folder: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes another one without a word."""
    run = prepare(FEW, plan(FEW, "1f1b"), "nccl")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / folder))
    with pytest.raises(ReplayError, match=f"cannot write to the folder of TMPDIR, .*: {why}"):
        check_machine(run)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    check_machine(run)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_who_could_not_even_say_that_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher._last_words(0, tmp_path) == "ended without an error message"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0))
    assert launcher._last_words(0, tmp_path).endswith("as the temporary folder is full")


def test_no_room_to_say_what_a_worker_does() -> None:
    guard = Guard(0, Path("/dev/full"))
    guard.enter("something")


# -- a file system of its own ------------------------------------------------------------

MOUNTED = """\
mount -t tmpfs -o size="$1" small "$2" && shift 2 && exec "$@"
"""


def mounted(folder: Path, place: str, size: str, env: dict[str, str | None]) -> Background:
    """Run a replay that sees a small file system at a place; skip where that is forbidden."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = [*alone, "sh", "-c", MOUNTED, "sh", size, place]
    try:
        tried = subprocess.run(
            [*mount, "true"], check=False, capture_output=True, timeout=PATIENCE_S
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if tried.returncode:
        pytest.skip("no file system may be mounted here")
    python = [sys.executable, "-m", "pipesim"]
    path = {"PYTHONPATH": str(ROOT)}
    return Background(folder, *mount, *python, *REPLAY, env={**path, **env})


@pytest.mark.slow
@pytest.mark.parametrize("size", ["4k", "16k", "64k"])
def test_a_small_temporary_folder(tmp_path: Path, size: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    with mounted(tmp_path, str(small), size, {"TMPDIR": str(small)}) as run:
        check_end(run, f"the temporary folder {small} is too full: a run needs .*")


@pytest.mark.slow
def test_small_shared_memory_is_enough(tmp_path: Path) -> None:
    """As in containers: a message's memory has no place in a file system."""
    with mounted(tmp_path, "/dev/shm", "4k", {}) as run:
        run.ended()
        assert run.process.returncode == 0, run.said
