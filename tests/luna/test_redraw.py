"""Random draws of Informer and Reformer."""

from __future__ import annotations

import pytest
import torch

from .kit import build, qkv


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
