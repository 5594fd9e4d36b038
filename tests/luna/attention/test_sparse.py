"""What the five sparse methods have in common: FLOPs, limits of their options, random draws."""

from __future__ import annotations

import pytest
import torch

from ..kit import build, qkv

SIZES = [
    ("local", {"block": 16}),
    ("local", {"block": 24, "look_back": 1, "look_ahead": 2}),
    ("local", {"block": 16, "profile": "official"}),
    ("longformer", {"left": 5, "right": 3}),
    ("longformer", {"left": 2, "right": 30, "global_tokens": [0, 30]}),
    ("bigbird", {"block": 8, "random_blocks": 2}),
    ("bigbird", {"block": 4, "profile": "published"}),
    ("bigbird", {"block": 5, "profile": "official"}),
    ("reformer", {"chunk": 8}),
    ("reformer", {"chunk": 7, "rounds": 3, "wrap": "round"}),
    ("reformer", {"chunk": 7, "rounds": 3, "profile": "published"}),
    ("informer", {"budget": 12}),
    ("informer", {"budget": 12, "profile": "published", "masked": True}),
]
NAMES = ["local", "longformer", "bigbird", "reformer", "informer"]


def test_longformer_computes_at_most_a_third_more_than_its_band():
    for window in (64, 128, 512, 1024):
        attention = build("longformer", max_len=4096, left=window // 2 - 1, right=window // 2)
        c, back, ahead = attention._chunks(4096)
        assert (back + 1 + ahead) * c <= window * 4 / 3


@pytest.mark.parametrize("name", ["reformer", "informer"])
def test_draws_are_new_in_training_and_the_same_in_evaluation(name: str):
    options = {"chunk": 8} if name == "reformer" else {"budget": 6}
    q, k, v = qkv()
    strict, published = build(name, **options), build(name, profile="published", **options)
    assert torch.equal(strict(q, k, v), strict(q, k, v))
    assert torch.equal(strict(q, k, v), build(name, **options)(q, k, v))
    assert not torch.equal(strict(q, k, v), build(name, seed=1, **options)(q, k, v))
    assert not torch.equal(published(q, k, v), published(q, k, v))

    evaluated = strict(q, k, v)
    strict.train()
    assert not torch.equal(strict(q, k, v), strict(q, k, v))
    resumed = build(name, seed=5, **options).train()
    resumed.load_state_dict(strict.state_dict())
    for _ in range(2):
        assert torch.equal(resumed(q, k, v), strict(q, k, v))
    assert torch.equal(strict.eval()(q, k, v), evaluated)
    assert torch.equal(resumed.eval()(q, k, v), evaluated)  # the model's own, not the seed's
