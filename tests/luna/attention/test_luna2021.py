"""Luna of 2021: pack and unpack, from explicit matrices; the order of packing and projecting."""

from __future__ import annotations

import torch

from ..kit import assert_defined, build, difference, qkv, softmax_attention


def test_is_attention_to_the_packed_sequence() -> None:
    attention = build("luna2021", packed=7).double()
    with torch.no_grad():
        attention.p.mul_(10)
    p = attention.p.detach().expand(2, -1, -1, -1)

    def expected(q, k, v, mask):
        packed = (softmax_attention(p, k, t, mask) for t in (k, v))
        return softmax_attention(q, *packed)

    assert_defined(attention, expected, d_v=5)


def test_causal_form_is_the_papers() -> None:
    """Row by row, padding left out; in chunks, as a matrix and streamed."""
    n = 19
    q, k, v = qkv(n=n, d_v=5)
    real = torch.arange(n) % 4 != 0  # the first token is padding
    mask = real.expand(2, -1)
    attention = build("luna2021", packed=7, causal=True).double()
    with torch.no_grad():
        attention.p.mul_(20)
    rows = [torch.zeros(2, 2, 5).double()]
    for i in range(1, n):
        seen = real[: i + 1].nonzero().squeeze(1)
        scores = attention.p @ k[:, :, seen].mT / 32**0.5
        G = torch.where(scores > 0, scores + 1, scores.exp()) / len(seen)
        w = q[:, :, i, None] @ (G @ k[:, :, seen]).mT / 32**0.5
        rows.append((w.softmax(-1) @ G @ v[:, :, seen]).squeeze(2))
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
