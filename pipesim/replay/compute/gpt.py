"""A small GPT cut into stages: the model that a replay trains.

Every linear layer is given from outside, so that the same stages run with ordinary autograd or
with a split backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipesim.errors import ScenarioError

__all__ = ["GptShape", "Linear", "Stage", "cross_entropy", "generator", "sequences"]

Linear: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From x, shape [..., I], and a weight, shape [O, I], to x · weightᵀ, shape [..., O]."""

_PARAMETERS, _SEQUENCES = 0, 1
"""What a random number is for: the first word of its seed."""


@dataclass(frozen=True)
class GptShape:
    """The size of the model and of one micro-batch.

    Parameters
    ----------
    layers : int
        Transformer blocks of each stage.
    width : int
        Length C of a token's activation, a multiple of ``heads``.
    heads : int
        Attention heads of each block.
    sequence : int
        Tokens T of one sequence.
    vocabulary : int
        Number of tokens V that there are.
    batch : int
        Sequences B of one micro-batch.

    Raises
    ------
    ScenarioError
        A value is below 1, or the heads do not divide the width.
    """

    layers: int = 1
    width: int = 64
    heads: int = 4
    sequence: int = 32
    vocabulary: int = 64
    batch: int = 2

    def __post_init__(self) -> None:
        for field, value in asdict(self).items():
            if value < 1:
                raise ScenarioError(f"a model's {field} must be at least 1, not {value}")
        if self.width % self.heads:
            raise ScenarioError(f"{self.heads} heads do not divide a width of {self.width}")


def generator(*words: int) -> torch.Generator:
    """Return a generator on the CPU, seeded by all of ``words``, each 0 or more."""
    (seed,) = np.random.SeedSequence(words).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(seed))


def sequences(shape: GptShape, seed: int, iteration: int, microbatch: int) -> Tensor:
    """Return the sequences of one micro-batch, on the CPU, shape [B, T + 1].

    All tokens but the last are the inputs, all but the first the targets.
    """
    random = generator(_SEQUENCES, seed, iteration, microbatch)
    size = (shape.batch, shape.sequence + 1)
    return torch.randint(shape.vocabulary, size, generator=random)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [B, T, V] and targets [B, T], in 32 bits or more."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide.flatten(0, 1), targets.flatten())


class _Block(nn.Module):
    """A pre-norm transformer block: causal attention, then an MLP four times as wide."""

    def __init__(self, shape: GptShape, stages: int, random: torch.Generator) -> None:
        super().__init__()
        width = shape.width
        into_residual = 1 / math.sqrt(2 * shape.layers * stages)
        self.heads = shape.heads
        self.attention_gain = _ones(width)
        self.attention_in = _normal(3 * width, width, random)
        self.attention_out = _normal(width, width, random, into_residual)
        self.mlp_gain = _ones(width)
        self.mlp_in = _normal(4 * width, width, random)
        self.mlp_out = _normal(width, 4 * width, random, into_residual)

    def forward(self, x: Tensor, linear: Linear) -> Tensor:
        """Map activations [B, T, C] to activations [B, T, C]."""
        h = linear(_norm(x, self.attention_gain), self.attention_in)
        q, k, v = h.reshape(*h.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(h.transpose(1, 2).flatten(2), self.attention_out)
        h = functional.gelu(linear(_norm(x, self.mlp_gain), self.mlp_in))
        return x + linear(h, self.mlp_out)


class Stage(nn.Module):
    """One stage of the model. The first has the embedding, the last the norm and the head.

    No layer has a bias: nothing is lost, and no gradient is zero by its nature.

    Parameters
    ----------
    shape : GptShape
        Sizes.
    stage, stages : int
        Which stage, of how many.
    seed : int
        The same seed, stage and sizes give the same parameters, whatever holds the stage.
    """

    def __init__(self, shape: GptShape, stage: int, stages: int, seed: int) -> None:
        super().__init__()
        random = generator(_PARAMETERS, seed, stage)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if self.is_first:
            self.tokens = _normal(shape.vocabulary, shape.width, random)
            self.positions = _normal(shape.sequence, shape.width, random)
        self.blocks = nn.ModuleList(_Block(shape, stages, random) for _ in range(shape.layers))
        if self.is_last:
            self.head_gain = _ones(shape.width)
            self.head = _normal(shape.vocabulary, shape.width, random)

    def forward(self, x: Tensor, linear: Linear = functional.linear) -> Tensor:
        """Run the stage.

        Parameters
        ----------
        x : Tensor
            Activations, shape [B, T, C]; for the first stage tokens, shape [B, T].
        linear : callable
            Every linear layer.

        Returns
        -------
        Tensor
            Activations, shape [B, T, C]; of the last stage logits, shape [B, T, V].
        """
        if self.is_first:
            x = functional.embedding(x, self.tokens) + self.positions
        for block in self.blocks:
            x = block(x, linear)
        if self.is_last:
            x = linear(_norm(x, self.head_gain), self.head)
        return x


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return functional.layer_norm(x, gain.shape, gain)


def _ones(width: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(width, dtype=torch.float64))


def _normal(rows: int, columns: int, random: torch.Generator, scale: float = 1.0) -> nn.Parameter:
    """Return a weight whose product with normal numbers is as large as ``scale``."""
    drawn = torch.randn(rows, columns, dtype=torch.float64, generator=random)
    return nn.Parameter(drawn * (scale / math.sqrt(columns)))
