"""Workers that torchrun starts, as on two machines: two of its process groups, side by side."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.replay.run.measured import load_result
from tests.processes import PATIENCE_S
from tests.replay.replays import Replay

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.slow,
]

STAGES, NODES = 4, 2
SCENARIO = ["--stages", str(STAGES), "--microbatches", "6", "--slow", "1=5ms"]
SCENARIO += ["--forward", "2ms", "--backward", "2ms", "--weight", "2ms"]
SCENARIO += ["--timeout", f"{1000 * PATIENCE_S:g}s"]  # whoever ends has not waited for that


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["replay", *arguments], prog_name="pipesim")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody else gets while it is bound, but not listened on."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def node(folder: Path, index: int, port: int) -> Replay:
    """One of two machines."""
    where = f"--nnodes={NODES} --node-rank={index} --nproc-per-node={STAGES // NODES}"
    meet = f"--master-addr=127.0.0.1 --master-port={port} --local-addr=127.0.0.1"
    worker = ["-m", "pipesim.replay.worker", str(folder / "run.json")]
    status = folder / f"node{index}" / "temporary" / "pipesim-status"
    status.mkdir(parents=True)
    return Replay(
        folder / f"node{index}",
        sys.executable,
        *("-m", "torch.distributed.run", *where.split(), *meet.split()),
        *worker,
        *("-o", str(folder / "result.json"), "--status", str(status)),
        env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(("planner", "transport"), [("pipemorph", "delegated"), ("zb-h1", "nccl")])
def test_two_nodes(tmp_path: Path, free_port: int, planner: str, transport: str) -> None:
    how = ["--planner", planner, "--transport", transport, "--iterations", "3"]
    run, result = tmp_path / "run.json", tmp_path / "result.json"
    assert invoke(*SCENARIO, *how, "--prepare", str(run)) == ""
    with ExitStack() as stack:
        nodes = [stack.enter_context(node(tmp_path, i, free_port)) for i in range(NODES)]
        for each in nodes:
            each.ended()
            assert each.process.returncode == 0, each.said
    said = json.loads(invoke("--result", str(result), "--json"))
    assert (said["planner"], said["transport"], said["compute"]) == (planner, transport, "sleep")
    assert len(said["iterations_ms"]) == 3
    assert said["measured_ms"] == sorted(said["iterations_ms"])[1]
    assert said["error"] == pytest.approx(said["measured_ms"] / said["predicted_ms"] - 1)
    # Nothing is quicker than its operators and delays, up to what clocks differ by.
    slack = 2 * max(clock["uncertainty_ms"] for clock in said["clocks"])
    assert min(said["iterations_ms"]) > said["nominal_ms"] - slack - 1
    assert len(said["clocks"]) == STAGES
    assert said["events"] == []
    assert (said["delegates"] > 0) == (transport == "delegated")
    measured = load_result(result)
    assert [len(timeline.spans) for timeline in measured.timelines] == 4 * [len(measured.run.ops)]
    assert "iteration 2" in invoke("--result", str(result))


def test_a_worker_killed_on_one_node_ends_the_other_too(tmp_path: Path, free_port: int) -> None:
    how = ["--planner", "1f1b", "--transport", "delegated", "--iterations", "10000"]
    invoke(*SCENARIO, *how, "--prepare", str(tmp_path / "run.json"))
    with node(tmp_path, 0, free_port) as first, node(tmp_path, 1, free_port) as second:
        nodes = first, second
        first.running([0, 1])
        second.running([2, 3])
        assert [len(each.delegates()) for each in nodes] == [2, 2]
        os.kill(second.workers()[3], signal.SIGKILL)
        for each in nodes:
            each.ended()
            assert each.process.returncode != 0
        assert re.search(r"^error: rank [01], .*: .*(lost|reset|closed)", first.said, re.MULTILINE)
        assert not (tmp_path / "result.json").exists()


def test_a_stopped_worker_is_named_by_all_on_its_host(tmp_path: Path, free_port: int) -> None:
    how = ["--planner", "1f1b", "--transport", "nccl", "--iterations", "10000", "--timeout", "4s"]
    invoke(*SCENARIO, *how, "--prepare", str(tmp_path / "run.json"))
    with node(tmp_path, 0, free_port) as first, node(tmp_path, 1, free_port) as second:
        first.running([0, 1])
        second.running([2, 3])
        os.kill(second.workers()[3], signal.SIGSTOP)
        for each in first, second:
            each.ended()
            assert each.process.returncode != 0
        says = re.compile(r"^error: rank 3 is stopped \(SIGSTOP\), so rank [0-2] .*", re.MULTILINE)
        assert says.search(first.said) or says.search(second.said), first.said + second.said
