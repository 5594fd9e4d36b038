"""Luna of 2021: pack and unpack, from explicit matrices; the order of packing and projecting."""

from __future__ import annotations

import torch

from ..kit import build, difference, mask_of, qkv, softmax_attention


def test_is_attention_to_the_packed_sequence() -> None:
    attention = build("luna2021", packed=7)
    q, k, v = qkv(d_v=5)
    p = 10 * torch.randn(1, 2, 7, 32).double()
    with torch.no_grad():
        attention.double().p.copy_(p[0])
    mask = mask_of("scatter")
    packed_k, packed_v = (softmax_attention(p.expand(2, -1, -1, -1), k, t, mask) for t in (k, v))
    expected = softmax_attention(q, packed_k, packed_v)
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-12


def test_causal_form_is_the_papers() -> None:
    """Row by row, padding left out; in chunks, as a matrix and streamed."""
    n = 19
    q, k, v = qkv(n=n, d_v=5)
    real = torch.arange(n) % 4 != 0  # the first token is padding
    mask = real.expand(2, -1)
    attention = build("luna2021", packed=7, causal=True).double()
    with torch.no_grad():
        attention.p.mul_(20)
    rows = []
    for i in range(n):
        seen = real[: i + 1].nonzero().squeeze(1)
        if len(seen) == 0:
            rows.append(torch.zeros(2, 2, 5).double())
            continue
        scores = torch.einsum("hld,bhjd->bhlj", attention.p, k[:, :, seen]) / 32**0.5
        G = torch.where(scores > 0, scores + 1, scores.exp())
        keys, values = (torch.einsum("bhlj,bhjc->bhlc", G, t[:, :, seen]) for t in (k, v))
        w = torch.einsum("bhd,bhld->bhl", q[:, :, i], keys / len(seen)) / 32**0.5
        rows.append(torch.einsum("bhl,bhlc->bhc", w.softmax(-1), values / len(seen)))
    expected = torch.stack(rows, 2)
    for attention.chunk in (1, 7, 128):
        assert difference(attention(q, k, v, mask), expected, mask) < 1e-12
    assert difference(attention.matrix(q, k, mask) @ v, expected, mask) < 1e-12

    state, first = attention.steps(None, *(t[:, :, :9] for t in (q, k, v)), mask[:, :9])
    both = mask | (torch.arange(n) >= 9)
    outs = [first]
    for j in range(9, n):
        state, out = attention.step(state, *(t[:, :, j] for t in (q, k, v)))
        outs.append(out.unsqueeze(2))
    assert difference(torch.cat(outs, 2), attention(q, k, v, both)) < 1e-12
    assert sum(s[0].numel() for s in state) == 2 * 7 * (32 + 5) + 1
