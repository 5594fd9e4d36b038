"""DeltaNet and Gated DeltaNet: their recurrence, the authors' numbers, and what the rule does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

import luna
from luna import LunaError
from luna.attention.gated_deltanet import DeltaRule
from luna.delta import dense_delta, product_scan, rule_scan

from ..kit import assert_defined, assert_golden, build, by_example, difference, qkv, shaken, wave

BOTH = pytest.mark.parametrize("name", ["deltanet", "gated_deltanet"])


def of_length_1(t: Tensor) -> Tensor:
    return t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def delta_scan(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, *rest: Any, **settings: Any
) -> tuple[Tensor, Tensor]:
    """The rule of one strength."""
    return rule_scan(q, k, beta * k, beta * v, g, *rest, **settings)


def recurrence(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """S_i^T q_i, token by token: forget, read what the key holds, write the difference."""
    S, out = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], dtype=k.dtype), []
    for i in range(q.shape[2]):
        S = g[:, :, i, :, None].exp() * S
        held = torch.einsum("bhd,bhde->bhe", k[:, :, i], S)
        written = beta[:, :, i] * (v[:, :, i] - held)
        S = S + k[:, :, i, :, None] * written[:, :, None]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, :, i], S))
    return torch.stack(out, 2)


def gates(method: DeltaRule, k: Tensor) -> tuple[Tensor, Tensor]:
    """beta and g as the header has them."""

    def logits(gate: Any) -> Tensor:
        return k @ gate.map.weight.mT + gate.map.bias.unsqueeze(1)

    beta = method.highest * logits(method.write).sigmoid()
    if not hasattr(method, "log_rate"):
        return beta, torch.zeros_like(beta)
    return beta, -method.log_rate.exp().view(-1, 1, 1) * softplus(logits(method.step_size))


@BOTH
@pytest.mark.parametrize("options", [{}, {"negative": True}, {"causal": True}], ids=str)
def test_formula(name: str, options: dict[str, Any]):
    method = shaken(name, norm=False, **options)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = *gates(method, k), q, k
        beta, g, q, k = given[0], given[1], of_length_1(silu(q)), of_length_1(silu(k))
        out = recurrence(q, k, v, beta, g)
        if not method.causal:
            back = recurrence(*(t.flip(2) for t in (q, k, v, beta, g))).flip(2)
            out = out + back - beta * (q * k).sum(-1, keepdim=True) * v
        return out / math.sqrt(32)

    assert_defined(method, by_example(defined), d_v=5)


@pytest.mark.parametrize("chunk", [1, 7, 16, 37, 64])
@pytest.mark.parametrize("strength", [0.1, 3.0])
def test_chunks_are_the_recurrence(chunk: int, strength: float):
    """Around the borders of chunks, after a state, with gradients."""
    q, k = (of_length_1(wave((2, 2, 37, 8), s, 2.0)) for s in (0, 1))
    v = wave((2, 2, 37, 5), 2)
    beta = (2 * wave((2, 2, 37, 1), 0.3, 4).sigmoid()).requires_grad_()
    g = (-strength * wave((2, 2, 37, 1), 0.7).square()).requires_grad_()
    state, first = delta_scan(
        q[:, :, :11], k[:, :, :11], v[:, :, :11], beta[:, :, :11], g[:, :, :11]
    )
    _, second = delta_scan(*(t[:, :, 11:] for t in (q, k, v, beta, g)), state, chunk)
    expected = recurrence(q, k, v, beta, g)
    assert difference(torch.cat([first, second], 2), expected) < 1e-12
    weights = wave((2, 2, 37, 5), 5)
    whole = delta_scan(q, k, v, beta, g, chunk=chunk)[1]
    ours = torch.autograd.grad((whole * weights).sum(), (beta, g))
    theirs = torch.autograd.grad((expected * weights).sum(), (beta, g))
    assert all(difference(a, b) < 1e-11 for a, b in zip(ours, theirs, strict=True))


def given(shift: float = 0.0) -> tuple[Tensor, ...]:
    """What the goldens are of: q, k, v (1, 2, 6, .), beta and g; `shift` moves the gates."""
    q, k = (wave((1, 6, 2, 3), s).transpose(1, 2) for s in (0, 1))
    v = wave((1, 6, 2, 2), 2).transpose(1, 2)
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    beta = wave((1, 6, 2), 0.2 - shift, 2).sigmoid()
    g = -softplus(wave((1, 6, 2), 0.9 - shift))
    return q / 3**0.5, k, v, *(t.transpose(1, 2).unsqueeze(-1) for t in (beta, g))


def test_the_authors_numbers():
    """Of the recurrences in fla-org/flash-linear-attention, one direction."""
    q, k, v, beta, g = given()
    first = [0.251399, 0.238657, 0.295733, 0.272765, 0.294795, 0.263032]
    first += [0.238068, 0.199590, 0.165921, 0.122143, 0.078103, 0.031068]
    for chunk in (4, 64):
        _, out = delta_scan(q, k, v, beta, g, chunk=chunk)
        assert_golden(out.transpose(1, 2), first, 2.990457, 4.939955)
    first = [0.251399, 0.238657, 0.365580, 0.330229, 0.237794, 0.187328]
    first += [0.041719, -0.015924, 0.189609, 0.216805, 0.063432, 0.058832]
    assert_golden(delta_scan(q, k, v, beta, 0 * g)[1], first, 3.383989)
    assert_golden(dense_delta(q, k, beta, 0 * g) @ v, first, 3.383989)


@BOTH
def test_the_norm(name: str):
    plain, normed = shaken(name, norm=False), shaken(name)
    normed.load_state_dict(plain.state_dict(), strict=False)
    out = plain(*qkv())
    rms = (out.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert difference(normed(*qkv()), normed.norm.gain * out / rms) < 1e-10
    with pytest.raises(LunaError, match="a gain for each of 32 channels"):
        normed(*qkv(d_v=5))


def test_the_published_gates_read_the_hidden_states():
    method = shaken("gated_deltanet", gates="x", norm=False)
    q, k, v = qkv()
    x = wave((2, 64, 64), 0.5, 3.0)

    def logits(gate: Any) -> Tensor:
        return (x @ gate.map.weight[0].mT + gate.map.bias).transpose(1, 2).unsqueeze(-1)

    beta = logits(method.write).sigmoid()
    g = -method.log_rate.exp().view(-1, 1, 1) * softplus(logits(method.step_size))
    q, k = of_length_1(silu(q)) / math.sqrt(32), of_length_1(silu(k))
    back = recurrence(*(t.flip(2) for t in (q, k, v, beta, g))).flip(2)
    expected = recurrence(q, k, v, beta, g) + back - beta * (q * k).sum(-1, keepdim=True) * v
    given = qkv()
    assert difference(method(*given, None, x), expected) < 1e-10


def rule(k: Tensor, v: Tensor, beta: float, q: Tensor | None = None) -> Tensor:
    """The last output of the plain rule, keys and values (n, .)."""
    k, v = k[None, None].double(), v[None, None].double()
    b = torch.full_like(k[..., :1], beta)
    q = k if q is None else q.expand_as(k).double()
    return delta_scan(q, k, v, b, torch.zeros_like(b))[1][0, 0, -1]


def test_a_second_value_replaces_the_first():
    key, v = torch.eye(4)[:1].expand(2, 4), torch.tensor([[1.0, 2.0], [30.0, 40.0]])
    assert torch.equal(rule(key, v, 1.0), v[1].double())


def test_orthogonal_keys_are_added_as_by_linear_attention():
    k, v = torch.eye(4), wave((4, 3), 1)
    q = torch.tensor([1.0, -2.0, 3.0, 0.5])
    assert difference(rule(k, v, 1.0, q), q.double() @ v) < 1e-14


def test_nothing_is_written_without_beta():
    assert rule(torch.eye(4), wave((4, 3), 1), 0.0).abs().max() == 0


def test_twice_the_difference_turns_what_is_held_around():
    """With v = 0 and beta = 2 the state is reflected: what the key holds changes its sign."""
    key, held = torch.eye(4)[:1].expand(2, 4), torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    k, v = key[None, None].double(), held[None, None].double()
    beta = torch.tensor([1.0, 2.0]).view(1, 1, 2, 1).double()
    out = delta_scan(k, k, v, beta, torch.zeros_like(beta))[1][0, 0]
    assert torch.equal(out[1], -out[0])


@BOTH
def test_directions_are_alike(name: str):
    method, given = shaken(name), qkv()
    flipped = method(*(t.flip(2) for t in given)).flip(2)
    assert difference(flipped, method(*given)) < 1e-12


def test_at_the_start_states_last_and_outputs_have_the_size_of_values():
    torch.manual_seed(0)
    method = build("gated_deltanet").double()
    given = qkv(4, 2, 512)
    steps = softplus(method.step_size.map.bias.detach())
    assert ((steps >= 1e-4) & (steps <= 0.1)).all()
    assert 0.9 < method(*given).square().mean().sqrt() < 1.1


@BOTH
def test_long_sequences_in_float32_and_bfloat16(name: str):
    method = build(name)
    q, k, v = qkv(1, 2, 8192)
    exact = method.double()(q, k, v)
    single = method.float()(q.float(), k.float(), v.float())
    assert (single - exact).norm() / exact.norm() < 1e-5
    half = method(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (half - exact).norm() / exact.norm() < 2e-2


@BOTH
def test_large_inputs_stay_finite(name: str):
    method = build(name)
    out = method(*(1e3 * t.float() for t in qkv()))
    assert out.isfinite().all()


# ---------------------------------------------------------------------- several steps for a token


def products(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """S_i^T q_i with k, v, beta (B, H, n, s, .): each token multiplies the state by its Householder
    matrices, the first step first."""
    B, H, n, s, d = k.shape
    S, out, eye = k.new_zeros(B, H, d, v.shape[-1]), [], torch.eye(d, dtype=k.dtype)
    for i in range(n):
        for j in range(s):
            key, value, b = (t[:, :, i, j].unsqueeze(-1) for t in (k, v, beta))
            S = (eye - b * key @ key.mT) @ S + b * key @ value.mT
        out.append((q[:, :, i].unsqueeze(2) @ S).squeeze(2))
    return torch.stack(out, 2)


@pytest.mark.parametrize(
    "options", [{"steps": 2}, {"steps": 3, "negative": True}, {"steps": 2, "causal": True}], ids=str
)
def test_steps_are_products_of_householder_matrices(options: dict[str, Any]):
    method = shaken("deltanet", norm=False, **options)
    s = options["steps"]

    def maps(gate: Any, t: Tensor) -> Tensor:
        return t @ gate.map.weight.mT + gate.map.bias.unsqueeze(1)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        beta = (method.highest * maps(method.write, k).sigmoid()).unsqueeze(-1)
        keys = torch.cat([k, maps(method.keys, k)], -1).unflatten(-1, (s, -1))
        values = torch.cat([v, maps(method.values, v)], -1).unflatten(-1, (s, -1))
        q, keys = of_length_1(silu(q)), of_length_1(silu(keys))
        out = products(q, keys, values, beta)
        if not method.causal:
            out = out + products(*(t.flip(2) for t in (q, keys, values, beta))).flip(2)
            for i in range(q.shape[2]):  # what it reads of itself is in both
                one = slice(i, i + 1)
                out[:, :, one] -= products(*(t[:, :, one] for t in (q, keys, values, beta)))
        return out / math.sqrt(32)

    assert_defined(method, by_example(defined))


def test_the_authors_numbers_of_several_steps():
    """Of DeltaProduct in fla-org/flash-linear-attention, two steps, with beta up to 2."""
    q = wave((1, 6, 2, 3), 0).transpose(1, 2)
    q = q / q.norm(dim=-1, keepdim=True)
    k, v, beta = wave((1, 12, 2, 3), 1), wave((1, 12, 2, 2), 2), wave((1, 12, 2, 1), 0.2, 2)
    k, beta = k / k.norm(dim=-1, keepdim=True), 2 * beta.sigmoid()
    k, v, beta = (t.transpose(1, 2).unflatten(2, (6, 2)) for t in (k, v, beta))
    first = [0.438318, 0.371067, 0.286800, 0.196812, -0.146363, -0.252239]
    first += [0.237432, 0.292746, 0.726591, 0.675871, 0.881050, 0.903299]
    for chunk in (1, 5, 64):
        out = product_scan(q, k, beta * k, beta * v, chunk=chunk)[1]
        assert_golden(out.transpose(1, 2), first, 2.626346, 15.949497)


def test_two_reflections_turn_the_state():
    """By a right angle: what stood under the first key then stands under the second. One step of
    any strength leaves a plane through the keys alone, and so turns nothing."""
    held = torch.tensor([[1.0, 0.0]]).double()  # written under the first key by the first token
    keys = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.5**0.5, 0.5**0.5]]]
    beta = torch.tensor([[1.0, 0.0], [2.0, 2.0]]).double()[None, None, ..., None]
    k = torch.tensor(keys, dtype=torch.float64)[None, None]
    v = torch.zeros(1, 1, 2, 2, 2).double()
    v[0, 0, 0, 0] = held
    q = torch.zeros(1, 1, 2, 2).double()
    S, _ = product_scan(q, k, beta * k, beta * v)
    assert difference(S[0, 0], torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double()) < 1e-12


@pytest.mark.parametrize("gates", ["k", "x"])
def test_values_of_another_width_have_no_further_steps(gates: str):
    """Half the width would fit together, and mean nothing."""
    x = wave((2, 64, 64), 0.5, 3)
    for d_v in (5, 16):
        with pytest.raises(LunaError, match=f"steps=2 needs values as wide as .* 32, got {d_v}"):
            build("deltanet", steps=2, gates=gates).double()(*qkv(d_v=d_v), None, x)


# ---------------------------------------------------------------------- on features


@pytest.mark.parametrize("kind", ["luna", "rff"])
def test_on_features_it_is_the_rule_on_them(kind: str):
    """phi(k) and phi(q), of length 1, in place of k and q; the map is that of LUNA, or of rff."""
    method = shaken("deltanet", norm=False, features=kind, M=4, L=6)

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        beta, g = gates(method, k)
        q, k = of_length_1(features(method.features, q)), of_length_1(features(method.features, k))
        back = recurrence(*(t.flip(2) for t in (q, k, v, beta, g))).flip(2)
        out = recurrence(q, k, v, beta, g) + back - beta * (q * k).sum(-1, keepdim=True) * v
        return out / math.sqrt(32)

    assert_defined(method, by_example(defined), d_v=5)


def features(of: Any, t: Tensor) -> Tensor:
    """LUNA's listing, or cosines and sines, 24 features."""
    if of.map.__class__.__name__ == "FourierFeatures":
        u = t / 32**0.25 @ of.map.Omega.mT
        return torch.cat([u.cos(), u.sin()], -1) / 12**0.5
    maps, psi = of.map.projections, of.map.channels
    u = (t @ maps.weight[0].mT + maps.bias[0])[..., None, None]  # (B, H, n, M, 1, 1)
    hidden = (u * psi.e[0] + psi.f[0]).relu()  # (B, H, n, M, L, w)
    y = ((hidden * psi.a[0]).sum(-1) + psi.g[0]).relu()
    return y.flatten(-2) / 4**0.5


def test_what_is_learned_of_features():
    trained = {n for n, _ in build("deltanet", features="luna").features.named_parameters()}
    assert trained == {f"map.projections.{n}" for n in ("weight", "bias")} | {
        f"map.channels.{n}" for n in "efag"
    }
    for options in ({"features": "luna", "frozen": True}, {"features": "rff"}, {}):
        assert not [*build("deltanet", **options).features.parameters()]
    assert (build("deltanet", features="rff", seed=1).features.map.Omega != 0).all()


def test_options_at_which_earlier_runs_were_are_no_part_of_a_run():
    """Nor do they draw another number: old checkpoints load."""
    names = [name for name, _ in build("deltanet").named_parameters()]
    assert names == ["write.map.weight", "write.map.bias", "norm.gain"]
    options = {k: p.default for k, p in luna.options("deltanet").items()}
    added = luna.get("deltanet").added
    assert options == {"gates": "k", "negative": False, "norm": True} | added
