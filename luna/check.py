"""The core of the conformance suite (tests/luna/test_conformance.py of a clone), for methods of
other packages: `lra check foo`. In float64, with parameters moved off their initial values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luna import registry
from luna.base import Attention

H, D, N = 2, 8, 37  # heads, width of one, tokens
EXACT, VISIBLE = 1e-10, 1e-7  # equal up to rounding; a difference nobody would call rounding


def check(name: str) -> Iterator[tuple[str, str]]:
    """Yield every declaration that is checked, with what contradicts it: nothing where it holds, or
    where the method exempts itself from the test of that name."""
    fact, exempt = "contract", _build(name).exempt
    try:
        for fact, test, declared, what, gap in _gaps(name):
            problem = ""
            if declared and not gap < EXACT:
                problem = f"declared True, but {what} differ by {gap:.1g}"
            elif not declared and gap < VISIBLE:
                problem = f"declared False, but {what} are equal"
            yield fact, "" if test in exempt else problem
    except Exception as error:
        yield f"after {fact}", f"{type(error).__name__}: {error}"


def _gaps(name: str) -> Iterator[tuple[str, str, bool, str, float]]:
    """Yield declarations with the suite's name of their test, their value, and how far apart two
    results are that are equal where it is True."""
    attention = _build(name)
    q, k, v, x = torch.randn(4, 2, H, N, D, dtype=torch.float64) * 0.3
    x, mask = x.transpose(1, 2).flatten(2), torch.arange(N).expand(2, N) % 3 != 0
    state = attention.get_extra_state()  # of random draws
    out = attention(q, k, v, mask, x)

    longer = [torch.cat([t, torch.full_like(t[:, :, :5], torch.nan)], 2) for t in (q, k, v)]
    real = torch.cat([mask, torch.zeros(2, 5, dtype=torch.bool)], 1)
    padded = attention(*longer, real, torch.cat([x, x[:, :5]], 1))[:, :, :N]
    yield "padding", "padding", True, "outputs before and after masked tokens", _gap(padded, out)
    same = v[:, :, :1].expand_as(v)
    gap, words = _gap(attention(q, k, same, None, x), same), "constant values and the output"
    yield "row_stochastic", "constant", attention.row_stochastic, words, gap
    if attention.has_matrix:
        attention.set_extra_state(state)
        gap = _gap(attention.matrix(q, k, mask, x) @ v, out)
        yield "has_matrix", "matrix", True, "matrix() times v and the output", gap
    if attention.causal_form:
        causal = _build(name, causal=True)
        prefixes = [attention(*(t[:, :, : i + 1] for t in (q, k, v)))[:, :, -1] for i in range(N)]
        gap = _gap(causal(q, k, v), torch.stack(prefixes, 2))
        yield "causal_form", "causal", True, "causal=True and last rows of prefixes", gap
        gap = _gap(causal.steps(None, q, k, v)[1], causal(q, k, v))
        yield "steps", "step", True, "steps() and causal=True", gap

    def f(*given: Tensor) -> Tensor:
        attention.set_extra_state(state)
        return attention(*given, mask[:, :9], x[:, :9])

    short = [t[:, :, :9].clone().requires_grad_() for t in (q, k, v)]
    torch.autograd.gradcheck(f, short, fast_mode=True, atol=1e-6)  # raises where they differ
    yield "gradients", "gradients", True, "", 0.0


def _build(name: str, **slot: bool) -> Attention:
    torch.manual_seed(0)
    attention = registry.build(name, n_heads=H, head_dim=D, max_len=64, **slot).double().eval()
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return attention


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().nan_to_num(nan=float("inf")).max())
