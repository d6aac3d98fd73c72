"""Stages of stock torch whose operators take a given time, with real gradients.

What a block computes is tiny. Its forward, the part of its backward that leads to its input, and
the part that leads to its weights each owe some time, which the operator that really ran them
sleeps off when it ends: so an operator lasts as long as what torch does in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

WIDTH = 16
NS_PER_MS = 1_000_000


class Span(NamedTuple):
    """When an operator ran, by this host's ``time.monotonic_ns``, without its wait for messages.

    Its kind is ``forward``, or the part of the backward: ``full``, ``input`` or ``weight``.
    """

    kind: str
    start_ns: int
    end_ns: int


class Debt:
    """The time that the running operator still owes."""

    def __init__(self) -> None:
        self.ms = 0.0


class Owing(torch.autograd.Function):
    """The identity, whose backward owes some time."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, debt: Debt, owed_ms: float) -> Tensor:
        """Return the value."""
        ctx.debt, ctx.owed_ms = debt, owed_ms
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Return the gradient, and owe."""
        ctx.debt.ms += ctx.owed_ms
        return gradient, None, None


class Block(torch.nn.Module):
    """Two layers; the backward passes one ``Owing`` on its way to the input, one to a weight."""

    def __init__(self, forward_ms: float, backward_ms: float, weight_ms: float) -> None:
        super().__init__()
        self.debt = Debt()
        self.times_ms = forward_ms, backward_ms, weight_ms
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Compute, and owe."""
        forward_ms, backward_ms, weight_ms = self.times_ms
        self.debt.ms += forward_ms
        x = Owing.apply(torch.tanh(self.first(x)), self.debt, backward_ms)
        weight = Owing.apply(self.second.weight, self.debt, weight_ms)
        return torch.nn.functional.linear(x, weight, self.second.bias)


def held(stage: PipelineStage, came_ns: Callable[[], int] | None = None) -> list[Span]:
    """Make a stage's operators last as long as they owe; return the list of their spans to come.

    An operator begins when the one before it has ended and its message has come: what torch itself
    does until then is a part of it, as in any measured operator.

    Parameters
    ----------
    came_ns : callable, optional
        When the last message came that was waited for. If nobody knows, an operator begins with
        the end of the one before if torch calls it within a millisecond.
    """
    spans: list[Span] = []

    def start_ns() -> int:
        now_ns = time.monotonic_ns()
        if not spans:
            return now_ns
        ended_ns = spans[-1].end_ns
        if came_ns is not None:
            return max(ended_ns, came_ns())
        return ended_ns if now_ns - ended_ns < NS_PER_MS else now_ns

    def hold(own: Callable[..., Any], kind: str | None, *args: Any, **kwargs: Any) -> Any:
        began_ns, stage.submod.debt.ms = start_ns(), 0.0
        result = own(*args, **kwargs)
        due_ns = began_ns + round(stage.submod.debt.ms * NS_PER_MS)
        done_ns = time.monotonic_ns()
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        # A sleep that lasts too long is none of the operator's time: the next one begins when due.
        spans.append(Span(kind or args[0], began_ns, max(due_ns, done_ns)))
        return result

    # What a stage calls once it has what it needs. The first stage calls nothing for its I.
    forward, backward = stage.forward_maybe_with_nosync, stage.backward_maybe_with_nosync
    stage.forward_maybe_with_nosync = partial(hold, forward, "forward")
    stage.backward_maybe_with_nosync = partial(hold, backward, None)
    return spans
