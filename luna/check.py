"""The core of the conformance suite (tests/luna/test_conformance.py of a clone), for methods of
other packages: `lra check foo`. In float64, with parameters moved off their initial values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luna import registry
from luna.base import Attention

H, D, N = 2, 8, 17  # heads, width of one, tokens


def check(name: str) -> Iterator[tuple[str, str]]:
    """Yield each declaration that is checked, and what contradicts it: nothing where it holds, or
    where the method exempts itself."""
    attention = _build(name)
    q, k, v, x = torch.randn(4, 2, H, N, D, dtype=torch.float64) * 0.3
    x, mask, state = x.transpose(1, 2).flatten(2), torch.ones(2, N) > 0, attention.get_extra_state()
    out = attention(q, k, v, mask, x)
    longer = [torch.cat([t, t[:, :, :5] * torch.nan], 2) for t in (q, k, v)]
    padded = attention(*longer, torch.cat([mask, ~mask[:, :5]], 1), torch.cat([x, x[:, :5]], 1))
    yield "padding", _compared("masked tokens and none", padded[:, :, :N], out)
    if "constant" not in attention.exempt:
        pair = attention(q, k, torch.ones_like(v), mask, x), torch.ones_like(v)
        yield "row_stochastic", _compared("sums of weights and 1", *pair, attention.row_stochastic)
    if attention.has_matrix:
        attention.set_extra_state(state)  # of random draws
        A = attention.matrix(q, k, mask, x)
        yield "has_matrix", _compared("matrix() times v and the output", A @ v, out)
    if attention.causal_form and "causal" not in attention.exempt:
        rows = [attention(*(t[:, :, : i + 1] for t in (q, k, v)))[:, :, -1] for i in range(N)]
        pair = _build(name, causal=True)(q, k, v), torch.stack(rows, 2)
        yield "causal_form", _compared("causal=True and last rows of prefixes", *pair)
    if "gradients" not in attention.exempt:
        direction = torch.randn_like(v)

        def along(t: Tensor) -> Tensor:
            attention.set_extra_state(state)
            moved = (y + t * direction for y in (q, k, v))
            return attention(*moved, mask, x).square().sum().reshape(1)

        t = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        torch.autograd.gradcheck(along, t, atol=1e-6)  # raises where they differ
        yield "gradients", ""


def _build(name: str, **slot: bool) -> Attention:
    torch.manual_seed(0)
    attention = registry.build(name, n_heads=H, head_dim=D, max_len=64, **slot).double().eval()
    for p in attention.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return attention


def _compared(what: str, a: Tensor, b: Tensor, declared: bool = True) -> str:
    gap = float((a - b).detach().abs().nan_to_num(nan=float("inf")).max())
    if declared:
        return "" if gap < 1e-10 else f"declared True, but {what} differ by {gap:.1g}"
    return "" if gap > 1e-7 else f"declared False, but {what} are equal"
