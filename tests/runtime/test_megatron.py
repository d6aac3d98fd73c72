"""Delegates in a pipeline with Megatron-LM's signatures."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import HashStore  # noqa: E402

from pipesim.runtime import delegated_p2p  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.processes import Background  # noqa: E402
from tests.runtime.megatron_stand_in import (  # noqa: E402
    MICROBATCHES,
    RANKS,
    SHAPE,
    Config,
    Group,
    P2PCommunicator,
    Stage,
    Wire,
    at_once,
    module,
)


def layers() -> list[Any]:
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(SHAPE[-1], SHAPE[-1]), torch.nn.Tanh()).double()
        for _ in range(RANKS)
    ]


def data(seed: int) -> tuple[list[Any], list[Any]]:
    random = torch.Generator().manual_seed(seed)
    both = torch.randn(2, MICROBATCHES, *SHAPE, generator=random, dtype=torch.float64)
    return list(both[0]), list(both[1])


def right(seed: int) -> list[list[Any]]:
    """The gradients of the model without a pipeline."""
    model = torch.nn.Sequential(*layers())
    for x, target in zip(*data(seed), strict=True):
        ((model(x) - target) ** 2).sum().backward()
    return [[value.grad for value in layer.parameters()] for layer in model]


@pytest.mark.parametrize("release", ["class", "module"])
@pytest.mark.parametrize(
    ("links", "directions", "delegates"),
    [([0], ["down", "up"], 1), ([1, 2], ["up"], 2), ([0, 1, 2], ["down", "up"], 2)],
)
def test_it_trains_as_before(
    release: str, links: list[int], directions: list[Any], delegates: int
) -> None:
    wire, store = Wire(), HashStore()
    models = layers()
    expected = [right(seed) for seed in range(3)]  # threads would share torch's random numbers

    def rank(number: int) -> Any:
        group, config = Group(number), Config()
        made: Any = P2PCommunicator if release == "class" else module
        through = made(group, config, wire)
        before = dict(vars(through))
        stage = Stage(number, models[number], through.call)
        for seed in range(3):
            with delegated_p2p(
                through, links, tensor_shape=SHAPE, config=config, group=group, store=store,
                directions=directions, delegates=delegates, device="cpu",
            ):  # fmt: skip
                stage.layer.zero_grad()
                stage.train(*data(seed))
            for ours, theirs in zip(stage.layer.parameters(), expected[seed][number], strict=True):
                torch.testing.assert_close(ours.grad, theirs, rtol=1e-12, atol=1e-12)
        assert dict(vars(through)) == before
        return through

    at_once(rank)
    carried = Counter(wire.carried)
    for link in range(RANKS - 1):
        for direction, way in (("down", (link, link + 1)), ("up", (link + 1, link))):
            delegated = link in links and direction in directions
            assert carried[way] == (0 if delegated else 3 * MICROBATCHES), way


@pytest.mark.parametrize("release", ["class", "module"])
@pytest.mark.parametrize("links", [[1, RANKS - 1], list(range(RANKS))])
def test_handles_are_those_that_were_asked_for(release: str, links: list[int]) -> None:
    """With overlap, one waits for each message when it is needed; the last link closes the ring."""
    wire, store = Wire(), HashStore()

    def rank(number: int) -> None:
        group, config = Group(number), Config()
        made: Any = P2PCommunicator if release == "class" else module
        through = made(group, config, wire)
        with delegated_p2p(
            through, links, tensor_shape=SHAPE, config=config, group=group, store=store,
            device="cpu",
        ):  # fmt: skip
            sent = torch.full(SHAPE, float(number), dtype=torch.float64)
            above, below, requests = through.call(
                tensor_send_next=sent, tensor_send_prev=sent, recv_prev=True, recv_next=True,
                wait_on_reqs=False,
            )  # fmt: skip
            if release == "class":
                assert set(requests) == {"send_next", "send_prev", "recv_prev", "recv_next"}
                requests = list(requests.values())
            assert len(requests) == 4
            for request in requests:
                request.wait()
            assert (above == (number - 1) % RANKS).all()
            assert (below == (number + 1) % RANKS).all()
            assert above.requires_grad
            assert above.is_leaf

    at_once(rank)
    kept = [(link, (link + 1) % RANKS) for link in range(RANKS) if link not in links]
    assert set(wire.carried) == {way for ends in kept for way in (ends, ends[::-1])}


@pytest.mark.parametrize(
    ("links", "changed", "options", "says"),
    [
        ([4], {}, {}, "no link 4: 4 ranks have links 0 to 3"),
        ([0], {}, {"directions": ["left"]}, "no direction 'left': there are down and up"),
        ([0], {"variable_seq_lengths": True}, {}, "variable_seq_lengths"),
        ([0], {"mtp_standalone": True}, {}, "mtp_standalone"),
        ([0], {"use_ring_exchange_p2p": True}, {}, "by all ranks or by none"),
        ([0], {"pipeline_dtype": None}, {}, "the config says no pipeline_dtype"),
        ([0], {}, {"group": [Group(0), Group(1)]}, "this rank is in several pipelines"),
    ],
)
def test_what_it_cannot_do_is_said(
    links: list[int], changed: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    through = P2PCommunicator(Group(0), Config(**changed), Wire())
    with (
        pytest.raises(ValueError, match=says),
        delegated_p2p(through, links, tensor_shape=SHAPE, store=HashStore(), **options),
    ):
        raise AssertionError
    assert "_communicate" not in vars(through)


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["stand-in", "own"])
def test_ranks_that_are_processes_train_as_before(whose: str, tmp_path: Path) -> None:
    """Over a process group's own store; with the calls of Megatron's own release, if installed."""
    if whose == "own" and find_spec("megatron") is None:
        pytest.skip("needs megatron-core")
    command = [sys.executable, "-m", "tests.runtime.megatron_ranks", str(tmp_path)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    if whose == "own":
        command.append("own")
    with Background(tmp_path / "run", *command, env=env) as run:
        run.ended()
        assert run.process.returncode == 0, run.said[-4000:]
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert max(rank["error"] for rank in found) < 1e-9
    assert [rank["delegates"] for rank in found] == [[1, 4], [1, 8], [0, 8], [0, 4]]
    assert all(rank["overlapped"] and rank["as_before"] for rank in found)
    kind = found[0]["requests"]
    assert kind in (["recv_prev", "send_next"], 2)  # a dict, or before 0.10 a list
    assert all(rank["requests"] == kind for rank in found)
    assert [rank["left"] for rank in found] == [[]] * RANKS
