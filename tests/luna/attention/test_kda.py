"""Kimi Delta Attention and GDN-2: their recurrence, the authors' numbers, what each gate does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

import luna
from luna import LunaError
from luna.delta import dense_delta, rule_scan

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave


def of_length_1(t: Tensor) -> Tensor:
    return t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def recurrence(q: Tensor, k: Tensor, r: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """S_i^T q_i, token by token: each feature fades, then what r reads makes room for w."""
    S, out = torch.zeros(*k.shape[:2], k.shape[3], w.shape[3], dtype=k.dtype), []
    for i in range(q.shape[2]):
        S = g[:, :, i, :, None].exp() * S
        read = torch.einsum("bhd,bhde->bhe", r[:, :, i], S)
        S = S + k[:, :, i, :, None] * (w[:, :, i] - read)[:, :, None]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, :, i], S))
    return torch.stack(out, 2)


def defined(method: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None = None) -> Tensor:
    """The header's formulas, with the method's parameters."""

    def logits(gate: Any) -> Tensor:
        if x is None:
            t = k if gate.narrow is None else k @ gate.narrow.weight.mT
            return t @ gate.map.weight.mT + gate.map.bias.unsqueeze(1)
        t = x if gate.narrow is None else x @ gate.narrow.weight[0].mT
        t = t @ gate.map.weight[0].mT + gate.map.bias[0]
        return t.unflatten(-1, (2, -1)).transpose(1, 2)

    g = -method.log_rate.exp().view(-1, 1, 1) * softplus(logits(method.step_size))
    write = logits(method.write).sigmoid()
    if method.erase is None:
        write = erase = method.highest * write
    else:
        erase = method.highest * logits(method.erase).sigmoid()
    q, k = of_length_1(silu(q)) / math.sqrt(32), of_length_1(silu(k))
    tokens = q, k, erase * k, write * v, g.clamp_min(-10)
    out = recurrence(*tokens)
    if not method.causal:
        out = out + recurrence(*(t.flip(2) for t in tokens)).flip(2)
        out = out - (q * k).sum(-1, keepdim=True) * write * v
    return out


@pytest.mark.parametrize(
    "options", [{}, {"negative": True}, {"causal": True}, {"erase": True}], ids=str
)
def test_formula(options: dict[str, Any]):
    method = shaken("kda", norm=False, **options)
    d_v = None if "erase" in options else 5
    assert_defined(method, by_example(lambda *given: defined(method, *given)), d_v=d_v)


@pytest.mark.parametrize("causal", [False, True])
def test_the_matrix_has_the_strongest_decays_as_outputs_have_them(causal: bool):
    method, (q, k, v) = shaken("kda", norm=False, causal=causal), qkv()
    method.step_size.map.bias.data += 50  # g is far below FLOOR
    assert difference(method.matrix(q, k) @ v, method(q, k, v)) < 1e-12


def test_gates_of_channels_need_values_of_a_head():
    with pytest.raises(LunaError, match=r"erase=true needs values as wide as a head, 32, got 5"):
        build("kda", erase=True).double()(*qkv(d_v=5))


def test_torch_func_gives_the_gradients_of_backward():
    torch.manual_seed(0)
    mixer = luna.mixer("kda", d_model=16, n_heads=2, max_len=32).double()
    x, mask = wave((2, 9, 16), 0.5), torch.arange(9) < torch.tensor([[9], [6]])
    weights = dict(mixer.named_parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(mixer, weights, (x, mask))[mask].square().sum()

    functional = torch.func.grad(loss)({k: w.detach() for k, w in weights.items()})
    backward = torch.autograd.grad(loss(weights), [*weights.values()])
    for ours, theirs in zip(functional.values(), backward, strict=True):
        assert difference(ours, theirs) < 1e-12


@pytest.mark.parametrize("erase", [False, True])
def test_the_published_gates_read_the_hidden_states(erase: bool):
    method, x = shaken("kda", gates="x", rank=5, erase=erase, norm=False), wave((2, 64, 64), 0.5, 3)
    assert difference(method(*qkv(), None, x), defined(method, *qkv(), x)) < 1e-10


def given() -> tuple[Tensor, ...]:
    """What the goldens are of: q, k, v, beta and g (1, 2, 6, .)."""
    q, k = (wave((1, 6, 2, 3), s).transpose(1, 2) for s in (0, 1))
    v = wave((1, 6, 2, 2), 2).transpose(1, 2)
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    beta = wave((1, 6, 2, 1), 0.2, 2).sigmoid().transpose(1, 2)
    return q / 3**0.5, k, v, beta, -softplus(wave((1, 6, 2, 3), 0.9, 2)).transpose(1, 2)


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_the_authors_numbers(chunk: int):
    """Of the recurrences of KDA and GDN-2 in fla-org/flash-linear-attention, one direction."""
    q, k, v, beta, g = given()
    first = [0.251399, 0.238657, 0.295733, 0.272765, 0.277759, 0.246858]
    first += [0.225528, 0.188025, 0.157380, 0.114478, 0.075858, 0.029127]
    S, out = rule_scan(q, k, beta * k, beta * v, g, chunk=chunk)
    assert_golden(out.transpose(1, 2), first, 2.762106, 4.872934)
    assert_golden((dense_delta(q, k, beta, g) @ v).transpose(1, 2), first, 2.762106, 4.872934)
    held = [0.316729, 0.330915, 0.398095, 0.431430, 0.480179, 0.534191]
    assert_golden(S, held, 5.394454)
    erase = wave((1, 6, 2, 3), 0.4, 2).sigmoid().transpose(1, 2)
    write = wave((1, 6, 2, 2), 1.4, 2).sigmoid().transpose(1, 2)
    first = [0.368958, 0.351280, 0.404680, 0.372543, 0.347617, 0.306432]
    first += [0.262134, 0.215161, 0.168473, 0.119151, 0.074233, 0.026570]
    out = rule_scan(q, k, erase * k, write * v, g, chunk=chunk)[1]
    assert_golden(out.transpose(1, 2), first, 3.287250, 4.542728)


@pytest.mark.parametrize("chunk", [1, 7, 16, 37, 64])
@pytest.mark.parametrize("strength", [0.1, 3.0])
def test_chunks_are_the_recurrence(chunk: int, strength: float):
    """Around the borders of chunks, after a state, with gradients."""
    q, k = (of_length_1(wave((2, 2, 37, 8), s, 2.0)) for s in (0, 1))
    r = (wave((2, 2, 37, 8), 0.3, 4).sigmoid() * k).requires_grad_()
    w = wave((2, 2, 37, 5), 2).requires_grad_()
    g = (-strength * wave((2, 2, 37, 8), 0.7).square()).requires_grad_()
    tokens = q, k, r, w, g
    state, first = rule_scan(*(t[:, :, :11] for t in tokens))
    second = rule_scan(*(t[:, :, 11:] for t in tokens), state, chunk)[1]
    expected = recurrence(*tokens)
    assert difference(torch.cat([first, second], 2), expected) < 1e-12
    weights = wave((2, 2, 37, 5), 5)
    whole = rule_scan(*tokens, chunk=chunk)[1]
    ours = torch.autograd.grad((whole * weights).sum(), (r, w, g))
    theirs = torch.autograd.grad((expected * weights).sum(), (r, w, g))
    assert all(difference(a, b) < 1e-11 for a, b in zip(ours, theirs, strict=True))


def test_with_one_decay_for_all_features_it_is_gated_deltanet():
    q, k, v, beta, g = given()
    g = g[..., :1]
    alike = rule_scan(q, k, beta * k, beta * v, g.expand_as(k))
    assert all(
        difference(a, b) < 1e-14
        for a, b in zip(alike, rule_scan(q, k, beta * k, beta * v, g), strict=True)
    )


def test_one_feature_fades_and_another_stays():
    k = torch.eye(2).double()[None, None]
    k = torch.cat([k, torch.zeros(1, 1, 1, 2).double()], 2)  # a third token, which writes nothing
    v = torch.tensor([[1.0], [10.0], [0.0]]).double()[None, None]
    g = torch.zeros(1, 1, 3, 2).double()
    g[..., 2, 0] = math.log(0.5)
    S, _ = rule_scan(k, k, k, v, g)
    assert torch.allclose(S, torch.tensor([[0.5], [10.0]]).double())


def test_what_is_erased_and_what_is_written_are_gated_apart():
    """Erased and not written: the key holds nothing. Written and not erased: it holds the sum."""
    k = torch.eye(2).double()[None, None, :1].expand(1, 1, 2, 2)
    v = torch.tensor([[3.0], [4.0]]).double()[None, None]
    erase, write = (torch.ones(1, 1, 2, 1).double() for _ in range(2))
    write[..., 1, :] = 0
    g = torch.zeros(1, 1, 2, 2).double()
    assert rule_scan(k, k, erase * k, write * v, g)[0].abs().max() == 0
    assert rule_scan(k, k, 0 * k, v, g)[0][0, 0, 0] == 7


def test_decays_begin_as_the_authors():
    torch.manual_seed(0)
    method = build("kda")
    steps = softplus(method.step_size.map.bias.detach())
    assert steps.shape == (2, 32)
    assert ((steps >= 0.99e-4) & (steps <= 0.101)).all()
    assert ((method.log_rate.exp() >= 1) & (method.log_rate.exp() <= 16)).all()
    assert not any(rate.decay for rate in method.rates.values())


@pytest.mark.parametrize("erase", [False, True])
def test_directions_are_alike(erase: bool):
    method, tokens = shaken("kda", erase=erase), qkv()
    flipped = method(*(t.flip(2) for t in tokens)).flip(2)
    assert difference(flipped, method(*tokens)) < 1e-12


def test_the_gates_of_erase_belong_to_channels():
    method = build("kda", erase=True, norm=False)
    with pytest.raises(LunaError, match="no implied attention matrix"):
        method.matrix(*(t.float() for t in qkv()[:2]))
    assert build("kda", norm=False).traits().has_matrix


def test_long_sequences_in_float32_and_bfloat16():
    method = build("kda")
    q, k, v = qkv(1, 2, 8192)
    exact = method.double()(q, k, v)
    single = method.float()(q.float(), k.float(), v.float())
    assert (single - exact).norm() / exact.norm() < 1e-5
    half = method(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (half - exact).norm() / exact.norm() < 2e-2
    assert method(*(1e3 * t.float() for t in qkv())).isfinite().all()
