"""Reformer: the hash, the chunks and what precedes them, the public implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import luna

from ..kit import MASKS, build, difference, mask_of, qkv


def rotations(attention: luna.Attention, buckets: int, seed: int = 3) -> Tensor:
    shape = (attention.n_heads, attention.head_dim, attention.rounds, buckets // 2)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shared_qk(q: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Full attention, unit-length keys; a token sees itself only if it sees nothing else."""
    keys = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() / q.shape[-1] ** 0.5
    scores = q @ keys.mT
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
    return scores.masked_fill(torch.eye(q.shape[-2], dtype=torch.bool), -1e5).softmax(-1) @ v


def by_hand(q: Tensor, v: Tensor, mask: Tensor, R: Tensor, c: int, ring: bool) -> Tensor:
    """Steps 2 to 7 token by token, in Python lists; one factor of buckets, n a multiple of c."""
    B, heads, n, d = q.shape
    out = torch.zeros_like(v)
    for b in range(B):
        for h in range(heads):
            x = q[b, h]
            keys = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() / d**0.5
            chunks = []  # of each round
            for rotation in R[h].unbind(1):
                turned = x @ rotation
                bucket = torch.cat([turned, -turned], -1).argmax(-1).tolist()
                bucket = [a if mask[b, t] else 10**6 for t, a in enumerate(bucket)]
                order = sorted(range(n), key=lambda t: (bucket[t], t))
                chunks.append([order[s : s + c] for s in range(0, n, c)])
            results = [[] for _ in range(n)]
            for r, round_ in enumerate(chunks):
                for g, chunk in enumerate(round_):
                    first = chunks[r - 1][-1] if ring else []
                    before = round_[g - 1] if g else first
                    seen = before + chunk
                    for t in chunk:
                        scores = keys[seen] @ x[t]
                        scores = torch.where(mask[b, seen], scores, -1e9)
                        scores = torch.where(torch.tensor(seen) == t, -1e5, scores)
                        results[t].append((scores.logsumexp(0), scores.softmax(0) @ v[b, h, seen]))
            for t, rounds in enumerate(results):
                weight = torch.stack([total for total, _ in rounds]).softmax(0)
                out[b, h, t] = sum(w * o for w, (_, o) in zip(weight, rounds, strict=True))
    return out


@pytest.mark.parametrize("profile", ["strict", "published"])
@pytest.mark.parametrize("kind", MASKS)
def test_the_definition_token_by_token(profile: str, kind: str):
    q, k, v = qkv(n=24, d=8, d_v=3)
    mask = mask_of(kind, n=24)
    attention = build("reformer", head_dim=8, chunk=4, rounds=3, profile=profile)
    attention.rotations = R = rotations(attention, 8)
    expected = by_hand(q, v, mask, R, 4, ring=profile == "published")
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-12


@pytest.mark.parametrize("profile", ["strict", "published"])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("n", [64, 40, 1])
def test_one_chunk_is_full_attention(profile: str, kind: str, n: int):
    q, k, v = qkv(n=n)
    mask = mask_of(kind, n=n)
    for rounds in (1, 2):
        out = build("reformer", chunk=64, rounds=rounds, profile=profile)(q, k, v, mask)
        assert difference(out, shared_qk(q, v, mask), mask) < 1e-12


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


def test_two_factors_hash_each_with_columns_of_their_own():
    attention = build("reformer", chunk=2, max_len=64)
    assert attention._factors(64) == (8, 8)
    attention.rotations = R = rotations(attention, 16)
    q, _, _ = qkv()
    bucket = attention._bucket(q, torch.ones(1, 1, 64, 1, dtype=torch.bool))
    first, second = (
        torch.cat([turned, -turned], -1).argmax(-1)
        for turned in torch.einsum("bhnd,hdrc->bhrnc", q, R).split(4, -1)
    )
    assert torch.equal(bucket, first + 8 * second)
    masked = attention._bucket(q, torch.arange(64).view(1, 1, 64, 1) < 60)
    assert torch.equal(masked[..., :60], bucket[..., :60])
    assert (masked[..., 60:] == 64).all()


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
        hidden_size=16, num_attention_heads=2, attention_head_size=8, num_hashes=rounds,
        lsh_attn_chunk_length=chunk, lsh_attention_probs_dropout_prob=0.0, is_decoder=False,
        max_position_embeddings=n, hash_seed=11, num_buckets=None,
    )  # fmt: skip
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
