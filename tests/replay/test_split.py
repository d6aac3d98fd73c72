"""The split linear layer against ordinary autograd."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from pipesim.replay.compute.split import Stash

sizes = st.integers(1, 5)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@given(st.lists(sizes, min_size=1, max_size=3), sizes, sizes, st.integers(1, 3), st.booleans())
def test_both_halves_are_the_gradients_of_autograd(
    batch: list[int], inputs: int, outputs: int, microbatches: int, transposed: bool
) -> None:
    weight = normal(outputs, inputs)
    ordinary = weight.detach().clone().requires_grad_()
    for _ in range(microbatches):
        x = normal(*batch, inputs)
        also_x = x.detach().clone().requires_grad_()
        gradient = torch.randn(*batch, outputs, dtype=torch.float64)
        if transposed:
            gradient = gradient.mT.contiguous().mT
        stash = Stash()
        result, expected = stash.linear(x, weight), functional.linear(also_x, ordinary)
        torch.testing.assert_close(result, expected)
        before = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        result.backward(gradient)
        expected.backward(gradient)
        torch.testing.assert_close(x.grad, also_x.grad, rtol=1e-12, atol=1e-12)
        assert torch.equal(before if weight.grad is None else weight.grad, before)
        stash.accumulate()
        torch.testing.assert_close(weight.grad, ordinary.grad, rtol=1e-12, atol=1e-12)


def test_the_input_gradient_is_the_limit_of_differences() -> None:
    weight = normal(3, 4)
    assert torch.autograd.gradcheck(lambda x: Stash().linear(x, weight), normal(2, 5, 4))


def test_one_weight_may_be_used_twice() -> None:
    weight = normal(3, 3)
    x = torch.randn(2, 3, dtype=torch.float64)
    ordinary = weight.detach().clone().requires_grad_()
    stash = Stash()
    stash.linear(stash.linear(x, weight).tanh(), weight).sum().backward()
    stash.accumulate()
    functional.linear(functional.linear(x, ordinary).tanh(), ordinary).sum().backward()
    torch.testing.assert_close(weight.grad, ordinary.grad)


def test_w_needs_b() -> None:
    stash = Stash()
    stash.linear(normal(1, 2), normal(3, 2))
    with pytest.raises(RuntimeError, match="W needs what B leaves"):
        stash.accumulate()


def test_the_input_lives_until_w() -> None:
    weight, leaf = normal(3, 2), normal(4, 2)
    stash = Stash()
    x = leaf.exp()
    buffers = weakref.WeakSet([x.untyped_storage()])
    result = stash.linear(x, weight)
    del x
    result.sum().backward()
    del result
    assert buffers
    stash.accumulate()
    assert not buffers
