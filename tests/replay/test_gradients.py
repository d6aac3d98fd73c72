"""Whatever the planner and the transport: processes train the model as one process would."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pipesim.program import Compute, Group
from pipesim.replay.prepare import prepare
from pipesim.replay.report import Replayed
from pipesim.replay.run.measured import load_result
from pipesim.replay.run.run import LinkFault, Run
from pipesim.replay.run.run_json import save_run
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from pipesim.transport import Delegated, Nccl, Transport
from planners import names, plan
from tests.processes import PATIENCE_S, Background

STEPS = 3
LOST_MS = 5000.0
TRANSPORTS = ("nccl", "exchange", "delegated")
SLOW = Scenario(microbatches=8, forward_ms=1, backward_ms=1, weight_ms=1).with_delay(2, links=[0])


def scenario(planner: str) -> Scenario:
    return SLOW.interleaved(2) if planner.startswith("interleaved") else SLOW


def model(what: Scenario, planner: str, over: str | Transport, **options: object) -> Run:
    queued = {"over": over} if planner == "one-queue" else {}
    run = prepare(what, plan(what, planner, **queued), over, compute="model", iterations=STEPS,
                  warmup=0, timeout_s=PATIENCE_S, **options)  # type: ignore[arg-type]  # fmt: skip
    # On a busy machine a message may be late; only one that never comes shall count as lost.
    return replace(run, failover_ms=run.failover_ms and LOST_MS)


def v_shaped() -> Scenario:
    return Scenario(
        stages=8, microbatches=6, placement=Scenario.place("v", 4, 2), forward_ms=1,
        backward_ms=1, weight_ms=1,
    ).with_delay(2, links=[1])  # fmt: skip


def scarce() -> Scenario:
    return Scenario(
        microbatches=8, forward_ms=1, backward_ms=1, weight_ms=1, activation_limit=3
    ).with_delay(4, links=[0])


RUNS: Mapping[str, Run] = {
    f"{planner} {over}": model(scenario(planner), planner, over)
    for planner in names()
    for over in TRANSPORTS
    if planner != "one-queue" or over != "delegated"
} | {
    f"v {over}": model(v_shaped(), "zerobubble", over) for over in TRANSPORTS
} | {
    "one stream a peer": model(SLOW, "zerobubble", Nccl(p2p_streams="peer")),
    "one kernel a message": model(SLOW, "zerobubble", Nccl(fused=False)),
    "delegates on slow links": model(SLOW, "pipemorph", Delegated(only_slow=True)),
    "one delegate": model(SLOW, "zerobubble", Delegated(delegates=1)),
    "offloaded": model(scarce(), "pipemorph", "delegated"),
    "fails down": model(SLOW, "zerobubble", "nccl", fault=LinkFault(1, Op("F", 1, 3))),
    "fails up": model(SLOW, "zerobubble", "nccl", fault=LinkFault(1, Op("B", 1, 2))),
    "stops": model(SLOW, "1f1b", "exchange", fault=LinkFault(1, Op("F", 0, 5), "stop")),
}  # fmt: skip


QUICK = (
    "1f1b exchange",
    "interleaved-1f1b delegated",
    "zerobubble nccl",
    "pipemorph delegated",
    "v nccl",
    "offloaded",
    "fails down",
)
"""One of each kind. All others are slow: each run is four processes and more."""

OTHERS = [name for name in RUNS if name not in QUICK]
TOGETHER = [QUICK, *(OTHERS[at : at + 8] for at in range(0, len(OTHERS), 8))]
"""Runs of one process after the other, since importing torch takes longer than a run."""


def of(*names: str) -> list[object]:
    """Parameters for a test of some runs."""
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


class Replays:
    """What was measured, by the name of the run; made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Replayed] = {}

    def __getitem__(self, name: str) -> Replayed:
        if name not in self._made:
            self._make(next(group for group in TOGETHER if name in group))
        return self._made[name]

    def _make(self, names: Sequence[str]) -> None:
        folders = {name: self._folder / name for name in names}
        for name, folder in folders.items():
            folder.mkdir()
            save_run(RUNS[name], folder / "run.json")
        command = [sys.executable, "-m", "tests.replay.replay_ranks", *map(str, folders.values())]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with Background(self._folder / f"of {names[0]}", *command, env=one_thread) as ranks:
            ranks.ended()
            assert ranks.process.returncode == 0, ranks.said
        self._made |= {
            name: Replayed(load_result(folder / "result.json")) for name, folder in folders.items()
        }


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replays:
    return Replays(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", of(*RUNS))
def test_gradients_are_those_of_the_unpipelined_model(replayed: Replays, name: str) -> None:
    for report in replayed[name].measured.reports:
        errors = report["gradient_errors"]
        assert isinstance(errors, list)
        assert len(errors) == STEPS
        assert max(errors) <= 1e-9
    losses = replayed[name].measured.reports[RUNS[name].schedule.placement[-1]]["loss_errors"]
    assert isinstance(losses, list)
    assert max(losses) <= 1e-9


def slack_ms(replay: Replayed) -> float:
    """By how much times of two processes may contradict each other."""
    return 0.1 + 2 * max(clock.uncertainty_ms for clock in replay.measured.clocks)


@pytest.mark.parametrize("name", of(*RUNS))
def test_a_run_is_the_plan(replayed: Replays, name: str) -> None:
    replay = replayed[name]
    for timeline in replay.measured.timelines:
        for device, order in enumerate(RUNS[name].schedule.orders):
            assert [span.op for span in timeline.compute[device]] == list(order)
        for op, span in timeline.spans.items():
            for need in RUNS[name].schedule.needs(op):
                assert timeline.spans[need].end_ms <= span.start_ms + slack_ms(replay)


@pytest.mark.parametrize("name", of("zerobubble nccl", "pipemorph nccl", "1f1b exchange"))
def test_kernels_start_in_program_order_and_share_their_stream(
    replayed: Replays, name: str
) -> None:
    """Rules 1 and 2 of the launch queue."""
    program = RUNS[name].program
    for timeline in replayed[name].measured.timelines:
        for device, instructions in enumerate(program.instructions):
            kernels = {
                span.message: span for span in timeline.comm
                if span.path == "kernel" and span.device == device
            }  # fmt: skip
            starts: list[float] = []
            groups: list[tuple[float, float]] = []
            for instruction in instructions:
                if isinstance(instruction, Compute):
                    starts.append(timeline.spans[instruction.op].start_ms)
                elif isinstance(instruction, Group):
                    own = kernels[(*instruction.sends, *instruction.receives)[0]]
                    starts.append(own.start_ms)
                    groups.append((own.start_ms, own.end_ms))
            assert starts == sorted(starts)
            assert all(end <= start for (_, end), (start, _) in pairwise(groups))


@pytest.mark.parametrize(
    "name", of("pipemorph delegated", "interleaved-1f1b delegated", "zerobubble nccl", "v nccl")
)
def test_every_message_arrives_once_and_in_time(replayed: Replays, name: str) -> None:
    last = "copy-in" if name.endswith("delegated") else "kernel"
    slack = slack_ms(replayed[name])
    for timeline in replayed[name].measured.timelines:
        placement = timeline.scenario.placement
        arrivals = [
            span for span in timeline.comm
            if span.path == last and span.device == placement[span.message.consumer.stage]
        ]  # fmt: skip
        assert sorted(span.message for span in arrivals) == list(RUNS[name].messages)
        for span in arrivals:
            assert span.end_ms <= timeline.spans[span.message.consumer].start_ms + slack
            assert span.end_ms >= timeline.spans[span.message.producer].end_ms - slack


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("fails down", 1),
        pytest.param("fails up", 0, marks=pytest.mark.slow),
        pytest.param("stops", 0, marks=pytest.mark.slow),
    ],
)
def test_a_failed_link_goes_over_to_delegates(replayed: Replays, name: str, link: int) -> None:
    events, fault = replayed[name].events, RUNS[name].fault
    assert fault is not None
    assert events
    assert {event["link"] for event in events} == {link}
    assert events[0]["iteration"] == fault.iteration
    assert str(events[0]["message"]).startswith(str(fault.producer))
    after = replayed[name].measured.timelines[fault.iteration + 1]
    assert {span.message.link for span in after.comm if span.path == "delegate"} == {link}


def test_a_link_that_works_has_no_events(replayed: Replays) -> None:
    assert not replayed["zerobubble nccl"].events


def test_activations_over_the_limit_live_on_the_host(replayed: Replays) -> None:
    held = replayed["offloaded"].host_bytes
    assert held is not None
    peak = replayed["offloaded"].predicted.peak_host_activations
    assert [size > 0 for size in held] == [count > 0 for count in peak]
    assert any(held)
    report = replayed["offloaded"].measured.reports[0]
    assert report["copied_out_bytes"] == report["copied_in_bytes"]
    assert not any(replayed["pipemorph delegated"].host_bytes or ())
