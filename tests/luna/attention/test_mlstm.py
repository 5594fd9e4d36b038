"""mLSTM: its recurrence, the authors' numbers, what gates do at the start and at their ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from luna.attention.mlstm import divided
from luna.scans import scan, with_ones

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave


def logits(gate: Any, k: Tensor, x: Tensor | None) -> Tensor:
    """What a gate gives for each token, capped: (B, H, n)."""
    if x is None:
        t = (k @ gate.map.weight.mT + gate.map.bias.unsqueeze(1)).squeeze(-1)
    else:
        t = (x @ gate.map.weight[0].mT + gate.map.bias[0]).transpose(1, 2)
    return 15 * torch.tanh(t / 15)


def sums(q: Tensor, k: Tensor, v: Tensor, a: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """S_i^T q_i and z_i . q_i, token by token: the state fades, then a token is written."""
    S, z = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], dtype=k.dtype), 0 * k[:, :, 0]
    read, weight = [], []
    for i in range(q.shape[2]):
        keep, key = f[:, :, i, None].sigmoid(), a[:, :, i, None].exp() * k[:, :, i]
        S = keep[..., None] * S + key[..., :, None] * v[:, :, i, None, :]
        z = keep * z + key
        read.append(torch.einsum("bhd,bhde->bhe", q[:, :, i], S))
        weight.append((q[:, :, i] * z).sum(-1))
    return torch.stack(read, 2), torch.stack(weight, 2)


def defined(method: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None = None) -> Tensor:
    """The header's formulas, with the method's parameters."""
    a, f = logits(method.write, k, x), logits(method.keep, k, x)
    q = q / math.sqrt(q.shape[-1])
    read, weight = sums(q, k, v, a, f)
    if not method.causal:
        backwards = sums(*(t.flip(2) for t in (q, k, v, a, f)))
        own = a.exp() * (q * k).sum(-1)
        read = read + backwards[0].flip(2) - own.unsqueeze(-1) * v
        weight = weight + backwards[1].flip(2) - own
    return read / weight.abs().clamp_min(1).unsqueeze(-1)


@pytest.mark.parametrize("causal", [False, True])
def test_formula(causal: bool):
    method = shaken("mlstm", norm=False, causal=causal)
    assert_defined(method, by_example(lambda *given: defined(method, *given)), d_v=5)


def test_the_published_gates_read_the_hidden_states():
    method, x = shaken("mlstm", gates="x", norm=False), wave((2, 64, 64), 0.5, 3)
    assert difference(method(*qkv(), None, x), defined(method, *qkv(), x)) < 1e-10


@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_the_authors_numbers(chunk: int):
    """The parallel form of Vision-LSTM, one direction, which the recurrence of xLSTM in
    transformers 5.23 equals to 1e-11. Theirs add 1e-6 to the divisor."""
    q, k, v = (wave((1, 2, 5, 3), start) for start in (0, 1, 2))
    written, kept = wave((1, 2, 5, 1), 0.5, 2), wave((1, 2, 5, 1), 0.9, 2)
    out = scan(3**-0.5 * q, written.exp() * k, with_ones(v), logsigmoid(kept), chunk=chunk)[1]
    first = [0.375441, 0.356411, 0.333821, 0.809943, 0.749186, 0.680943]
    first += [0.675817, 0.602591, 0.523345, 0.519386, 0.437232, 0.350710]
    assert_golden(divided(out), first, 9.569766)


def test_gates_begin_as_the_authors_do():
    """Whatever they read: kept is most, and more by each head; written is about e^0."""
    method = build("mlstm", n_heads=4)
    k = 10 * torch.randn(2, 4, 7, 32)
    kept, written = method.keep(k, None), method.write(k, None)
    assert torch.equal(kept[0, :, 0, 0], torch.tensor([3.0, 4.0, 5.0, 6.0]))
    assert torch.equal(kept, kept[:1, :, :1].expand_as(kept))
    assert 0 < written.abs().max() < 0.5


@pytest.mark.parametrize("logit", [-1e4, 1e4])
@pytest.mark.parametrize("gate", ["keep", "write"])
def test_no_logit_overflows(gate: str, logit: float):
    """e^a is 3.3 million at most; a method without the cap gives nan here."""
    method = build("mlstm", causal=True)
    with torch.no_grad():
        getattr(method, gate).map.bias.fill_(logit)
    q, k, v = (t.float().requires_grad_() for t in qkv())
    out = method(q, k, v)
    out.square().sum().backward()
    assert all(t.isfinite().all() for t in (out, q.grad, k.grad, v.grad))


def test_few_weights_are_not_blown_up():
    """Below a sum of 1 the divisor is 1: a token that is hardly written is hardly read."""
    method = build("mlstm", norm=False)
    with torch.no_grad():
        method.write.map.bias.fill_(-12.0)
    out = method(*(t.float() for t in qkv()))
    assert out.abs().max() < 1e-2
