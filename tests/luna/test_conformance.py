"""The contract of luna/base.py, for every registered attention: a method joins by existing.

What holds for some methods only is read from the facts they declare, and checked both ways: a
property declared must hold, one denied must fail. A method may excuse itself from a test with a
reason (`exempt = {"step": "..."}`, by the names in the decorators); the test must then fail.
"""

from __future__ import annotations

import copy
import io
from functools import partial

import pytest
import torch
from torch import Tensor

import luna
from luna import LunaError
from luna.linear import KernelAttention

from .conftest import Case, D, N, conformance, strict_cases
from .kit import H, Sizes, difference, extend, mask_of, qkv

EXACT, VISIBLE = 1e-10, 1e-7  # equal up to rounding; a difference nobody would call rounding
MASKS = ("full", "prefix", "scatter")


def mask(kind: str, n: int = N) -> Tensor:
    return mask_of(kind, n=n)


def inputs(
    n: int = N,
    *,
    batch: int = 2,
    heads: int = H,
    d_v: int | None = None,
    seed: int = 0,
    tame: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v (float64) and the hidden states x. Tame: q and k so small that no signed denominator
    comes near 0, where it is clamped."""
    q, k, v = qkv(batch, heads, n, D, d_v=d_v, seed=seed)
    x = torch.randn(batch, n, heads * D, generator=torch.Generator().manual_seed(seed + 50))
    return (0.3 * q, 0.3 * k, v, x.double()) if tame else (q, k, v, x.double())


def width(attention: luna.Attention, e: int) -> int:
    """The width of values: any, where it is not bound to that of a head."""
    return D if "d_v" in attention.traits().exempt else e


def rows(x: Tensor, m: Tensor) -> Tensor:
    """The valid rows (valid, H, e) of x (B, H, n, e)."""
    return x.transpose(1, 2)[m]


# ---------------------------------------------------------------------- shapes and numbers


@conformance("shape")
def test_shape(case: Case):
    for batch, heads, n in ((1, 1, 1), (2, 1, 2), (1, 2, 33)):
        attention = case.build(n_heads=heads)
        q, k, v, x = inputs(n, batch=batch, heads=heads)
        for m in (None, mask_of("scatter", batch, n)):
            out = attention(q, k, v, m, x)
            assert out.shape == v.shape
            assert out.dtype == torch.float64
            assert out.isfinite().all()


@conformance("d_v")
def test_values_of_another_width(any_case: Case):
    """Columns of v do not know each other: a part of them gives a part of the output."""
    attention = any_case.build()
    for d_v in (6, 24):
        q, k, v, x = inputs(d_v=d_v)
        assert attention(q, k, v, mask("scatter"), x).shape == v.shape


@conformance("one_token")
def test_one_token(case: Case):
    """n = 1: a row-stochastic method can only return the value itself."""
    attention = case.build()
    q, k, v, x = inputs(1, tame=True)
    if attention.traits().row_stochastic:
        assert difference(attention(q, k, v, None, x), v) < EXACT


@conformance("mask")
def test_no_mask_is_a_full_mask(case: Case):
    attention = case.build()
    q, k, v, x = inputs()
    assert difference(attention(q, k, v, None, x), attention(q, k, v, mask("full"), x)) < EXACT


@conformance("strides")
def test_views_of_one_product(case: Case):
    """q, k, v as the backbone makes them: permuted views of one tensor."""
    attention = case.build()
    q, k, v, x = inputs()
    packed = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous()  # (B, n, 3, H, d)
    views = packed.permute(2, 0, 3, 1, 4).unbind(0)
    m = mask("scatter")
    assert difference(attention(*views, m, x), attention(q, k, v, m, x)) < EXACT


@conformance("max_len")
def test_longer_than_max_len_as_declared(case: Case):
    """A method whose parameters belong to positions refuses longer inputs; any other one works."""
    attention = case.build(max_len=31)
    q, k, v, x = inputs(95)  # blocks are filled up, so a few tokens more may find parameters
    if attention.traits().bound_to_max_len:
        with pytest.raises(LunaError, match="built for max_len=31 tokens and got 95"):
            attention(q, k, v, None, x)
    else:
        assert attention(q, k, v, None, x).isfinite().all()


def wrong_inputs(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> dict[str, tuple]:
    """What must not reach a kernel: arguments of forward, by the words of their refusal."""
    narrow, third, meta = q[..., :8], torch.cat([q, q[:, :1]], 1), q.to("meta")
    full = mask("full")
    return {
        "q must be .B, 2, n, 16.*got q .2, 2, 37, 8.": (narrow, k, v),
        "got q .2, 3, 37, 16., k .2, 3, 37, 16., v .2, 3, 37, 16.": (third, third, third),
        "got q .1, 2, 37, 16., k .2, 2": (q[:1], k, v),
        "got q .2, 2, 37, 16., k .2, 2, 37, 16., v .2, 2, 36, 16.": (q, k, v[:, :, 1:]),
        "none of them empty; got q .2, 2, 0, 16.": tuple(t[:, :, :0] for t in (q, k, v)),
        "got q .2, 37, 16.": (q[:, 0], k, v),
        "one floating-point dtype, got torch.float32, torch.float64": (q.float(), k, v),
        "one floating-point dtype, got torch.int64": (q.long(), k.long(), v.long()),
        "k is on meta and q on cpu": (q, meta, v),
        "mask is on meta and q on cpu": (q, k, v, full.to("meta")),
        "mask must be bool of shape .B, n. = .2, 37., .* got torch.float64": (
            q,
            k,
            v,
            full.double(),
        ),
        "mask must be bool of shape .B, n. = .2, 37., .* .2, 36.": (q, k, v, full[:, 1:]),
        "x must be hidden states .B, n, width. = .2, 37, width.": (q, k, v, full, x[:, 1:]),
    }


@conformance("contract")
def test_inputs_that_do_not_fit_are_refused(case: Case):
    attention = case.build()
    *tensors, x = inputs()
    for words, given in wrong_inputs(*tensors, x).items():
        arguments = [*given, *(None, x)[len(given) - 3 :]]
        with pytest.raises(LunaError, match=words):
            attention(*arguments)
        if "v .2" not in words and "none" not in words and attention.traits().has_matrix:
            with pytest.raises(LunaError):
                attention.matrix(*arguments[:2], *arguments[3:])


# ---------------------------------------------------------------------- the implied matrix


@conformance("matrix")
def test_forward_is_the_matrix_times_v(any_case: Case):
    """At any length, under every profile; a random object is drawn once for both."""
    attention = any_case.build()
    for n, kind in ((N, None), (N, "prefix"), (N, "scatter"), (1, "full"), (17, "scatter")):
        q, k, v, x = inputs(n)
        m = None if kind is None else mask(kind, n)
        if not attention.traits().has_matrix:
            with pytest.raises(LunaError, match="no implied attention matrix"):
                attention.matrix(q, k, m, x)
            return
        state = attention.get_extra_state()
        out = attention(q, k, v, m, x)
        attention.set_extra_state(state)
        A = attention.matrix(q, k, m, x)
        assert A.shape == (2, H, n, n)
        if m is not None and any_case.profile == "strict":
            assert (A.masked_select(~m[:, None, None, :]) == 0).all()
        assert difference(A @ v, out, m) < EXACT * max(1, float(out.detach().abs().max()))


@conformance("cross")
def test_cross_attention_as_declared(case: Case):
    """Keys and values of another sequence, longer, shorter or as long: each query on its own,
    padded keys out of sight; or refused, where the method has no such form."""
    attention = case.build()
    for n, m in ((5, N), (N, 5), (N, N)):
        e = width(attention, 6)
        q, (_, k, v, _), x = inputs(n)[0], inputs(m, d_v=e, seed=1), inputs(n)[3]
        queries, keys = mask("prefix", n), mask("scatter", m)
        if not attention.traits().cross_form:
            for call in (partial(attention, q, k, v), partial(attention.matrix, q, k)):
                with pytest.raises(LunaError, match=f"'{case.name}' has no cross-attention"):
                    call(queries, x, key_mask=keys)
            continue
        out = attention(q, k, v, queries, key_mask=keys)
        assert out.shape == (2, H, n, e)
        if attention.traits().has_matrix:
            A = attention.matrix(q, k, queries, key_mask=keys)
            assert difference(A @ v, out) < EXACT
            assert (A.masked_select(~keys[:, None, None, :]) == 0).all()
        assert (out.masked_select(~queries[:, None, :, None]) == 0).all()
        one = attention(q[:, :, :1], k, v, key_mask=keys)
        assert difference(one, attention(q, k, v, key_mask=keys)[:, :, :1]) < EXACT
        assert difference(one, attention(q, k, v)[:, :, :1]) > VISIBLE
    if attention.traits().cross_form:
        both = mask("scatter")  # the same sequence on both sides is self-attention
        assert difference(attention(q, k, v, both, key_mask=both), attention(q, k, v, both)) < EXACT
        with pytest.raises(LunaError, match="one mask cannot mark 5 queries and 37 keys"):
            attention(q[:, :, :5], k, v, mask("full", 5))


@conformance("cross")
def test_causal_attention_and_public_profiles_refuse_other_keys(case: Case):
    if not case.cls.declared.cross_form:
        pytest.skip("no cross-attention at all")
    q, (_, k, v, _) = inputs(5)[0], inputs()
    for profile in case.cls.profiles[1:]:
        with pytest.raises(LunaError, match=f"has no cross-attention .* under profile={profile}"):
            case.build(profile=profile)(q, k, v)
    if case.cls.declared.causal_form and case.build().traits().cross_form:
        with pytest.raises(LunaError, match=r"has no cross-attention .* with causal=True"):
            case.build(causal=True)(q, k, v)


# ---------------------------------------------------------------------- causal attention


@conformance("causal")
def test_a_causal_row_is_what_its_prefix_gives(case: Case):
    """In chunks of any length, as a matrix, and streamed: token by token, or after a prompt."""
    if not case.cls.declared.causal_form:
        with pytest.raises(LunaError, match="has no causal form"):
            case.build(causal=True)
        with pytest.raises(LunaError, match="causal=True"):
            case.build().step(None, *(t[:, :, 0] for t in inputs()[:3]))
        return
    causal, whole = case.build(causal=True), case.build()
    q, k, v, _ = inputs(d_v=width(causal, 5))
    for m in (None, mask("scatter")):  # whose first token is padding
        prefixes = (
            whole(*(t[:, :, : i + 1] for t in (q, k, v)), None if m is None else m[:, : i + 1])
            for i in range(N)
        )
        expected = torch.stack([out[:, :, -1] for out in prefixes], 2)
        for causal.chunk in (1, 7, 16, N, 128):
            assert difference(causal(q, k, v, m), expected) < EXACT
        if causal.traits().has_matrix:
            A = causal.matrix(q, k, m)
            assert (A.triu(1) == 0).all()
            assert difference(A @ v, expected) < EXACT
        if m is None:
            assert difference(streamed(causal, q, k, v), expected) < EXACT
        prompt, rest = (([t[:, :, part] for t in (q, k, v)]) for part in (slice(20), slice(20, N)))
        real = None if m is None else m | (torch.arange(N) >= 20)
        state, before = causal.steps(None, *prompt, None if real is None else real[:, :20])
        state, after = causal.steps(state, *rest)
        assert difference(torch.cat([before, after], 2), causal(q, k, v, real)) < EXACT
        with pytest.raises(LunaError, match="cannot stream padding after a state"):
            causal.steps(state, *rest, mask("scatter")[:, 20:])


def streamed(attention: luna.Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    state, out = None, []
    for tokens in zip(*(t.unbind(2) for t in (q, k, v)), strict=True):
        state, o = attention.step(state, *tokens)
        out.append(o)
    numbers = sum(part[0].numel() for part in state if isinstance(part, Tensor))  # of one example
    if isinstance(attention, KernelAttention):
        assert numbers <= H * (attention.feature_dim + 1) * (v.shape[-1] + 1)
    token = [t[:, :, 0] for t in (q, k, v)]
    for wrong, words in (
        ([t[:1] for t in token], "this state does not belong to these tokens"),
        ([token[0][..., :8], *token[1:]], "q must be"),
        ([t[:, :1] for t in token], "q must be"),
    ):
        with pytest.raises(LunaError, match=words):
            attention.step(state, *wrong)
    return torch.stack(out, 2)


@conformance("future")
def test_no_future_leak(case: Case):
    """Huge later tokens change no bit of an earlier row, and get no gradient from it."""
    if not case.cls.declared.causal_form:
        pytest.skip("no causal form")
    attention, t = case.build(causal=True), 20
    q, k, v, _ = (t.requires_grad_() for t in inputs())
    later = [torch.cat([x[:, :, :t], 30 * x[:, :, t:]], 2) for x in (q, k, v)]
    for attention.chunk in (8, 64):
        out = attention(q, k, v)
        assert torch.equal(attention(*later)[:, :, :t], out[:, :, :t])
        gradients = torch.autograd.grad(out[:, :, t].sum(), (q, k, v))
        for gradient in gradients:
            assert (gradient[:, :, t + 1 :] == 0).all()
        assert (gradients[2][:, :, : t + 1] != 0).any(-1).any(-1).all()


# ---------------------------------------------------------------------- padding and the batch


@conformance("padding")
def test_appended_padding_changes_nothing(case: Case):
    """Garbage or NaN there moves no valid row, and padded rows come out 0."""
    attention = case.build()
    q, k, v, x = inputs()
    for kind in ("prefix", "scatter"):
        m = mask(kind)
        out = attention(q, k, v, m, x)
        for extra, value in ((1, None), (5, float("nan")), (50, None)):
            longer, *padded, wide_x = extend(extra, m, q, k, v, x.unsqueeze(1), value=value)
            again = attention(*padded, longer, wide_x.squeeze(1))
            assert difference(again[:, :, :N], out, m) < EXACT
            assert (again.masked_select(~longer[:, None, :, None]) == 0).all()


@conformance("content")
@pytest.mark.parametrize("kind", ["prefix", "scatter"])
def test_content_of_padding_changes_nothing(case: Case, kind: str):
    attention = case.build()
    first, second = inputs(), inputs(seed=1)
    m = mask(kind)
    keep = [m[:, None, :, None]] * 3 + [m[:, :, None]]
    changed = [torch.where(r, a, 10 * b) for r, a, b in zip(keep, first, second, strict=True)]
    *tensors, x = first
    *others, other_x = changed
    assert difference(attention(*others, m, other_x), attention(*tensors, m, x)) < EXACT


@conformance("batch")
@pytest.mark.parametrize("kind", MASKS)
def test_batch_independence(case: Case, kind: str):
    """An example alone, trimmed to its own length, equals the same one in a batch."""
    attention = case.build()
    q, k, v, x = inputs()
    m = mask(kind)
    out = attention(q, k, v, m, x)
    for b in range(2):
        n = N if kind != "prefix" else int(m[b].sum())
        one = slice(b, b + 1)
        alone = attention(*(t[one, :, :n] for t in (q, k, v)), m[one, :n], x[one, :n])
        assert difference(alone, out[one, :, :n]) < EXACT


@conformance("heads")
def test_heads_do_not_reach_each_other_unless_declared(case: Case):
    attention = case.build()
    q, k, v, x = inputs()
    scale = torch.tensor([1.0, 4.0]).view(1, 2, 1, 1)
    changed = attention(scale * q, scale * k, scale * v, mask("scatter"), x)
    gap = difference(changed[:, 0], attention(q, k, v, mask("scatter"), x)[:, 0])
    assert gap > VISIBLE if attention.traits().mixes_heads else gap < EXACT


@conformance("all_padded")
def test_all_padded_example(case: Case):
    """An example without a token comes out 0, with finite gradients, whatever stands there."""
    attention = case.build().train()
    m = mask("prefix")
    m[1] = False
    q, k, v, x = (t.requires_grad_() for t in inputs())
    poison = m[:, None, :, None]
    poisoned = [t.masked_fill(~poison, float("nan")) for t in (q, k, v)]
    out = attention(*poisoned, m, x.masked_fill(~m.unsqueeze(-1), float("nan")))
    assert (out[1] == 0).all()
    assert out.isfinite().all()
    out.square().sum().backward()
    for name, p in [("q", q), ("k", k), ("v", v), *attention.named_parameters()]:
        assert p.grad is None or p.grad.isfinite().all(), name
        if p.grad is not None and name in "qkv":
            assert (p.grad.masked_select(~poison) == 0).all()


# ---------------------------------------------------------------------- declared facts


@conformance("constant")
@pytest.mark.parametrize("kind", MASKS)
def test_constant_values(case: Case, kind: str):
    """Constant values come out unchanged if and only if `row_stochastic` is declared."""
    attention = case.build()
    q, k, v, x = inputs(tame=True)
    m = mask(kind)
    constant = v[:, :, :1].expand_as(v)
    gap = difference(attention(q, k, constant, m, x), constant, m)
    assert gap < EXACT if attention.traits().row_stochastic else gap > VISIBLE


@conformance("permutation")
@pytest.mark.parametrize("kind", MASKS)
def test_permutation(case: Case, kind: str):
    """Permuting tokens permutes outputs if and only if `equivariant` is declared."""
    denied = not case.build().traits().equivariant
    n = 640 if denied else 64  # several blocks, windows, segments of whatever ties it to positions
    attention = case.build(max_len=n)
    q, k, v, x = inputs(n)
    m = mask(kind, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    moved = attention(*(t[:, :, order] for t in (q, k, v)), m[:, order], x[:, order])
    gap = difference(moved, attention(q, k, v, m, x)[:, :, order], m[:, order])
    assert gap > VISIBLE if denied else gap < EXACT


@conformance("compares")
def test_weights_come_from_queries_and_keys_as_declared(case: Case):
    """Other keys give another output if and only if `compares` is declared."""
    attention = case.build()
    q, k, v, x = inputs(tame=True)
    moved = difference(attention(q, k.flip(2), v, None, x), attention(q, k, v, None, x))
    assert (moved > VISIBLE) == attention.traits().compares


@conformance("convex")
def test_convex(case: Case):
    """Outputs are averages of the valid values if and only if `convex` is declared."""
    attention = case.build()
    q, k, v, x = inputs()
    m = mask("scatter")
    if (
        attention.traits().has_matrix and not attention.traits().convex
    ):  # outputs may hide what the weights show
        A = rows(attention.matrix(2 * q, 2 * k, m, x), m)
        assert A.min() < -VISIBLE or (A.sum(-1) - 1).abs().max() > VISIBLE
        return
    real = m[:, None, :, None]
    low = v.masked_fill(~real, torch.inf).amin(2, keepdim=True)
    high = v.masked_fill(~real, -torch.inf).amax(2, keepdim=True)
    out = attention(q, k, v, m, x)
    excess = rows(torch.maximum(low - out, out - high), m).max()
    assert excess < EXACT if attention.traits().convex else excess > VISIBLE


@conformance("scale")
def test_scale_of_the_features(case: Case, monkeypatch: pytest.MonkeyPatch):
    """A constant factor on the features cancels if and only if `scale_free` is declared."""
    attention = case.build()
    if not isinstance(attention, KernelAttention) or "n_layers" in case.options:
        pytest.skip("no feature map")
    q, k, v, x = inputs(tame=True)
    m = mask("scatter")
    out = attention(q, k, v, m, x)
    features, calls = attention.features, []

    def scaled(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        calls.append(1)
        phi_q, phi_k = features(q, k, mask)
        return 3 * phi_q, 0.5 * phi_k

    monkeypatch.setattr(attention, "features", scaled)
    monkeypatch.setattr(attention, "fusible", False, raising=False)  # not past the features
    gap = difference(attention(q, k, v, m, x), out, m)
    assert calls
    assert gap < EXACT if attention.scale_free else gap > VISIBLE


# ---------------------------------------------------------------------- gradients, precision


@conformance("gradients")
def test_gradients(any_case: Case):
    """Finite differences against autograd, for inputs and parameters; one example is empty."""
    if str(any_case) == "synthesizer,official":
        pytest.skip("subtracts 1e10, which rounds away what finite differences need")
    n = 9
    m = torch.tensor([[True, False] + [True] * 6 + [False], [True] * n, [False] * n])
    x = torch.randn(3, n, H * 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    both = any_case.cls.declared.causal_form and any_case in strict_cases()
    for causal in (False, True) if both else (False,):
        attention = any_case.build(head_dim=4, max_len=64, causal=causal)
        names = [name for name, _ in attention.named_parameters()]
        state = attention.get_extra_state()

        def f(*given: Tensor, attention=attention, names=names, state=state) -> Tensor:
            attention.set_extra_state(state)  # what is drawn in every forward is the same one
            named = dict(zip(names, given[3:], strict=True))
            return torch.func.functional_call(attention, named, (*given[:3], m, x))

        given = [*qkv(3, H, n, 4), *(p.detach() for p in attention.parameters())]
        given = [t.clone().requires_grad_() for t in given]
        assert torch.autograd.gradcheck(f, given, fast_mode=True, atol=1e-6)


@conformance("gradients")
def test_second_derivatives_are_right_or_refused(case: Case):
    """Along one direction; q, k and v are one tensor, which the loss has beside them."""
    attention, (q, _, direction, x) = case.build(), inputs(9)
    state = attention.get_extra_state()

    def slope(q: Tensor) -> Tensor:
        attention.set_extra_state(state)
        loss = (q + attention(q, q, q, None, x)).square().sum()
        return torch.autograd.grad(loss, q, create_graph=True)[0].sum()

    try:
        (second,) = torch.autograd.grad(slope(q.requires_grad_()), q)
    except luna.LunaError:
        return
    except RuntimeError as error:
        if "is not implemented" not in str(error):  # by torch's own attention
            raise
        return
    step = 1e-5 * direction
    moved = (slope(q + step) - slope(q - step)) / 2e-5
    assert torch.allclose((second * direction).sum(), moved, rtol=1e-4, atol=1e-4)


@conformance("learns")
def test_every_parameter_learns(case: Case):
    attention = case.build().train()
    if not list(attention.parameters()):
        pytest.skip("no parameters")
    q, k, v, x = inputs()
    attention(q, k, v, mask("prefix"), x).square().sum().backward()
    idle = [name for name, p in attention.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle


@conformance("half_precision")
def test_half_precision(any_case: Case):
    """bfloat16 inputs, autocast on, against float32: the very same where the method asks for full
    precision. No overflow at thirty times the scale."""
    attention, same = (any_case.build().float() for _ in range(2))
    *tensors, x = (t.bfloat16() for t in inputs())
    m = mask("prefix")
    exact = attention(*(t.float() for t in tensors), m, x.float())
    with torch.autocast("cpu", torch.bfloat16):
        half = same(*tensors, m, x)  # another module: a profile may draw in every forward
        large = attention(*(30 * t for t in tensors), m, x)
    assert half.dtype == torch.bfloat16
    assert large.isfinite().all()
    assert (half.float() - exact).norm() < 2e-2 * exact.norm()
    assert torch.equal(half, exact.bfloat16()) or not attention.traits().full_precision


@conformance("float32")
def test_float32_is_close_to_float64(case: Case):
    attention = case.build()
    *tensors, x = inputs()
    m = mask("scatter")
    exact = attention(*tensors, m, x)
    single = attention.float()(*(t.float() for t in tensors), m, x.float())
    assert single.dtype == torch.float32
    assert (single.double() - exact).norm() < 1e-4 * exact.norm()


@conformance("extreme")
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e3])
def test_extreme_inputs_stay_finite(case: Case, scale: float):
    attention = case.build().float()
    q, k, v, x = (t.float() for t in inputs())
    q, k, v = ((scale * t).requires_grad_() for t in (q, k, v))
    out = attention(q, k, v, mask("prefix"), x)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


# ---------------------------------------------------------------------- randomness, state


def train_output(attention: luna.Attention, seed: int = 0) -> Tensor:
    q, k, v, x = inputs()
    torch.manual_seed(seed)
    return attention.train()(q, k, v, mask("prefix"), x).detach()


@conformance("eval")
def test_evaluation_is_deterministic(case: Case):
    attention = case.build(dropout=0.5)
    q, k, v, x = inputs()
    first = attention(q, k, v, mask("prefix"), x)
    train_output(attention)  # whatever training draws, evaluation does not
    attention.eval()
    state = torch.get_rng_state()
    second = attention(q, k, v, mask("prefix"), x)
    assert torch.equal(torch.get_rng_state(), state)
    again = attention(q, k, v, mask("prefix"), x)
    assert torch.equal(second, again)
    if not list(attention.buffers()):  # a buffer may follow training: a redraw, a running average
        assert torch.equal(first, second)


@conformance("seed")
def test_a_seed_determines_everything(case: Case):
    first, second = (case.build(init=3, seed=7, dropout=0.1) for _ in range(2))
    for step in range(2):
        assert torch.equal(train_output(first, step), train_output(second, step))


@conformance("state")
def test_state_dict_round_trip(case: Case):
    """All a method has come to, its random stream included, is in a file of plain tensors."""
    trained, other = case.build(init=1, seed=1), case.build(init=2, seed=2)
    train_output(trained)
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    q, k, v, x = inputs()
    m = mask("prefix")
    assert torch.equal(other.eval()(q, k, v, m, x), trained.eval()(q, k, v, m, x))
    for step in range(2):
        assert torch.equal(train_output(other, step), train_output(trained, step))


@conformance("copy")
def test_deep_copy(case: Case):
    attention = case.build()
    train_output(attention)
    twin = copy.deepcopy(attention)
    assert torch.equal(train_output(twin), train_output(attention))


@conformance("dropout")
def test_dropout_as_declared(case: Case):
    off, on = (train_output(case.build(dropout=p)) for p in (0.0, 0.5))
    assert torch.equal(off, on) != case.build().traits().uses_dropout


@conformance("layers")
def test_layers_differ_as_declared(case: Case):
    """With the same parameters; layers are drawn apart."""
    slot = {"n_layers": 2} if "n_layers" not in case.options else {}
    first, last = (case.build(layer=layer, **slot) for layer in (0, 1))
    same = first.state_dict().keys() == last.state_dict().keys()
    if same:
        last.load_state_dict(first.state_dict())
        same = torch.equal(train_output(first), train_output(last))
    assert same != case.cls.declared.layers_differ


# ---------------------------------------------------------------------- cost


@conformance("memory")
def test_memory_grows_as_declared(case: Case):
    """The largest tensor of a training step and the most bytes alive at once, at twice the length.
    Of the quadratic methods only the fused softmax does without an n x n tensor."""
    assert_growth(
        case, 2048 if case.cls.declared.linear_in_n else 1024
    )  # from 2,048 some work in blocks
    if case.cls.declared.causal_form:
        assert_growth(case, 512, causal=True)


def assert_growth(case: Case, short: int, **slot: bool) -> None:
    largest, peaks = [], []
    for n in (short, 2 * short):
        attention = case.build(n_heads=1, max_len=n, **slot).float().train()
        q, k, v, x = (t.float().requires_grad_() for t in inputs(n, batch=1, heads=1))

        with Sizes() as sizes:
            attention(q, k, v, mask_of("prefix", 1, n), x).sum().backward()
        largest.append(sizes.largest)
        peaks.append(sizes.peak)
        assert not (
            case.cls.declared.linear_in_n and any(shape.count(n) > 1 for shape in sizes.shapes)
        )
    if case.cls.declared.linear_in_n or case.name == "softmax":
        assert largest[1] <= 2.5 * largest[0]  # 4 for n x n; blocks at the ends count too
        assert peaks[1] <= 2.5 * peaks[0]
    else:
        assert peaks[1] > 3.5 * peaks[0]


# ---------------------------------------------------------------------- description, options


@conformance("facts")
def test_facts_are_declared(case: Case):
    cls = case.cls
    assert cls.paper.title
    assert cls.paper.year > 1990
    assert cls.paper.url.startswith("https://")
    assert cls.complexity.startswith("O(")
    assert cls.profiles[0] == "strict"
    assert set(cls.profiles) <= set(luna.base.PROFILES)
    assert set(cls.declared.exempt) <= {getattr(f, "conformance", None) for f in globals().values()}
    assert all(len(reason.split()) > 3 for reason in cls.declared.exempt.values())


@pytest.mark.parametrize("name", luna.names())
def test_every_profile_runs(name: str):
    q, k, v, x = inputs(32)
    for profile in luna.base.PROFILES:
        attention = Case(name).build(profile=profile)
        assert attention.profile in luna.get(name).profiles
        for m in (None, mask("prefix", 32)):
            assert attention(q, k, v, m, x).isfinite().all()
    with pytest.raises(LunaError, match="profile must be one of strict, published, official"):
        Case(name).build(profile="lenient")


# ---------------------------------------------------------------------- torch.compile

# (method, profile) whose training step leaves the graph, and why: the rest of it is compiled.
BREAKS = {
    ("bigbird", "published"): "its graph comes from numpy's generator",
    ("bigbird", "official"): "its graph comes from numpy's generator",
    ("informer", "strict"): "draws samples from its generator",
    ("informer", "published"): "draws samples from its generator",
    ("performer", "official"): "redraws its features in every forward",
    ("reformer", "official"): "draws rotations from its generator",
    ("skyformer", "strict"): "draws landmarks from its generator",
    ("skyformer", "published"): "draws landmarks from its generator",
}
SHORTER = {"lotformer": {"half_steps": 2}}  # compiling takes as long as there are steps
TRAINED = [(name, profile) for name in luna.names() for profile in luna.get(name).profiles]
# One of each kind: feature maps and custom operators, a product of weights, windows, low rank,
# hashing; a break of the graph, and profiles that draw.
TYPICAL = {
    ("luna", "strict"),
    ("linear", "strict"),
    ("softmax", "official"),
    ("longformer", "strict"),
    ("nystrom", "strict"),
    ("reformer", "strict"),
    ("informer", "published"),
    ("performer", "official"),
}


def typical(name: str, profile: str) -> object:
    marks = () if (name, profile) in TYPICAL else pytest.mark.rest
    return pytest.param(name, profile, marks=marks)


def compiled_step(name: str, profile: str, **how: object) -> None:
    """A compiled training step equals the eager one, values and gradients."""
    torch._dynamo.reset()
    attention = Case(name, SHORTER.get(name, {})).build(profile=profile).float().train()
    compiled = copy.deepcopy(attention)  # with its own random stream, at the same place
    compiled.compile(**how)
    q, k, v, x = (t.float().requires_grad_() for t in inputs())
    results = []
    for f in (attention, compiled):
        out = f(q, k, v, mask("prefix"), x)
        wanted = [t for t in (q, k, v, x, *f.parameters()) if t.requires_grad]
        gradients = torch.autograd.grad(out.square().sum(), wanted, materialize_grads=True)
        results.append([out, *gradients])
    for eager, other in zip(*results, strict=True):
        torch.testing.assert_close(other, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler's own,
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # both
@pytest.mark.parametrize(("name", "profile"), [typical(*which) for which in TRAINED])
def test_compiled_graph_equals_eager(name: str, profile: str):
    """In one graph, but for the methods that declare a break: those must have one. Backward passes
    are compiled under strict, three times as slow; the other profiles share most of them."""
    backend, breaks = "aot_eager" if profile == "strict" else "eager", (name, profile) in BREAKS
    if breaks:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled_step(name, profile, backend=backend, fullgraph=True)
    compiled_step(name, profile, backend=backend, fullgraph=not breaks)


@pytest.mark.rest
def test_machine_code_equals_eager():
    """The others are compiled to their graphs only."""
    compiled_step("luna", "strict", fullgraph=True)
