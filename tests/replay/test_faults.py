"""What is left of a replay that ends early: nothing but one line that says why."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import ReplayError
from pipesim.replay.run.guard import is_silence
from pipesim.replay.run.rendezvous import listen
from tests import ROOT
from tests.processes import PATIENCE_S, Background, waited_for
from tests.replay.replays import Replay, is_stopped, listening, replaying, shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SHORT = ["--stages", "3", "--planner", "1f1b", "--warmup", "0"]
SHORT += ["--forward", "1ms", "--backward", "1ms", "--weight", "1ms"]
# An iteration of half a minute: whatever happens, happens in its midst.
LONG = ["--stages", "3", "--planner", "1f1b", "--warmup", "0", "--microbatches", "500"]
LONG += ["--forward", "20ms", "--backward", "20ms", "--weight", "20ms"]
TRANSPORTS = ["delegated", pytest.param("nccl", marks=pytest.mark.slow)]
NEVER = f"{1000 * PATIENCE_S:g}s"
"""To wait for a peer: who ends within a test's patience has not waited for that."""
SILENCE = "4s"
"""The same where it is what ends a run: longer than a busy machine leaves anybody waiting."""
END = r"\d(SEND|RECV)_[FB]\d+"
INSTRUCTION = rf"iteration 0, (\d(F|BW)\d+|{END}|\[{END}(, {END})+\])"
INTERRUPTED = f"interrupted at rank 0, {INSTRUCTION}"


def started(place: Path, transport: str, *options: str, timeout: str = NEVER) -> Replay:
    """A replay in the midst of its first iteration."""
    return replaying(place, *LONG, "--transport", transport, "--timeout", timeout, *options)


def check_end(run: Background, says: str) -> None:
    """All has ended with code 2 and one line."""
    run.ended()
    assert re.fullmatch(says, run.complaint), run.complaint
    assert run.process.returncode == 2
    assert run.output == ""
    assert run.leftovers == []


# -- killed ------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_worker(tmp_path: Path, transport: str) -> None:
    with started(tmp_path, transport) as run:
        os.kill(run.running().workers()[1], signal.SIGKILL)
        check_end(run, f"rank 1, {INSTRUCTION}: was killed by SIGKILL")


@pytest.mark.slow
def test_a_killed_delegate(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        os.kill(run.running().delegates()[2][0], signal.SIGKILL)
        check_end(
            run, rf"rank 2, {INSTRUCTION}: delegate \d of (2→1 up|1→2 down) was killed by SIGKILL"
        )


def test_a_killed_launcher(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        assert len(run.running().delegates()) == 3
        run.process.kill()
        run.ended()
        assert run.said == ""
        assert run.leftovers == []  # the workers cleared up


@pytest.mark.slow
def test_a_launcher_killed_while_workers_start(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        waited_for(run.workers, "a worker")
        run.process.kill()
        run.ended()
        assert run.said == ""


@pytest.mark.slow
def test_a_launcher_killed_with_a_stopped_worker(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        os.kill(run.running().workers()[1], signal.SIGSTOP)
        run.process.kill()
        run.ended()
        assert run.said == ""
        assert run.leftovers == []


STOPS_AT_ONCE = """\
import os, signal
if os.environ.get("RANK") == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
"""

# -- silent ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_that_never_answers(tmp_path: Path, transport: str) -> None:
    with started(tmp_path, transport, timeout=SILENCE) as run:
        os.kill(run.running().workers()[1], signal.SIGSTOP)
        stopped = r"rank 1 is stopped \(SIGSTOP\)"
        check_end(run, rf"{stopped}, so rank [02] waited in vain \({INSTRUCTION}\)")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["delegated", "nccl"])
def test_the_one_that_is_stopped_is_named_and_not_its_neighbour(
    tmp_path: Path, transport: str
) -> None:
    """Rank 0 misses rank 1, which waits for rank 2; whoever gives up first names rank 2."""
    with started(tmp_path, transport, timeout=SILENCE) as run:
        os.kill(run.running().workers()[2], signal.SIGSTOP)
        stopped = r"rank 2 is stopped \(SIGSTOP\)"
        check_end(run, rf"{stopped}, so rank [01] waited in vain \({INSTRUCTION}\)")


@pytest.mark.slow
def test_a_worker_stopped_while_it_starts(tmp_path: Path) -> None:
    """Nobody has heard of it; only the launcher knows its process."""
    (tmp_path / "sitecustomize.py").write_text(STOPS_AT_ONCE)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    options = [*LONG, "--transport", "nccl", "--timeout", NEVER]
    with replaying(tmp_path, *options, env=env) as run:
        stopped = r"rank 1 is stopped \(SIGSTOP\)"
        check_end(run, rf"{stopped}, so rank \d waited in vain \(starting\)")


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 1])
def test_a_worker_that_all_others_wait_for(tmp_path: Path, silent: int) -> None:
    others = {0, 1, 2} - {silent}
    takes = ",".join("500ms" if rank == silent else "1ms" for rank in range(3))
    options = ["--stages", "3", "--planner", "zerobubble", "--microbatches", "1"]
    options += ["--forward", "1ms", "--backward", "1ms", "--weight", takes, "--warmup", "0"]
    options += ["--iterations", "1000", "--timeout", SILENCE, "--transport", "nccl"]
    with replaying(tmp_path, *options) as run:
        process = run.running([silent]).workers()[silent]

        def only_one_is_left() -> bool:
            """Whether all but one have ended the iteration that it is in."""
            last = re.fullmatch(rf"(iteration \d+), {silent}W\d", run.status(silent))
            return bool(last) and all(run.status(rank) == f"after {last[1]}" for rank in others)

        def is_caught() -> bool:
            """Stop it there: what was so a moment ago may be so no longer."""
            waited_for(only_one_is_left, "others to have ended the iteration")
            os.kill(process, signal.SIGSTOP)
            waited_for(lambda: is_stopped(process), "a worker to stop")
            if only_one_is_left():
                return True
            os.kill(process, signal.SIGCONT)
            return False

        waited_for(is_caught, "a worker to be the last of an iteration")
        stopped = rf"rank {silent} is stopped \(SIGSTOP\)"
        check_end(run, rf"{stopped}, so rank \d waited in vain \(after iteration \d+\)")


@pytest.mark.parametrize(
    "words",
    [
        "[/…/unbound_buffer.cc:129] Timed out waiting 2080ms for send operation to complete",
        "wait timeout after 60000ms, keys: /default_pg/0//cpu//0/rank_1",
        "Gloo connectFullMesh failed with [/…/tcp/pair.h:311] Connect timeout [none]",
        "The client socket has timed out after 60000ms while trying to connect to (::1, 1).",
    ],
)
def test_words_of_others_for_a_silent_rank(words: str) -> None:
    assert is_silence(RuntimeError(words))
    assert not is_silence(ReplayError("the launch timed out and was terminated"))


@pytest.mark.slow
def test_a_delegate_that_never_answers(tmp_path: Path) -> None:
    names = r"(rank 1's delegate 0 of \d→\d (down|up)(, | and )?)+"
    with started(tmp_path, "delegated", timeout=SILENCE) as run:
        for delegate in run.running().delegates()[1]:
            os.kill(delegate, signal.SIGSTOP)
        gave_up = rf"so rank \d waited in vain \({INSTRUCTION}\)"
        check_end(run, rf"{names} are stopped \(SIGSTOP\), {gave_up}")


# -- interrupted -------------------------------------------------------------------------


def test_an_interrupted_launcher(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        run.running().process.send_signal(signal.SIGINT)
        check_end(run, INTERRUPTED)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the launcher", "all"])
def test_interrupted_while_workers_start(tmp_path: Path, whom: str) -> None:
    with started(tmp_path, "delegated") as run:
        waited_for(run.workers, "a worker")
        send = run.process.send_signal if whom == "the launcher" else group_of(run)
        send(signal.SIGINT)
        check_end(run, "interrupted( at rank 0, .*)?")


def group_of(run: Background) -> Callable[[int], None]:
    """Return what sends a signal to a command and all that it has started, as a terminal does."""
    return lambda number: os.killpg(run.process.pid, number)


@pytest.mark.slow
def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        os.killpg(run.running().process.pid, signal.SIGINT)
        check_end(run, INTERRUPTED)


@pytest.mark.slow
def test_an_impatient_ctrl_c(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        run.running()
        for _ in range(3):
            os.killpg(run.process.pid, signal.SIGINT)
        run.ended()
        assert re.fullmatch(f"interrupted|{INTERRUPTED}", run.complaint)
        assert run.process.returncode == 2
        assert run.leftovers == []


@pytest.mark.slow
def test_interrupted_with_a_stopped_delegate(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        os.kill(run.running().delegates()[1][0], signal.SIGSTOP)
        run.process.send_signal(signal.SIGTERM)
        check_end(run, INTERRUPTED)


# -- refused -----------------------------------------------------------------------------


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with started(tmp_path, "nccl", "--port", str(port)) as run:
            check_end(run, f"cannot listen on 127.0.0.1:{port}: Address already in use")


def test_shared_memory_has_no_name_that_could_be_left(tmp_path: Path) -> None:
    with started(tmp_path, "delegated") as run:
        mapped = shared_memory(run.running().pids())
        assert mapped
        assert [name for name in mapped if not name.endswith(" (deleted)")] == []


def test_a_plan_for_another_scenario_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    plan = tmp_path / "plan.json"
    made = CliRunner().invoke(app, ["plan", "--stages", "3", "--output", str(plan)])
    assert made.exit_code == 0, made.output
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    options = ["--stages", "4", "--transport", "nccl"]
    result = CliRunner().invoke(app, ["replay", str(plan), *options], prog_name="pipesim")
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch("error: the plan .*\n", result.stderr)


WITHOUT_TORCH = """\
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from pipesim.cli import main
main()
"""


def test_without_torch(tmp_path: Path) -> None:
    with Background(
        tmp_path, sys.executable, "-c", WITHOUT_TORCH, "replay", *SHORT, "--transport", "nccl"
    ) as run:
        check_end(run, r"a replay needs torch: pip install 'pipesim\[replay\]'")


ALONE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "first"},
        pytest.param({"RANK": None}, marks=pytest.mark.slow),
        pytest.param({"MASTER_ADDR": None}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_worker_needs_a_launcher(tmp_path: Path, env: dict[str, str | None]) -> None:
    command = [sys.executable, "-m", "pipesim.replay.worker", "run.json", "-o", "result.json"]
    with Background(tmp_path, *command, env={**ALONE, **env}) as run:
        check_end(run, "a worker is started by pipesim replay, or by torchrun")


def test_a_damaged_run_is_refused_by_a_worker(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with replaying(tmp_path, *SHORT, "--transport", "nccl", "--prepare", str(file)) as made:
        made.ended()
        assert made.process.returncode == 0, made.said
    file.write_bytes(file.read_bytes()[:-20])
    command = [sys.executable, "-m", "pipesim.replay.worker", str(file), "-o", "result.json"]
    with Background(tmp_path, *command, env=ALONE) as run:
        check_end(run, rf"rank 1, starting: {re.escape(str(file))}:1:\d+: not JSON: .*")


def test_a_worker_that_cannot_say_why_ends_all_the_same(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    command = [sys.executable, "-m", "pipesim.replay.worker", missing, "-o", "result.json"]
    nowhere = str(tmp_path / "nowhere" / "error.json")
    env = ALONE | {"TORCHELASTIC_ERROR_FILE": nowhere}
    reading, writing = os.pipe()
    os.close(reading)
    with Background(tmp_path, *command, env=env, stderr=writing) as run:
        os.close(writing)
        run.ended()
        assert run.process.returncode == 2


# -- alone -------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_do_not_disturb_each_other_and_use_the_loopback_address_only(tmp_path: Path) -> None:
    options = [*SHORT, "--microbatches", "30", "--iterations", "40", "--timeout", NEVER, "--quiet"]
    outside = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    outside |= {"GLOO_SOCKET_IFNAME": "nowhere0", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    with (
        started(tmp_path / "one", "delegated").running() as one,
        replaying(tmp_path / "two", *options, "--transport", "delegated", env=outside) as two,
    ):
        for run in one, two.running():
            pids = run.pids()
            assert len(pids) > 1 + 3 + 4
            assert set(listening(pids)) == {"tcp 0100007F"}
        os.kill(one.workers()[0], signal.SIGKILL)
        check_end(one, f"rank 0, {INSTRUCTION}: was killed by SIGKILL")
        two.ended()
        assert two.said == ""
        assert two.process.returncode == 0
        assert "median" in two.output
        assert two.leftovers == []


UNPICKLE_NOTHING = """\
import os, sys
if "TORCHELASTIC_RUN_ID" in os.environ:
    import pickle
    class Refuses(pickle.Unpickler):
        def __init__(self, *arguments, **options):
            raise AssertionError("unpickles")
    def refuse(*arguments, **options):
        raise AssertionError("unpickles")
    pickle.Unpickler = pickle._Unpickler = Refuses
    pickle.load = pickle.loads = pickle._load = pickle._loads = refuse
    with open(os.environ["UNPICKLE_NOTHING"], "a") as file:
        file.write("in force\\n")
"""


def test_workers_unpickle_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(UNPICKLE_NOTHING)
    proof = tmp_path / "proof"
    env = {"PYTHONPATH": str(tmp_path), "UNPICKLE_NOTHING": str(proof)}
    options = ["--microbatches", "4", "--iterations", "2", "--failover", "--quiet"]
    options += ["--timeout", NEVER]
    with replaying(tmp_path, *SHORT, *options, "--transport", "nccl", env=env) as run:
        run.ended()
        assert run.said == ""
        assert run.process.returncode == 0
        assert proof.read_text() == 3 * "in force\n"


def test_a_port_may_be_used_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # first: so this end of the connection lingers
    with listen("127.0.0.1", port), pytest.raises(ReplayError, match="Address already in use"):
        listen("127.0.0.1", port)
