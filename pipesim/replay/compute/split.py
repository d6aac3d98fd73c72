"""A linear layer whose backward comes in two halves: B now, W later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Keep", "Stash"]

Keep = Callable[[Tensor], Callable[[], Tensor]]
"""Puts a tensor somewhere and returns what brings it back, once."""


class _Deferred:
    """The weight gradient of one linear layer, for one micro-batch, not yet computed."""

    def __init__(self, weight: Tensor, read_input: Callable[[], Tensor]) -> None:
        self.weight = weight
        self.read_input = read_input
        self.output_gradient: Tensor | None = None

    def accumulate(self) -> None:
        if self.output_gradient is None:
            raise RuntimeError("W needs what B leaves")
        x = self.read_input().flatten(0, -2)
        gradient = self.output_gradient.flatten(0, -2)
        if self.weight.grad is None:
            self.weight.grad = gradient.T @ x
        else:
            self.weight.grad.addmm_(gradient.T, x)


class _SplitLinear(torch.autograd.Function):
    """x · weightᵀ; its backward keeps the output's gradient and computes only the input's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, deferred: _Deferred) -> Tensor:
        ctx.deferred = deferred
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (gradient,) = gradients
        deferred: _Deferred = ctx.deferred
        deferred.output_gradient = gradient
        wanted = ctx.needs_input_grad[0]
        return (gradient @ deferred.weight if wanted else None), None, None


def _stay(x: Tensor) -> Callable[[], Tensor]:
    return lambda: x


class Stash:
    """What the linear layers of one stage hold for one micro-batch, from F to W.

    Parameters
    ----------
    keep : callable
        Where a layer's input stays until W. Default: where it is.

    Examples
    --------
    >>> weight = torch.ones(1, 2, requires_grad=True)
    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> stash = Stash()
    >>> stash.linear(x, weight).backward()
    >>> x.grad, weight.grad
    (tensor([[1., 1.]]), None)
    >>> stash.accumulate()
    >>> weight.grad
    tensor([[3., 4.]])
    """

    def __init__(self, keep: Keep = _stay) -> None:
        self._keep = keep
        self._deferred: list[_Deferred] = []

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x · weightᵀ; its backward leaves the weight's gradient to :meth:`accumulate`.

        Parameters
        ----------
        x : Tensor, shape [..., I]
            With at least two axes.
        weight : Tensor, shape [O, I]
            A leaf: nothing is differentiated through it.
        """
        deferred = _Deferred(weight, self._keep(x.detach()))
        self._deferred.append(deferred)
        return cast(Tensor, _SplitLinear.apply(x, weight, deferred))  # type: ignore[no-untyped-call]

    def accumulate(self) -> None:
        """Add every weight gradient to its weight's ``grad``, last layer first; let all go."""
        while self._deferred:
            self._deferred.pop().accumulate()
