"""Activations in host memory, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipesim.replay.compute.gpt import GptShape
from pipesim.replay.compute.offload import Host
from pipesim.replay.compute.split import Stash
from pipesim.replay.compute.training import Training
from pipesim.schedule import Op

CPU = torch.device("cpu")


def counts(host: Host) -> tuple[int, int, int, int]:
    return (
        host.held_bytes,
        host.most_held_bytes,
        host.copied_out_bytes,
        host.copied_in_bytes,
    )


def test_a_tanh_and_a_split_linear_layer() -> None:
    """x and tanh's result, 6 and 4 numbers of 8 bytes; the weight stays."""
    weight = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    host = Host(CPU, [weight])
    stash = Stash(host.keep)
    with host.saving():
        result = stash.linear(x, weight).tanh()
    assert counts(host) == (80, 80, 80, 0)
    result.sum().backward()
    assert counts(host) == (48, 80, 80, 32)
    stash.accumulate()
    assert counts(host) == (0, 80, 80, 80)


def test_a_stage_by_hand() -> None:
    """What the block of a middle stage saves, in numbers, with C channels and H heads.

    Two norms: their input, mean and deviation. Four linear layers: inputs of C, C, C and 4C.
    Attention: q, k, v, its result, and H sums of exponentials. The MLP's GELU: 4C.
    """
    b, t, c, h = 2, 5, 8, 2
    shape = GptShape(1, width=c, heads=h, sequence=t, vocabulary=3, batch=b)
    at_w = b * t * (c + c + c + 4 * c)
    at_b = b * t * (2 * (c + 2) + 4 * c + h + 4 * c)
    training = Training([1], 3, 2, shape, CPU, torch.float64, 0, offloaded={(1, 0), (1, 1)})
    training.begin(0)
    x = torch.randn(b, t, c, dtype=torch.float64)
    training.run(Op("F", 1, 0), x)
    assert counts(training.host) == (8 * (at_w + at_b), 8 * (at_w + at_b), 8 * (at_w + at_b), 0)
    training.run(Op("B", 1, 0), x)
    assert training.host.held_bytes == 8 * at_w
    training.run(Op("F", 1, 1), x)
    training.run(Op("W", 1, 0), None)
    training.run(Op("BW", 1, 1), x)
    total = 16 * (at_w + at_b)
    assert counts(training.host) == (0, 8 * (2 * at_w + at_b), total, total)


def test_what_is_kept_is_a_copy_and_comes_back_once() -> None:
    host = Host(CPU)
    x = torch.arange(6.0).reshape(2, 3).T
    back = host.keep(x)
    expected = x.clone()
    x.zero_()
    got = back()
    assert torch.equal(got, expected)
    assert got.stride() == x.stride()
    with pytest.raises(RuntimeError, match="copied back before"):
        back()


@pytest.mark.parametrize("of", [lambda p: p, lambda p: p.T, lambda p: p[1:], lambda p: p.detach()])
def test_parameters_and_their_views_stay(of: type[Tensor]) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    host = Host(CPU, [parameter])
    view = of(parameter)
    assert host.keep(view)() is view
    assert counts(host) == (0, 0, 0, 0)


def test_whole_numbers_stay() -> None:
    host, tokens = Host(CPU), torch.arange(3)
    assert host.keep(tokens)() is tokens
    assert host.most_held_bytes == 0
