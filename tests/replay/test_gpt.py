"""The GPT's stages against formulas written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pipesim.errors import ScenarioError
from pipesim.replay.compute.gpt import GptShape, Stage, cross_entropy, sequences

SHAPE = GptShape(width=6, heads=2, sequence=5, vocabulary=7, batch=3)


def whole(stages: int, seed: int = 1) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(Stage(SHAPE, stage, stages, seed) for stage in range(stages)))


def norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def test_a_block_is_causal_attention_and_an_mlp() -> None:
    stage = Stage(SHAPE, 1, 3, seed=4)
    w = {name.removeprefix("blocks.0."): p for name, p in stage.named_parameters()}
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    q, k, v = (norm(x) @ w["attention_in"].T).split(6, dim=-1)
    heads = []
    for h in (slice(0, 3), slice(3, 6)):
        scores = q[..., h] @ k[..., h].mT / math.sqrt(3)
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ v[..., h])
    y = x + torch.cat(heads, -1) @ w["attention_out"].T
    h = norm(y) @ w["mlp_in"].T
    h = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    torch.testing.assert_close(stage(x), y + h @ w["mlp_out"].T, rtol=1e-12, atol=1e-12)


def test_the_ends_are_an_embedding_and_a_head() -> None:
    stage = Stage(SHAPE, 0, 1, seed=4)
    tokens = sequences(SHAPE, 1, 0, 0)[:, :-1]
    x = stage.tokens[tokens] + stage.positions
    for block in stage.blocks:
        x = block(x, torch.nn.functional.linear)
    torch.testing.assert_close(stage(tokens), norm(x) @ stage.head.T, rtol=1e-12, atol=1e-12)


def test_cross_entropy_is_the_mean_of_minus_log_probabilities() -> None:
    logits, targets = torch.randn(2, 3, 7, dtype=torch.float64), torch.randint(7, (2, 3))
    chances = logits.exp() / logits.exp().sum(-1, keepdim=True)
    expected = -chances.gather(-1, targets[..., None]).log().mean()
    torch.testing.assert_close(cross_entropy(logits, targets), expected)
    assert cross_entropy(logits.bfloat16(), targets).dtype == torch.float32


def test_no_token_sees_a_later_one() -> None:
    model = whole(2)
    tokens = sequences(SHAPE, 1, 0, 0)[:, :-1]
    before = model(tokens)
    tokens[:, 3] = (tokens[:, 3] + 1) % SHAPE.vocabulary
    changed = (model(tokens) - before).abs().amax((0, 2)) > 1e-9
    assert changed.tolist() == [False, False, False, True, True]


def test_no_gradient_is_zero_by_its_nature() -> None:
    model = whole(3)
    data = sequences(SHAPE, 1, 0, 0)
    cross_entropy(model(data[:, :-1]), data[:, 1:]).backward()
    assert all(p.grad is not None and p.grad.norm() > 1e-4 for p in model.parameters())


def test_parameters_depend_on_seed_and_stage_alone() -> None:
    def drawn(*words: int) -> Tensor:
        return Stage(SHAPE, *words).blocks[0].attention_in

    assert torch.equal(drawn(1, 3, 5), drawn(1, 3, 5))
    assert not torch.equal(drawn(1, 3, 5), drawn(1, 3, 6))
    assert not torch.equal(drawn(1, 4, 5), drawn(2, 4, 5))


def test_sequences_depend_on_seed_iteration_and_microbatch() -> None:
    drawn = {
        tuple(sequences(SHAPE, *words).flatten().tolist())
        for words in [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (1, 0, 0)]
    }
    assert len(drawn) == 4
    tokens = sequences(SHAPE, 1, 0, 0)
    assert tokens.shape == (3, 6)
    assert 0 <= tokens.min() <= tokens.max() < 7


@pytest.mark.parametrize("sizes", [{"layers": 0}, {"batch": -1}, {"width": 6, "heads": 4}])
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ScenarioError):
        GptShape(**sizes)
