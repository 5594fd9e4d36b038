"""Flowformer: conservation, competition and allocation from the explicit matrix of capacities."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kit import assert_defined, build, by_example, difference, mask_of, qkv


def test_formula() -> None:
    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        C = q.sigmoid() @ k.sigmoid().mT
        incoming, outgoing = C.sum(-1, keepdim=True), C.sum(-2, keepdim=True)
        received, sent = (C / outgoing).sum(-1, keepdim=True), (C / incoming).sum(-2, keepdim=True)
        share = sent.softmax(-1) * C.shape[-1]
        return (received.sigmoid() * C / incoming * share) @ v

    assert_defined(build("flowformer"), by_example(dense), d_v=5)


def test_published_competes_among_heads() -> None:
    """The Long Range Arena code's softmax is over the last axis of (B, n, H)."""
    q, k, v = qkv(d_v=5)
    eps = 1e-6
    Q, K = q.relu() + eps, k.relu() + eps
    incoming = torch.einsum("bhnd,bhd->bhn", Q + eps, K.sum(2) + eps)
    outgoing = torch.einsum("bhnd,bhd->bhn", K + eps, Q.sum(2) + eps)
    received = torch.einsum("bhnd,bhd->bhn", Q + eps, (K / outgoing[..., None]).sum(2) + eps)
    sent = torch.einsum("bhnd,bhd->bhn", K + eps, (Q / incoming[..., None]).sum(2) + eps)
    share = torch.stack(list(sent.unbind(1)), -1).softmax(-1).permute(0, 2, 1) * 64
    A = (Q @ K.mT) * share.unsqueeze(2) * (received.sigmoid() / incoming).unsqueeze(-1)
    attention = build("flowformer", profile="published")
    for mask in (None, mask_of("prefix")):  # padding takes part
        assert difference(attention(q, k, v, mask), A @ v) < 1e-12


def test_causal_form_is_the_papers() -> None:
    """Row by row, with plain sums over what each row sees; in chunks, as a matrix and streamed."""
    n = 23
    q, k, v = qkv(n=n, d_v=5)
    Q, K = q.sigmoid(), k.sigmoid()
    C, t = Q @ K.mT, torch.arange(1, n + 1).double()
    earlier = torch.ones(n, n).tril().bool()
    incoming = (C * earlier).sum(-1) / t  # of sink i, from the sources j <= i
    outgoing = (C.mT * earlier).sum(-1) / t  # of source j, to the sinks i <= j
    received = (C / outgoing.unsqueeze(-2) * earlier).sum(-1) / t
    sent = (C.mT / incoming.unsqueeze(-2) * earlier).sum(-1) / t
    share = torch.stack([sent[..., : j + 1].softmax(-1)[..., -1] for j in range(n)], -1) * t
    A = received.sigmoid().unsqueeze(-1) * C / (incoming * t).unsqueeze(-1) * share.unsqueeze(-2)
    expected = (A * earlier) @ v

    attention = build("flowformer", causal=True)
    for attention.chunk in (1, 7, 128):
        assert difference(attention(q, k, v), expected) < 1e-12
    assert difference(attention.matrix(q, k) @ v, expected) < 1e-12
    state, parts = None, []
    for part in (slice(0, 9), slice(9, 10), slice(10, n)):
        state, out = attention.steps(state, q[:, :, part], k[:, :, part], v[:, :, part])
        parts.append(out)
    assert difference(torch.cat(parts, 2), expected) < 1e-12
    assert sum(s[0].numel() for s in state) == 2 * (32 * 5 + 4 * 32 + 1) + 1


def test_padding_before_and_within_a_causal_sequence() -> None:
    q, k, v = qkv(n=12)
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]]).bool().expand(2, -1)
    attention = build("flowformer", causal=True)
    real = mask[0]
    expected = attention(*(t[:, :, real] for t in (q, k, v)))
    assert difference(attention(q, k, v, mask)[:, :, real], expected) < 1e-12
    state, _ = attention.steps(None, q, k, v, mask)
    alone, _ = attention.steps(None, *(t[:, :, real] for t in (q, k, v)))
    for got, wanted in zip(state, alone, strict=True):
        assert difference(got, wanted) < 1e-12
