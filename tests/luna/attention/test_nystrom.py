"""Nyströmformer (eq. 13 and 14), strict and as published."""

from __future__ import annotations

import pytest
import torch

from luna.attention.nystrom import inverse

from ..kit import N, build, difference, qkv, softmax_attention


@pytest.mark.parametrize(("steps", "order"), [(6, 4e-2), (12, 4e-4), (20, 3e-7), (40, 4e-13)])
def test_error_of_the_iteration(steps, order):
    q, k, v = qkv()
    attention = build("nystrom", landmarks=N, inverse_steps=steps)
    error = difference(attention(q, k, v), softmax_attention(q, k, v))
    assert order / 3 < error < 3 * order


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
        hidden_size=16,
        num_attention_heads=2,
        num_landmarks=8,
        segment_means_seq_len=64,
        conv_kernel_size=5,
        attention_probs_dropout_prob=0,
    )
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


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-8])
def test_the_pseudo_inverse_of_landmarks_that_are_nearly_equal(spread: float):
    q, k, v = qkv()
    q = q[:, :, :1] + spread * q
    attention = build("nystrom", landmarks=8, inverse_steps=None)
    assert difference(attention(q, k, v), attention.matrix(q, k) @ v) < 1e-7
