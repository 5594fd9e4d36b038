"""Nyströmformer (eq. 13 and 14), strict and as published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from luna.attention.nystrom import inverse

from ..kit import (
    MASKS,
    B,
    D,
    H,
    N,
    build,
    difference,
    mask_of,
    qkv,
    softmax_attention,
)


def by_position(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, m: int) -> Tensor:
    """The public code where m divides n: reshape, divide by s, mask only the last factor."""
    keep = mask[:, None, :, None].to(q.dtype)
    q, k = (t * keep / D**0.25 for t in (q, k))
    short_q, short_k = (t.reshape(B, H, m, N // m, D).mean(-2) for t in (q, k))
    F = (q @ short_k.mT).softmax(-1)
    A = (short_q @ short_k.mT).softmax(-1)
    G = (short_q @ k.mT - 1e9 * (1 - keep.mT)).softmax(-1)
    Z = A.mT / A.sum(-2).max()
    eye = torch.eye(m, dtype=q.dtype)
    for _ in range(6):
        X = A @ Z
        Z = 0.25 * Z @ (13 * eye - X @ (15 * eye - X @ (7 * eye - X)))
    return F @ Z @ G @ v


def by_rank(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, m: int) -> Tensor:
    """Strict, written for one example at a time on its valid tokens alone; exact inverse."""
    out = torch.zeros_like(v)
    for b in range(B):
        rows = mask[b].nonzero().flatten()
        m_b = min(m, len(rows))
        segment = torch.tensor([r * m_b // len(rows) for r in range(len(rows))])
        for h in range(H):
            x, y = (t[b, h, rows] / D**0.25 for t in (q, k))
            short_x, short_y = (
                torch.stack([t[segment == a].mean(0) for a in range(m_b)]) for t in (x, y)
            )
            F, A = (x @ short_y.T).softmax(-1), (short_x @ short_y.T).softmax(-1)
            G = (short_x @ y.T).softmax(-1)
            out[b, h, rows] = F @ torch.linalg.inv(A) @ G @ v[b, h, rows]
    return out


@pytest.mark.parametrize(("steps", "order"), [(6, 4e-2), (12, 4e-4), (20, 3e-7), (40, 4e-13)])
def test_error_of_the_iteration(steps, order):
    q, k, v = qkv()
    attention = build("nystrom", landmarks=N, inverse_steps=steps)
    error = difference(attention(q, k, v), softmax_attention(q, k, v))
    assert order / 3 < error < 3 * order


def test_one_filter_per_head_along_the_sequence():
    q, k, v = qkv(d_v=3)
    attention = build("nystrom", landmarks=16, conv_kernel=5).double()
    added = attention(q, k, v) - build("nystrom", landmarks=16)(q, k, v)
    w = attention.conv.weight
    assert w.shape == (H, 1, 5, 1)
    assert w.abs().max() <= 5**-0.5
    padded = torch.nn.functional.pad(v, (0, 0, 2, 2))
    expected = sum(w[:, 0, t, 0].view(H, 1, 1) * padded[:, :, t : t + N] for t in range(5))
    assert difference(added, expected) < 1e-14


@pytest.mark.parametrize("m", [4, 12, 16, 48, 100])
@pytest.mark.parametrize("kind", MASKS)
def test_strict_works_on_the_valid_tokens_alone(m, kind):
    """m = 48 is more than some examples have tokens; 12 does not divide their number."""
    (q, k, v), mask = qkv(), mask_of(kind)
    out = build("nystrom", landmarks=m, inverse_steps=None)(q, k, v, mask)
    assert difference(out, by_rank(q, k, v, mask, m), mask) < 1e-10


def test_landmarks_left_over_take_no_part():
    """40 tokens for 64 landmarks: 24 are absent from F and the identity in A."""
    (q, k, _), mask = qkv(), mask_of("prefix")
    F, A, G = (t[1] for t in build("nystrom", landmarks=64).factors(q, k, mask))
    assert not F[..., 40:].any()
    assert not G[..., 40:].any()
    assert torch.equal(A[:, 40:], torch.eye(64, dtype=A.dtype)[40:].expand(H, -1, -1))
    assert not A[:, :40, 40:].any()
    for t in (F, A, G):
        assert (t.sum(-1) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("kind", MASKS)
def test_published_is_the_public_code(kind):
    (q, k, v), mask = qkv(), mask_of(kind)
    attention = build("nystrom", landmarks=16, profile="published")
    assert difference(attention(q, k, v, mask), by_position(q, k, v, mask, 16)) < 1e-10


def test_published_segments_where_landmarks_do_not_divide():
    """The ImageNet variant: (s + 1) m - n segments of length s = n // m, then longer ones."""
    attention = build("nystrom", landmarks=4, profile="published")
    positions, member = attention.segments(None, 10, torch.device("cpu"))
    tokens = [p[keep].tolist() for p, keep in zip(positions[0], member[0], strict=True)]
    assert tokens == [[0, 1], [2, 3], [4, 5, 6], [7, 8, 9]]


def test_equals_hugging_face():
    hf = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    from transformers import NystromformerConfig

    config = NystromformerConfig(
        hidden_size=16, num_attention_heads=2, num_landmarks=8, segment_means_seq_len=64,
        conv_kernel_size=5, attention_probs_dropout_prob=0,
    )  # fmt: skip
    torch.manual_seed(0)
    layer = hf.NystromformerSelfAttention(config).double().eval()
    x = torch.randn(2, 64, 16, dtype=torch.float64)
    attention = build(
        "nystrom", head_dim=8, max_len=64, landmarks=8, conv_kernel=5, profile="published"
    )
    with torch.no_grad():
        q, k, v = (
            linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for linear in (layer.query, layer.key, layer.value)
        )
        attention.conv.weight.copy_(layer.conv.weight)
        expected = layer(x)[0].unflatten(-1, (2, 8)).transpose(1, 2)
        assert (attention(q, k, v) - expected).abs().max() < 1e-10


# ---------------------------------------------------------------------- the iterative inverse


def test_one_step_of_the_inverse_on_a_scalar():
    """One step makes e = 1 - x of an eigenvalue x of A Z_0 into 3/4 e^3 + 1/4 e^4; a small x only
    grows by 13/4."""
    half = torch.diag(torch.tensor([0.3**0.5, 1.0], dtype=torch.float64))  # Z_0 = A^T: x = 0.3
    assert float((half @ inverse(half, 1, shared=False))[0, 0]) == pytest.approx(
        0.682725, abs=1e-12
    )
    tiny = torch.diag(torch.tensor([1e-5**0.5, 1.0], dtype=torch.float64))
    grown = float((tiny @ inverse(tiny, 6, shared=False))[0, 0])
    assert grown == pytest.approx(1e-5 * 3.25**6, rel=0.05)


def test_the_constant_of_the_inverse_is_shared_by_the_batch_where_asked_for():
    A = qkv(n=8, d=8)[0].softmax(-1)
    sharper = torch.cat([A[:1], (40 * A[1:]).softmax(-1)])
    assert (A @ inverse(A, None, shared=False) - torch.eye(8)).abs().max() < 1e-10
    for shared in (False, True):
        alone, coupled = (inverse(t, 6, shared=shared)[0] for t in (A, sharper))
        assert torch.equal(alone, coupled) is not shared
    for name in ("nystrom", "skyformer"):
        for profile in ("strict", "published"):
            assert build(name, profile=profile).published is (profile == "published")
