"""A pipeline in one process against the model without one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from pipesim.replay.compute.gpt import GptShape, Stage, cross_entropy, sequences
from pipesim.replay.compute.training import (
    LEARNING_RATE,
    MOMENTUM,
    Training,
    gradient_errors,
    rounding_limit,
)
from pipesim.scenario import Placement, Scenario
from pipesim.schedule import Op, Schedule
from planners import plan

CPU = torch.device("cpu")
SHAPE = GptShape(width=8, heads=2, sequence=6, vocabulary=11, batch=2)
DEEP = GptShape(layers=2, width=8, heads=2, sequence=6, vocabulary=11, batch=2)
CASES: list[tuple[str, Placement, int, int]] = [
    ("gpipe", "plain", 3, 1),
    ("1f1b", "plain", 4, 1),
    ("interleaved-1f1b", "interleaved", 2, 2),
    ("zb-h1", "plain", 3, 1),
    ("zb-h2", "plain", 3, 1),
    ("zerobubble", "plain", 4, 1),
    ("zerobubble", "interleaved", 2, 2),
    ("zerobubble", "v", 2, 2),
    ("zerobubble", "v", 1, 3),
    ("pipemorph", "plain", 3, 1),
    ("gpipe", "plain", 1, 1),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def planned(name: str, placement: Placement, devices: int, chunks: int) -> Schedule:
    places = Scenario.place(placement, devices, chunks)
    scenario = Scenario(stages=len(places), microbatches=4, placement=places)
    return plan(scenario, name)


def trainings(
    schedule: Schedule,
    offloaded: Container[tuple[int, int]] = (),
    shape: GptShape = SHAPE,
    dtype: torch.dtype = torch.float64,
) -> list[Training]:
    held = [
        [s for s, device in enumerate(schedule.placement) if device == d]
        for d in range(schedule.devices)
    ]
    n = schedule.microbatches
    return [
        Training(s, schedule.stages, n, shape, CPU, dtype, 3, offloaded, record_gradients=True)
        for s in held
    ]


def train(
    schedule: Schedule,
    devices: list[Training],
    iterations: int = 3,
    after: Callable[[Op], None] = lambda op: None,
) -> None:
    """Run every operator in one process and hand its result to its neighbour."""
    for iteration in range(iterations):
        sent: dict[tuple[str, int, int], Tensor] = {}
        for device in devices:
            device.begin(iteration)
        for op in schedule.topological_order:
            way = "down" if op.kind == "F" else "up"
            received = None if op.kind == "W" else sent.pop((way, op.stage, op.microbatch), None)
            result = devices[schedule.placement[op.stage]].run(op, received)
            to = op.stage + (1 if op.kind == "F" else -1)
            assert (result is not None) == (op.kind != "W" and 0 <= to < schedule.stages)
            if result is not None:
                link = min(to, op.stage)
                payload = devices[0].payload(link)
                assert (tuple(result.shape), result.dtype) == (payload.shape, payload.dtype)
                assert not result.requires_grad
                sent[way, to, op.microbatch] = result
            del received, result
            after(op)
        assert not sent
        for device in devices:
            device.finish()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", [SHAPE, DEEP], ids=["one layer", "two layers"])
def test_any_schedule_trains_like_the_whole_model(
    case: tuple[str, Placement, int, int], shape: GptShape
) -> None:
    schedule = planned(*case)
    devices = trainings(schedule, shape=shape)
    train(schedule, devices)
    for device in devices:
        errors = gradient_errors(device)
        assert len(errors) == 3
        assert max(error.gradient for error in errors) < 1e-9
        has_loss = schedule.stages - 1 in device.stages
        for error in errors:
            assert error.loss < 1e-9 if has_loss else error.loss is None


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """No autograd: the loss a little way along a direction, less the loss the other way."""
    schedule = planned("zerobubble", "v", 2, 2)
    devices = trainings(schedule)
    train(schedule, devices, iterations=1)
    gradients = {k: g for device in devices for k, g in device.gradients[0].items()}

    def loss(step: float) -> float:
        total = 0.0
        model = torch.nn.Sequential(*(Stage(SHAPE, s, 4, seed=3) for s in range(4)))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter += step * directions[name]
            for m in range(4):
                data = sequences(SHAPE, 3, 0, m)
                total += float(cross_entropy(model(data[:, :-1]), data[:, 1:])) / 4
        return total

    torch.manual_seed(0)
    directions = {name: torch.randn_like(gradient) for name, gradient in gradients.items()}
    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    expected = sum(float((gradients[name] * directions[name]).sum()) for name in gradients)
    assert slope == pytest.approx(expected, rel=1e-6)
    last = devices[schedule.placement[-1]]
    assert last.losses == pytest.approx([loss(0)], rel=1e-12)


def test_the_optimizer_is_sgd_with_momentum() -> None:
    schedule = planned("zb-h1", "plain", 3, 1)
    for device in (devices := trainings(schedule)):
        device.start = {k: p.detach().clone() for k, p in device.parameters().items()}
    train(schedule, devices)
    for device in devices:
        for name, parameter in device.parameters().items():
            expected, velocity = device.start[name], torch.zeros_like(parameter)
            for gradients in device.gradients:
                velocity = MOMENTUM * velocity + gradients[name]
                expected = expected - LEARNING_RATE * velocity
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-14)


def test_the_loss_falls() -> None:
    training = Training([0], 1, 1, SHAPE, CPU, torch.float64, 3)
    for _ in range(20):
        training.begin(0)
        training.run(Op("F", 0, 0), None)
        training.run(Op("BW", 0, 0), None)
        training.finish()
    assert len(training.losses) == 20
    assert training.losses[-1] < training.losses[0] - 0.3
    assert not training.gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_coarser_numbers_are_as_near_as_they_can_be(dtype: torch.dtype) -> None:
    schedule = planned("zb-h2", "plain", 3, 1)
    devices = trainings(schedule, dtype=dtype)
    train(schedule, devices)
    for device in devices:
        assert max(e.gradient for e in gradient_errors(device)) < 30 * torch.finfo(dtype).eps


# -- what the comparison sees ------------------------------------------------------------


def test_a_wrong_gradient_is_seen_as_large_as_it_is() -> None:
    training = Training([0], 1, 1, SHAPE, CPU, torch.float64, 3, record_gradients=True)
    one_microbatch(training)
    assert gradient_errors(training)[0].gradient < 1e-9
    right = training.gradients[0]["0.head"]
    training.gradients[0]["0.head"] = right * 1.001
    assert gradient_errors(training)[0].gradient == pytest.approx(1e-3)
    training.gradients[0]["0.head"] = right * torch.nan
    (error,) = gradient_errors(training)
    assert not error.gradient < 1
    assert list(error.wrong(1e300)) == ["0.head"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rounding_is_far_below_its_limit_and_mistakes_are_above(dtype: torch.dtype) -> None:
    limit = rounding_limit(dtype)
    assert 30 * torch.finfo(dtype).eps < limit / 50  # what the test of coarser numbers sees
    training = Training([0], 1, 1, SHAPE, CPU, dtype, 3, record_gradients=True)
    one_microbatch(training)
    (error,) = gradient_errors(training)
    assert error.wrong(limit) == {}
    training.gradients[0]["0.head"] *= 1 + 2 * limit
    (error,) = gradient_errors(training)
    assert list(error.wrong(limit)) == ["0.head"]


def test_a_wrong_parameter_is_seen() -> None:
    training = Training([0], 1, 1, SHAPE, CPU, torch.float64, 3, record_gradients=True)
    with torch.no_grad():
        training.parameters()["0.blocks.0.mlp_in"][0, 0] += 0.01
    one_microbatch(training)
    (error,) = gradient_errors(training)
    assert error.gradient > 1e-5
    assert error.loss is not None
    assert error.loss > 1e-8


def test_a_lost_weight_gradient_is_seen() -> None:
    schedule = planned("zb-h1", "plain", 3, 1)
    devices = trainings(schedule)

    def lose(op: Op) -> None:
        if op == Op("F", 1, 2):
            devices[1]._flights[1, 2]._stash._deferred.pop()

    train(schedule, devices, iterations=1, after=lose)
    assert [gradient_errors(device)[0].gradient > 0.01 for device in devices] == [
        False,
        True,
        False,
    ]


def one_microbatch(training: Training) -> None:
    training.begin(0)
    training.run(Op("F", 0, 0), None)
    training.run(Op("BW", 0, 0), None)
    training.finish()


# -- memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_offloading_changes_no_gradient(case: tuple[str, Placement, int, int]) -> None:
    schedule = planned(*case)
    offloaded = {(s, m) for s in range(schedule.stages) for m in range(4) if (s + m) % 3}
    near, far = trainings(schedule), trainings(schedule, offloaded)
    train(schedule, near)
    train(schedule, far)
    for one, other in zip(near, far, strict=True):
        for a, b in zip(one.gradients, other.gradients, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)
        assert one.losses == other.losses
        assert one.host.most_held_bytes == 0
        host = other.host
        assert 0 < host.most_held_bytes < host.copied_out_bytes == host.copied_in_bytes
        assert host.held_bytes == 0


class Saved:
    """What autograd saves, in the hands of the test."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_activations_are_let_go() -> None:
    """Autograd saves until B, linear layers keep their inputs until W, and then nothing is left."""
    schedule = planned("zerobubble", "v", 2, 2)
    devices = trainings(schedule)
    saved: dict[tuple[int, int], weakref.WeakSet[Saved]] = {}
    new: list[weakref.ref[Saved]] = []
    done: set[Op] = set()

    def pack(tensor: Tensor) -> Saved:
        result = Saved(tensor)
        new.append(weakref.ref(result))
        return result

    def check(op: Op) -> None:
        at = (op.stage, op.microbatch)
        done.add(op)
        if op.kind == "F":
            saved[at] = weakref.WeakSet(box for ref in new if (box := ref()) is not None)
            assert len(saved[at]) > 8
        new.clear()
        for key, boxes in saved.items():
            assert bool(boxes) == (Op("B", *key) not in done)
        in_flight = frozenset().union(*(device.in_flight for device in devices))
        assert in_flight == {key for key in saved if Op("W", *key) not in done}
        if len(done) == len(schedule.topological_order):
            saved.clear()
            done.clear()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        train(schedule, devices, iterations=2, after=check)
    assert not any(device.in_flight for device in devices)


@pytest.mark.parametrize("offloaded", [(), {(1, 0)}], ids=["on the device", "on the host"])
def test_a_received_activation_lives_until_b_or_leaves_at_once(
    offloaded: Container[tuple[int, int]],
) -> None:
    training = Training([1], 3, 1, SHAPE, CPU, torch.float64, 3, offloaded)
    training.begin(0)
    x = torch.randn(training.payload(0).shape, dtype=torch.float64)
    gradient = torch.randn_like(x)
    alive = weakref.WeakSet([x.untyped_storage()])
    sent = training.run(Op("F", 1, 0), x)
    alive_sent = weakref.WeakSet([sent.untyped_storage()])
    del x, sent
    assert not alive_sent
    assert len(alive) == (not offloaded)
    training.run(Op("B", 1, 0), gradient)
    assert not alive
    alive_gradient = weakref.WeakSet([gradient.untyped_storage()])
    del gradient
    assert alive_gradient
    training.run(Op("W", 1, 0), None)
    assert not alive_gradient


def test_b_needs_an_f_and_runs_once() -> None:
    training = Training([0], 2, 1, SHAPE, CPU, torch.float64, 3)
    training.begin(0)
    x = training.run(Op("F", 0, 0), None)
    training.run(Op("B", 0, 0), x)
    with pytest.raises(RuntimeError, match="B needs an F, and runs only once"):
        training.run(Op("B", 0, 0), x)
