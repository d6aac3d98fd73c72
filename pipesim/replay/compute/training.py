"""Training a small GPT, as the work of one device of a pipeline, and its reference."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipesim.replay.compute.gpt import GptShape, Stage, cross_entropy, sequences
from pipesim.replay.compute.offload import Host
from pipesim.replay.compute.split import Stash
from pipesim.replay.compute.work import Payload
from pipesim.schedule import Op

__all__ = ["Errors", "Training", "gradient_errors", "rounding_limit"]

LEARNING_RATE, MOMENTUM = 0.02, 0.9


class _Entry(torch.autograd.Function):
    """The way into a stage: hands an activation on and keeps its gradient.

    A leaf would do the same, but hold the activation for as long as the graph lives.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, needs_gradient: Tensor, kept: list[Tensor]) -> Tensor:
        ctx.kept = kept
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.kept.extend(gradients)
        return None, None, None


class _Flight:
    """One micro-batch in one stage, from F to W."""

    def __init__(self, host: Host | None) -> None:
        self._host = host
        self._stash = Stash() if host is None else Stash(host.keep)
        self._input_gradient: list[Tensor] = []
        self._end: GradientEdge | None = None

    def forward(self, stage: Stage, x: Tensor, targets: Tensor | None) -> Tensor:
        """Return the activation, or the loss if there are ``targets``."""
        if not stage.is_first:
            anchor = torch.empty(0, device=x.device, requires_grad=True)
            entry = _Entry.apply(x, anchor, self._input_gradient)  # type: ignore[no-untyped-call]
            x = cast(Tensor, entry)
        with nullcontext() if self._host is None else self._host.saving():
            result = stage(x, self._stash.linear)
            if targets is not None:
                result = cross_entropy(result, targets)
        self._end = get_gradient_edge(result)
        return cast(Tensor, result.detach())

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Return the input's gradient; the weights of linear layers get none yet."""
        if self._end is None:
            raise RuntimeError("B needs an F, and runs only once")
        end, self._end = self._end, None
        torch.autograd.backward(end, gradient)
        return self._input_gradient.pop() if self._input_gradient else None

    def accumulate(self) -> None:
        self._stash.accumulate()


class Training:
    """Forward, backward and optimizer of the stages that one device holds.

    The loss is the mean over micro-batches, the optimizer SGD with momentum. F keeps
    activations, B lets autograd's go and W the inputs of linear layers. What F receives is
    kept until B, and what B receives until W, without a copy.

    Parameters
    ----------
    stages : sequence of int
        The stages held here.
    total_stages, microbatches : int
        Stages S of the model, micro-batches N of an iteration.
    shape : GptShape
        Sizes.
    device : torch.device
        Where the stages are.
    dtype : torch.dtype
        Type of parameters and activations.
    seed : int
        Of parameters and data, 0 or more; the same on every device of a pipeline.
    offloaded : container of (int, int)
        The (stage, micro-batch) whose activations live in host memory.
    record_gradients : bool
        Whether to keep every iteration's gradients.

    Attributes
    ----------
    host : Host
        The host memory in use.
    gradients : list of dict
        For every finished iteration, the gradient of each parameter by its name, if recorded.
    """

    def __init__(
        self,
        stages: Sequence[int],
        total_stages: int,
        microbatches: int,
        shape: GptShape,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        offloaded: Container[tuple[int, int]] = (),
        *,
        record_gradients: bool = False,
    ) -> None:
        self.total_stages, self.microbatches = total_stages, microbatches
        self.shape, self.device, self.dtype, self.seed = shape, device, dtype, seed
        self.offloaded, self.record_gradients = offloaded, record_gradients
        self.stages = {
            stage: Stage(shape, stage, total_stages, seed).to(device, dtype) for stage in stages
        }
        self.gradients: list[dict[str, Tensor]] = []
        self.host = Host(device, self.parameters().values())
        self._optimizer = _optimizer(self.parameters().values())
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._data: list[Tensor] = []
        self._losses: list[Tensor] = []
        loss_type = torch.promote_types(dtype, torch.float32)
        self._loss_gradient = torch.tensor(1 / microbatches, dtype=loss_type, device=device)

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters held here, named by stage, such as ``1.blocks.0.mlp_in``."""
        return {
            f"{stage}.{name}": parameter
            for stage, module in self.stages.items()
            for name, parameter in module.named_parameters()
        }

    @property
    def in_flight(self) -> frozenset[tuple[int, int]]:
        """The (stage, micro-batch) that hold anything now."""
        return frozenset(self._flights)

    @property
    def losses(self) -> list[float]:
        """The loss of every iteration, the current one's so far; zeros without the last stage."""
        return [float(loss) for loss in self._losses]

    def payload(self, link: int) -> Payload:
        """Return what crosses ``link``: an activation or its gradient, shape [B, T, C]."""
        return Payload((self.shape.batch, self.shape.sequence, self.shape.width), self.dtype)

    def begin(self, iteration: int) -> None:
        """Forget gradients and get this iteration's data."""
        self._optimizer.zero_grad()
        self._losses.append(torch.zeros_like(self._loss_gradient))
        if any(stage.is_first or stage.is_last for stage in self.stages.values()):
            self._data = [
                sequences(self.shape, self.seed, iteration, m).to(self.device)
                for m in range(self.microbatches)
            ]

    def run(self, op: Op, received: Tensor | None, start_ns: int = 0) -> Tensor | None:
        """Run an operator, see :class:`pipesim.replay.compute.work.Work`."""
        at = (op.stage, op.microbatch)
        if op.kind == "F":
            return self._forward(op, received)
        if op.kind == "W":
            self._flights.pop(at).accumulate()
            return None
        flight = self._flights[at] if op.kind == "B" else self._flights.pop(at)
        result = flight.backward(self._loss_gradient if received is None else received)
        if op.kind == "BW":
            flight.accumulate()
        return result

    def _forward(self, op: Op, received: Tensor | None) -> Tensor | None:
        at = (op.stage, op.microbatch)
        stage = self.stages[op.stage]
        x = self._data[op.microbatch][:, :-1] if received is None else received
        targets = self._data[op.microbatch][:, 1:] if stage.is_last else None
        flight = self._flights[at] = _Flight(self.host if at in self.offloaded else None)
        result = flight.forward(stage, x, targets)
        if not stage.is_last:
            return result
        self._losses[-1] += result * self._loss_gradient
        return None

    def finish(self) -> None:
        """Take the optimizer's step."""
        if self.record_gradients:
            self.gradients.append(_gradients(self.parameters()))
        self._optimizer.step()


class Errors(NamedTuple):
    """How far one iteration is from the reference, relatively.

    Parameters
    ----------
    gradients : mapping of str to float
        ‖g − r‖ / ‖r‖ of each parameter, by its name; not finite where the gradient is not.
    loss : float, optional
        The same of the loss; None without the last stage.
    """

    gradients: Mapping[str, float]
    loss: float | None

    @property
    def gradient(self) -> float:
        """The largest error of a gradient; NaN if there is one."""
        return float(np.max(list(self.gradients.values())))

    def wrong(self, limit: float) -> dict[str, float]:
        """Return the errors of gradients that are not within ``limit``, as NaN never is."""
        return {name: error for name, error in self.gradients.items() if not error <= limit}


def rounding_limit(dtype: torch.dtype) -> float:
    """Return the relative error up to which rounding explains that two gradients differ.

    It is √ε of the type, half of its digits: 1.5e-8 in double precision, 3.5e-4 in single. A
    pipeline only changes the order of sums, whose terms are as many as tokens of an iteration, some
    hundreds, and rounding adds up over a chain of S blocks: the tests see less than 30 ε, so there
    is a factor of 10⁶ below the limit. What a schedule or a transport can do wrong is above it by
    as much: to lose, to repeat or to mix up one of N micro-batches changes a gradient by about 1/N.
    """
    return math.sqrt(torch.finfo(dtype).eps)


def gradient_errors(training: Training) -> list[Errors]:
    """Compare all iterations with a training of the whole model without a pipeline.

    The reference has its own parameters and optimizer, ordinary linear layers and an ordinary
    backward; no half of it is deferred.

    Parameters
    ----------
    training : Training
        Made with ``record_gradients``; its iterations were 0, 1, 2, …

    Returns
    -------
    list of Errors
        One for each finished iteration; a gradient that is not finite makes an error so.
    """
    t = training
    model = torch.nn.Sequential(
        *(Stage(t.shape, stage, t.total_stages, t.seed) for stage in range(t.total_stages))
    ).to(t.device, t.dtype)
    optimizer = _optimizer(model.parameters())
    errors = []
    for iteration, gradients in enumerate(t.gradients):
        optimizer.zero_grad()
        loss = 0.0
        for m in range(t.microbatches):
            data = sequences(t.shape, t.seed, iteration, m).to(t.device)
            part = cross_entropy(model(data[:, :-1]), data[:, 1:]) / t.microbatches
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        wanted = _gradients(dict(model.named_parameters()))
        each = {name: float(_relative(g, wanted[name])) for name, g in gradients.items()}
        has_loss = t.total_stages - 1 in t.stages
        loss_error = abs(t.losses[iteration] - loss) / abs(loss) if has_loss else None
        errors.append(Errors(each, loss_error))
        optimizer.step()
    return errors


def _optimizer(parameters: Iterable[Tensor]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


def _gradients(parameters: dict[str, Any]) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in parameters.items()}


def _relative(got: Tensor, wanted: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm
    error: Tensor = norm((got - wanted).double()) / norm(wanted.double())
    return error
