"""Checks that the tests of several methods make, each for its own options."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

import luna

from ..kit import Sizes, build, difference, extend, mask_of, qkv


def causal_matches_prefixes(name: str, *, scale: float = 1.0, **options) -> None:
    """G2 and more: row i of a causal form is the bidirectional row of the first i + 1 tokens."""
    n, d = 37, 16
    sizes = {"head_dim": d, "max_len": 64, **options}
    causal, whole = build(name, causal=True, **sizes), build(name, **sizes)
    whole.load_state_dict(causal.state_dict())
    q, k, v = qkv(n=n, d=d, d_v=5)
    q, k = scale * q, scale * k
    for mask in (None, mask_of("scatter", n=n)):  # whose first token is padding
        rows = []
        for i in range(n):
            seen = None if mask is None else mask[:, : i + 1]
            rows.append(whole(q[:, :, : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], seen)[:, :, -1])
        expected = torch.stack(rows, 2)
        for causal.chunk in (1, 7, 16, n, 128):
            assert difference(causal(q, k, v, mask), expected) < 1e-10
        assert difference(causal.matrix(q, k, mask) @ v, expected) < 1e-10

    state, out = None, []
    for t in range(n):
        state, o = causal.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        out.append(o)
    assert difference(torch.stack(out, 2), whole_prefixes(whole, q, k, v)) < 1e-10
    numbers = sum(part[0].numel() for part in state if isinstance(part, Tensor))  # of one example
    assert numbers <= q.shape[1] * (causal.feature_dim + 1) * (v.shape[-1] + 1)


def whole_prefixes(attention: luna.Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    lengths = range(1, q.shape[2] + 1)
    return torch.stack([attention(*(t[:, :, :i] for t in (q, k, v)))[:, :, -1] for i in lengths], 2)


def future_is_not_read(name: str, *, growth: float = 30.0, **options) -> None:
    """Huge later tokens change no bit of an earlier row: not by a stabiliser, not by rounding."""
    attention = build(name, head_dim=16, max_len=64, causal=True, **options)
    q, k, v = qkv(n=40, d=16)
    for attention.chunk in (8, 64):
        before = attention(q, k, v)
        for t in (1, 13, 39):
            later = [torch.cat([x[:, :, :t], growth * x[:, :, t:]], 2) for x in (q, k, v)]
            assert torch.equal(attention(*later)[:, :, :t], before[:, :, :t])


def gradients(name: str, *, n: int = 5, d: int = 4, **options) -> None:
    """GC: finite differences of inputs and parameters, with a mask."""
    torch.manual_seed(5)
    attention = build(name, head_dim=d, max_len=8, **options).double()
    parameters = dict(attention.named_parameters())
    mask = torch.tensor([[True] * n, [True, False] + [True] * (n - 3) + [False]])

    def f(q: Tensor, k: Tensor, v: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        return functional_call(attention, named, (q, k, v, mask))

    inputs = [*qkv(n=n, d=d, d_v=3), *parameters.values()]
    assert torch.autograd.gradcheck(f, [t.detach().requires_grad_() for t in inputs])


def autocast(name: str, **options) -> None:
    """AMP: inside autocast the result is the float32 result, whatever the inputs' type."""
    attention = build(name, **options)
    q, k, v = (t.bfloat16() for t in qkv())
    mask = mask_of("prefix")
    reference = attention(q.float(), k.float(), v.float(), mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(q, k, v, mask), reference.bfloat16())
        assert torch.equal(attention(q.float(), k.float(), v.float(), mask), reference)
        large = attention(30 * q, 30 * k, 30 * v, mask)
    assert large.isfinite().all()


def memory_is_linear(name: str, **options) -> None:
    """No tensor of n x n, nor of n x D x e, forward or backward."""
    n = 1024
    attention = build(name, max_len=n, n_heads=1, **options)
    q, k, v = (t.float().requires_grad_() for t in qkv(batch=1, heads=1, n=n))
    with Sizes() as sizes:
        attention(q, k, v).sum().backward()
    assert not any(shape.count(n) >= 2 for shape in sizes.shapes)
    assert sizes.largest <= n * 256


def edges(name: str, **options) -> None:
    """n = 1, one example, one head, d_v != d, NaN at padding, an example that is all padding."""
    attention = build(name, n_heads=1, head_dim=8, max_len=64, **options)
    q, k, v = qkv(1, 1, 1, 8, d_v=3)
    assert attention(q, k, v).shape == (1, 1, 1, 3)
    assert attention(q, k, v).isfinite().all()

    attention = build(name, head_dim=8, max_len=64, **options)
    q, k, v = qkv(n=13, d=8, d_v=3)
    mask = torch.arange(13) < torch.tensor([[9], [0]])
    pad = ~mask[:, None, :, None]
    inputs = [t.masked_fill(pad, float("nan")).requires_grad_() for t in (q, k, v)]
    out = attention(*inputs, mask)
    assert (out[1] == 0).all()
    assert (out[0, :, 9:] == 0).all()
    out.square().sum().backward()
    for t in (*inputs, *attention.parameters()):
        if t.grad is not None:
            assert t.grad.isfinite().all()
            if t.dim() == 4:
                assert (t.grad.masked_select(pad) == 0).all()
    alone = attention(q[:1, :, :9], k[:1, :, :9], v[:1, :, :9])
    assert difference(out[:1, :, :9], alone) < 1e-10


def padding_is_invisible(name: str, *, scale: float = 1.0, **options) -> None:
    """G3: appended padding changes nothing, nor do its contents, nor the other examples."""
    attention = build(name, head_dim=16, max_len=128, **options)
    q, k, v = qkv(n=37, d=16)
    q, k = scale * q, scale * k
    for kind in ("prefix", "scatter"):
        mask = mask_of(kind, n=37)
        out = attention(q, k, v, mask)
        for extra, value in ((1, None), (5, None), (50, None), (5, float("nan"))):
            longer, *padded = extend(extra, mask, q, k, v, value=value)
            again = attention(*padded, longer)
            assert difference(again[:, :, :37], out, mask) < 1e-10
            assert (again[:, :, 37:] == 0).all()
        alone = attention(q[:1], k[:1], v[:1], mask[:1])
        assert difference(out[:1], alone, mask[:1]) < 1e-10
