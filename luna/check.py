"""`lra check foo`: the core of tests/luna/test_conformance.py for methods of other packages."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from luna import base, registry


def check(name: str) -> Iterator[tuple[str, str]]:
    """Yield each declaration that is checked, and what contradicts it, if anything does."""
    attention = _build(name)
    facts = attention.traits()
    q, k, v, x = torch.randn(4, 2, 2, 17, 8, dtype=torch.float64) * 0.3
    x, mask = x.transpose(1, 2).flatten(2), torch.ones(2, 17) > 0
    state = attention.get_extra_state()  # of random draws
    out = attention(q, k, v, mask, x)
    longer = [torch.cat([t, t[:, :, :5] * torch.nan], 2) for t in (q, k, v)]
    padded = attention(*longer, torch.cat([mask, ~mask[:, :5]], 1), torch.cat([x, x[:, :5]], 1))
    yield "padding", _compared("masked tokens and none", padded[:, :, :17], out)
    if "constant" not in facts.exempt:
        pair = attention(q, k, torch.ones_like(v), mask, x), torch.ones_like(v)
        yield "row_stochastic", _compared("sums of weights and 1", *pair, facts.row_stochastic)
    if facts.has_matrix:
        attention.set_extra_state(state)
        product = attention.matrix(q, k, mask, x) @ v
        yield "has_matrix", _compared("matrix() times v and the output", product, out)
    if facts.causal_form and "causal" not in facts.exempt:
        rows = [attention(*(t[:, :, : i + 1] for t in (q, k, v)))[:, :, -1] for i in range(17)]
        pair = _build(name, causal=True)(q, k, v), torch.stack(rows, 2)
        yield "causal_form", _compared("causal=True and last rows of prefixes", *pair)

    def along(t: torch.Tensor) -> torch.Tensor:
        attention.set_extra_state(state)
        return attention(q + t * v, k - t * v, v + t * v, mask, x).square().sum()

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    same = torch.autograd.gradcheck(along, t, atol=1e-6, raise_exception=False)
    yield "gradients", "" if same else "autograd and finite differences differ"


def _build(name: str, causal: bool = False) -> base.Attention:
    torch.manual_seed(0)
    attention = registry.build(name, n_heads=2, head_dim=8, max_len=64, causal=causal)
    for p in attention.double().eval().parameters():
        p.data += 0.1 * torch.randn_like(p)
    return attention


def _compared(what: str, a: torch.Tensor, b: torch.Tensor, declared: bool = True) -> str:
    gap = float((a - b).detach().abs().nan_to_num(nan=float("inf")).max())
    contradicted = not gap < 1e-10 if declared else gap < 1e-7
    return f"declared {declared}, but {what} differ by {gap:.1g}" if contradicted else ""
