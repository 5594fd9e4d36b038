"""Reformer: the hash, the chunks and what precedes them, the public implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..kit import MASKS, build, difference, mask_of, qkv

# ---------------------------------------------------------------------- the hash


def test_buckets_are_a_power_of_two_or_two_factors():
    for profile in ("strict", "published"):
        for n, factors in [
            (100, (2,)),
            (1024, (32,)),
            (2000, (32,)),
            (2048, (64,)),
            (4096, (128,)),
            (8192, (16, 16)),
            (16384, (16, 32)),
        ]:
            assert build("reformer", max_len=n, profile=profile)._factors(n) == factors
    strict = build("reformer", max_len=4096)
    assert strict._factors(1024) == (128,)  # whatever the batch is padded to
    assert build("reformer", max_len=4096, profile="published")._factors(1024) == (32,)


# ---------------------------------------------------------------------- the Arena's code


def arena(q: Tensor, v: Tensor, R: Tensor) -> Tensor:
    """One head and example at a time, then the released code's reshape, by index."""
    B, heads, n, d = q.shape
    total = n + 10 - n % 10
    q, v = (torch.cat([t, t.new_zeros(B, heads, total - n, t.shape[-1])], 2) for t in (q, v))
    result = torch.zeros_like(v)
    for b in range(B):
        for h in range(heads):
            turned = q[b, h] @ R[h, :, 0]
            bucket = torch.cat([turned, -turned], -1).argmax(-1).tolist()
            order = sorted(range(total), key=lambda t: (bucket[t], t))
            c = total // 10
            chunks = [order[s : s + c] for s in range(0, total, c)]
            for g, chunk in enumerate(chunks):
                seen = chunk + chunks[g - 1]
                scores = q[b, h, chunk] @ q[b, h, seen].T * d**0.5
                result[b, h, chunk] = scores.softmax(-1) @ v[b, h, seen]
    merged = result.flatten(1).unflatten(1, (total, heads, -1))  # (heads, length) read as
    return merged[:, :n].transpose(1, 2)


@pytest.mark.parametrize("n", [64, 60, 33])
def test_official_is_the_released_code(n: int):
    q, k, v = qkv(n=n, d=8, d_v=3)
    attention = build("reformer", head_dim=8, profile="official")
    R = attention._rotations(5).double()
    assert torch.equal(R[0], R[1])  # one key for all heads
    assert torch.equal(
        R, build("reformer", head_dim=8, profile="official", seed=9)._rotations(5).double()
    )
    out = attention(q, k, v)
    assert difference(out, arena(q, v, R)) < 1e-12
    assert torch.equal(attention(q, k, v, mask_of("prefix", n=n)), out)  # no mask


# ---------------------------------------------------------------------- the public implementation


@pytest.mark.parametrize("kind", ["none", *MASKS])
@pytest.mark.parametrize(("n", "chunk", "rounds"), [(128, 16, 2), (64, 2, 3), (24, 32, 2)])
def test_published_equals_hugging_face(kind: str, n: int, chunk: int, rounds: int):
    hf = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    from transformers import ReformerConfig

    config = ReformerConfig(
        hidden_size=16,
        num_attention_heads=2,
        attention_head_size=8,
        num_hashes=rounds,
        lsh_attn_chunk_length=chunk,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
        max_position_embeddings=n,
        hash_seed=11,
        num_buckets=None,
    )
    torch.manual_seed(0)
    layer = hf.LSHSelfAttention(config, layer_idx=0).double().eval()
    x = torch.randn(2, n, 16, dtype=torch.float64)
    mask = None if kind == "none" else mask_of(kind, n=n)
    with torch.no_grad():
        expected = layer(x, attention_mask=mask).hidden_states.unflatten(-1, (2, 8)).transpose(1, 2)
        q, v = (
            linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for linear in (layer.query_key, layer.value)
        )
        sizes = {"head_dim": 8, "max_len": n, "chunk": chunk, "rounds": rounds}
        attention = build("reformer", profile="published", **sizes)
        columns = sum(attention._factors(n)) // 2
        torch.manual_seed(11)
        attention.rotations = torch.randn(2, 8, rounds, columns, dtype=torch.float64)
        out = attention(q, torch.zeros_like(q), v, mask)
    assert difference(out, expected, mask) < 1e-10


# ---------------------------------------------------------------------- what is drawn


@pytest.mark.parametrize(
    ("name", "options"), [("reformer", {"chunk": 8}), ("informer", {"budget": 6})]
)
def test_draws_are_new_in_training_and_the_same_in_evaluation(name: str, options: dict):
    q, k, v = qkv()
    strict, published = build(name, **options), build(name, profile="published", **options)
    evaluated = strict(q, k, v)
    assert torch.equal(strict(q, k, v), evaluated)
    assert not torch.equal(build(name, seed=1, **options)(q, k, v), evaluated)
    assert not torch.equal(published(q, k, v), published(q, k, v))
    strict.train()
    assert not torch.equal(strict(q, k, v), strict(q, k, v))
