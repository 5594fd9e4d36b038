"""Softmax attention: the definition, its invariances, and the two public codes' quirks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..kit import MASKS, N, assert_defined, build, difference, mask_of, qkv, softmax_attention


@pytest.mark.parametrize("profile", ["strict", "published", "official"])
def test_dropout_acts_on_the_weights(profile: str):
    """The expectation over masks is the undropped output, and a dropped weight is exactly 0."""
    q, k, _ = qkv(1, 1)
    v = torch.eye(N, dtype=q.dtype).expand(1, 1, N, N)  # the output is the matrix
    attention = build("softmax", n_heads=1, profile=profile, dropout=0.25)
    A = attention(q, k, v)
    torch.manual_seed(0)
    drawn = torch.stack([attention.train()(q, k, v) for _ in range(200)])
    kept = drawn != 0
    assert 0.74 < kept.double().mean() < 0.76
    assert difference(drawn, kept * A / 0.75) < 1e-10


# ---------------------------------------------------------------------- the public codes


def published(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return (scores - 1e6 * (1 - m.to(q.dtype))[:, None, None, :]).softmax(-1) @ v


def official(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """-1e10 added to every pair that has a masked member, in float32."""
    q, k, v = q.float(), k.float(), v.float()
    pair = m[:, None, :, None] & m[:, None, None, :]
    bias = torch.zeros(pair.shape).masked_fill(~pair, -1e10)
    return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


def test_strict_is_the_definition():
    assert_defined(build("softmax"), softmax_attention, d_v=5)


@pytest.mark.parametrize("kind", MASKS)
def test_published_subtracts_a_million(kind: str):
    q, k, v = qkv()
    m = mask_of(kind)
    attention = build("softmax", profile="published")
    assert difference(attention(q, k, v, m), published(q, k, v, m)) < 1e-10


@pytest.mark.parametrize("kind", MASKS)
def test_official_masks_pairs(kind: str):
    q, k, v = qkv()
    m = mask_of(kind)
    attention = build("softmax", profile="official")
    assert difference(attention(q.float(), k.float(), v.float(), m), official(q, k, v, m)) < 1e-5
    out = attention(q, k, v, m)
    assert difference(out, softmax_attention(q, k, v, m), m) < 1e-10
    everything = v.mean(2, keepdim=True).expand_as(v)  # padding included
    assert difference(out, everything, ~m) < 1e-10


@pytest.mark.parametrize(
    ("name", "options"),
    [("softmax", {}), ("softmax", {"causal": True}), ("linformer", {}), ("synthesizer", {})],
)
def test_the_matrix_of_large_scores_is_that_of_the_output(name: str, options: dict[str, bool]):
    """The largest scores may belong to padding."""
    q, k, v = (t.float() for t in qkv())
    q, mask = q.mul(400), mask_of("prefix")
    attention = build(name, **options).float()
    assert difference(attention.matrix(q, k, mask) @ v, attention(q, k, v, mask)) < 1e-4
