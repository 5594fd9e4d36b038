"""The contract of luna/base.py, for every registered attention: a method joins by existing.

What holds for some methods only is read from the facts they declare, and checked both ways: a
property declared must hold, one denied must fail. A method may excuse itself from a test with a
reason (`exempt = {"G9": "..."}`, by the names in the decorators); the test must then fail.
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

from .conftest import VARIANTS, Case, D, H, N, conformance
from .kit import Sizes, difference, extend, mask_of, qkv

EXACT, VISIBLE = 1e-10, 1e-7  # equal up to rounding; a difference nobody would call rounding
MASKS = ("full", "prefix", "scatter")
INDUCTOR = ("linear", "luna")  # compiled to machine code; the others to their graphs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = [Case(name) for name in luna.names()]
        cases += [Case(name, options) for name, more in VARIANTS.items() for options in more]
        metafunc.parametrize("case", cases, ids=str)


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


def rows(x: Tensor, m: Tensor) -> Tensor:
    """The valid rows (valid, H, e) of x (B, H, n, e)."""
    return x.transpose(1, 2)[m]


# ---------------------------------------------------------------------- shapes and numbers


@conformance("shape")
@pytest.mark.parametrize(("batch", "heads", "n"), [(1, 1, 1), (2, 1, 7), (1, 2, N)])
def test_shape(case: Case, batch: int, heads: int, n: int):
    attention = case.build(n_heads=heads)
    q, k, v, x = inputs(n, batch=batch, heads=heads)
    for m in (None, mask_of("scatter", batch, n)):
        out = attention(q, k, v, m, x)
        assert out.shape == v.shape
        assert out.dtype == torch.float64
        assert out.isfinite().all()


@conformance("d_v")
@pytest.mark.parametrize("d_v", [6, 24])
def test_values_of_another_width(case: Case, d_v: int):
    """Columns of v do not know each other: a part of them gives a part of the output."""
    attention = case.build()
    q, k, v, x = inputs(d_v=d_v)
    out = attention(q, k, v, mask("scatter"), x)
    assert out.shape == v.shape
    if attention.has_matrix:
        assert difference(attention.matrix(q, k, mask("scatter"), x) @ v, out) < EXACT * 1e2


@conformance("one_token")
def test_one_token(case: Case):
    """n = 1: a row-stochastic method can only return the value itself."""
    attention = case.build()
    q, k, v, x = inputs(1, tame=True)
    if attention.row_stochastic:
        assert difference(attention(q, k, v, None, x), v) < EXACT


@conformance("mask")
def test_no_mask_is_a_full_mask(case: Case):
    attention = case.build()
    q, k, v, x = inputs()
    assert difference(attention(q, k, v, None, x), attention(q, k, v, mask("full"), x)) < EXACT


@conformance("mask")
def test_wrong_mask_is_refused(case: Case):
    attention = case.build()
    q, k, v, x = inputs()
    for wrong in (mask("full").double(), mask("full").T, mask("full")[:, 1:]):
        with pytest.raises(LunaError, match=r"mask must be bool of shape \(B, n\)"):
            attention(q, k, v, wrong, x)


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
    if attention.bound_to_max_len:
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
        if "v .2" not in words and "none" not in words and attention.has_matrix:
            with pytest.raises(LunaError):
                attention.matrix(*arguments[:2], *arguments[3:])


# ---------------------------------------------------------------------- G1, G2: the implied matrix


@conformance("G1")
@pytest.mark.parametrize("kind", MASKS)
def test_G1_forward_is_the_matrix_times_v(case: Case, kind: str):
    attention = case.build()
    q, k, v, x = inputs()
    m = mask(kind)
    if not attention.has_matrix:
        with pytest.raises(LunaError, match="no implied attention matrix"):
            attention.matrix(q, k, m, x)
        return
    A = attention.matrix(q, k, m, x)
    assert A.shape == (2, H, N, N)
    assert (A.masked_select(~m[:, None, None, :]) == 0).all()
    out = attention(q, k, v, m, x)
    assert difference(A @ v, out) < EXACT * max(1, float(out.detach().abs().max()))


@conformance("cross")
def test_cross_attention_as_declared(case: Case):
    """Keys and values of another sequence, longer, shorter or as long: each query on its own,
    padded keys out of sight; or refused, where the method has no such form."""
    attention = case.build()
    for n, m in ((5, N), (N, 5), (N, N)):
        q, (_, k, v, _), x = inputs(n)[0], inputs(m, d_v=6, seed=1), inputs(n)[3]
        queries, keys = mask("prefix", n), mask("scatter", m)
        if not attention.cross_form:
            for call in (partial(attention, q, k, v), partial(attention.matrix, q, k)):
                with pytest.raises(LunaError, match=f"'{case.name}' has no cross-attention"):
                    call(queries, x, key_mask=keys)
            continue
        out = attention(q, k, v, queries, key_mask=keys)
        A = attention.matrix(q, k, queries, key_mask=keys)
        assert out.shape == (2, H, n, 6)
        assert difference(A @ v, out) < EXACT
        assert (A.masked_select(~keys[:, None, None, :]) == 0).all()
        assert (out.masked_select(~queries[:, None, :, None]) == 0).all()
        one = attention(q[:, :, :1], k, v, key_mask=keys)
        assert difference(one, attention(q, k, v, key_mask=keys)[:, :, :1]) < EXACT
        assert difference(one, attention(q, k, v)[:, :, :1]) > VISIBLE
    if attention.cross_form:
        both = mask("scatter")  # the same sequence on both sides is self-attention
        assert difference(attention(q, k, v, both, key_mask=both), attention(q, k, v, both)) < EXACT
        with pytest.raises(LunaError, match="one mask cannot mark 5 queries and 37 keys"):
            attention(q[:, :, :5], k, v, mask("full", 5))


@conformance("cross")
def test_causal_attention_and_public_profiles_refuse_other_keys(case: Case):
    if not case.cls.cross_form:
        pytest.skip("no cross-attention at all")
    q, (_, k, v, _) = inputs(5)[0], inputs()
    for profile in case.cls.profiles[1:]:
        with pytest.raises(LunaError, match=f"has no cross-attention .* under profile={profile}"):
            case.build(profile=profile)(q, k, v)
    if case.cls.causal_form and case.build().cross_form:
        with pytest.raises(LunaError, match=r"has no cross-attention .* with causal=True"):
            case.build(causal=True)(q, k, v)


@conformance("G2")
@pytest.mark.parametrize("chunk", [1, 7, 16, N])
def test_G2_step_is_parallel_is_masked_quadratic(case: Case, chunk: int):
    if not case.cls.causal_form:
        with pytest.raises(LunaError, match="has no causal form"):
            case.build(causal=True)
        with pytest.raises(LunaError, match="causal=True"):
            case.build().step(None, *(t[:, :, 0] for t in inputs()[:3]))
        return
    attention = case.build(causal=True)
    attention.chunk = chunk
    q, k, v, x = inputs(d_v=5)  # every causal method is a kernel method: any width will do
    out = attention(q, k, v, None, x)
    A = attention.matrix(q, k, None, x)
    assert (A.triu(1) == 0).all()
    assert difference(A @ v, out) < EXACT
    assert difference(attention.matrix(q, k, mask("scatter")) @ v,
                      attention(q, k, v, mask("scatter"))) < EXACT  # fmt: skip
    state = None
    for t in range(N):
        state, o = attention.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        assert difference(o, out[:, :, t]) < EXACT
    token = [s[:, :, 0] for s in (q, k, v)]
    for wrong, words in (
        ([s[:1] for s in token], "this state does not belong to these tokens"),
        ([token[0][..., :8], *token[1:]], "q must be"),
        ([s[:, :1] for s in token], "q must be"),
    ):
        with pytest.raises(LunaError, match=words):
            attention.step(state, *wrong)


@conformance("future")
def test_no_future_leak(case: Case):
    if not case.cls.causal_form:
        pytest.skip("no causal form")
    attention = case.build(causal=True)
    attention.chunk = 8
    q, k, v, x = (t.requires_grad_() for t in inputs())
    t = 20
    gradients = torch.autograd.grad(attention(q, k, v, None, x)[:, :, t].sum(), (q, k, v))
    for gradient in gradients:
        assert (gradient[:, :, t + 1 :] == 0).all()
    assert (gradients[2][:, :, : t + 1] != 0).any(-1).any(-1).all()


# ---------------------------------------------------------------------- G3: padding, batch


@conformance("G3")
@pytest.mark.parametrize("kind", ["prefix", "scatter"])
@pytest.mark.parametrize("extra", [1, 5, 50])
def test_G3_padding_invariance(case: Case, kind: str, extra: int):
    """PI: appended padding, of garbage or of NaN, changes no valid row and comes out 0."""
    attention = case.build()
    q, k, v, x = inputs()
    m = mask(kind)
    out = attention(q, k, v, m, x)
    for value in (None, float("nan")):
        longer, *padded, wide_x = extend(extra, m, q, k, v, x.unsqueeze(1), value=value)
        again = attention(*padded, longer, wide_x.squeeze(1))
        assert difference(again[:, :, :N], out, m) < EXACT
        assert (again.masked_select(~longer[:, None, :, None]) == 0).all()


@conformance("CI")
@pytest.mark.parametrize("kind", ["prefix", "scatter"])
def test_CI_content_of_padding(case: Case, kind: str):
    attention = case.build()
    first, second = inputs(), inputs(seed=1)
    m = mask(kind)
    keep = [m[:, None, :, None]] * 3 + [m[:, :, None]]
    changed = [torch.where(r, a, 10 * b) for r, a, b in zip(keep, first, second, strict=True)]
    *tensors, x = first
    *others, other_x = changed
    assert difference(attention(*others, m, other_x), attention(*tensors, m, x)) < EXACT


@conformance("BI")
@pytest.mark.parametrize("kind", MASKS)
def test_BI_batch_independence(case: Case, kind: str):
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


# ---------------------------------------------------------------------- G4 to G7: declared facts


@conformance("G4")
@pytest.mark.parametrize("kind", MASKS)
def test_G4_constant_values(case: Case, kind: str):
    """CV: constant values come out unchanged if and only if `row_stochastic` is declared."""
    attention = case.build()
    q, k, v, x = inputs(tame=True)
    m = mask(kind)
    constant = v[:, :, :1].expand_as(v)
    gap = difference(attention(q, k, constant, m, x), constant, m)
    assert gap < EXACT if attention.row_stochastic else gap > VISIBLE


@conformance("G5")
@pytest.mark.parametrize("kind", MASKS)
def test_G5_permutation(case: Case, kind: str):
    """PE: permuting tokens permutes outputs if and only if `equivariant` is declared."""
    denied = not case.cls.equivariant
    n = 640 if denied else 64  # several blocks, windows, segments of whatever ties it to positions
    attention = case.build(max_len=n)
    q, k, v, x = inputs(n)
    m = mask(kind, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    moved = attention(*(t[:, :, order] for t in (q, k, v)), m[:, order], x[:, order])
    gap = difference(moved, attention(q, k, v, m, x)[:, :, order], m[:, order])
    assert gap > VISIBLE if denied else gap < EXACT


@conformance("G6")
def test_G6_convex(case: Case):
    """Outputs are averages of the valid values if and only if `convex` is declared."""
    attention = case.build()
    q, k, v, x = inputs()
    m = mask("scatter")
    if attention.has_matrix and not attention.convex:  # outputs may hide what the weights show
        A = rows(attention.matrix(2 * q, 2 * k, m, x), m)
        assert A.min() < -VISIBLE or (A.sum(-1) - 1).abs().max() > VISIBLE
        return
    real = m[:, None, :, None]
    low = v.masked_fill(~real, torch.inf).amin(2, keepdim=True)
    high = v.masked_fill(~real, -torch.inf).amax(2, keepdim=True)
    out = attention(q, k, v, m, x)
    excess = rows(torch.maximum(low - out, out - high), m).max()
    assert excess < EXACT if attention.convex else excess > VISIBLE


@conformance("G7")
def test_G7_scale_of_the_features(case: Case, monkeypatch: pytest.MonkeyPatch):
    """A constant factor on the features cancels if and only if `scale_free` is declared."""
    attention = case.build()
    if not isinstance(attention, KernelAttention):
        pytest.skip("not a feature map method")
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


# ------------------------------------------------------------------- G8, G9: gradients, precision


@conformance("G8")
def test_G8_gradients(case: Case):
    """Finite differences against autograd, for inputs and parameters; one example is empty."""
    n = 5
    attention = case.build(head_dim=4, max_len=8)
    m = torch.tensor([[True, False, True, True, False], [True] * 5, [False] * 5])
    x = torch.randn(3, n, H * 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    names = [name for name, _ in attention.named_parameters()]

    def f(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(attention, named, (q, k, v, m, x))

    given = [*qkv(3, H, n, 4), *(p.detach() for p in attention.parameters())]
    given = [t.clone().requires_grad_() for t in given]
    assert torch.autograd.gradcheck(f, given, fast_mode=True)


@conformance("learns")
def test_every_parameter_learns(case: Case):
    attention = case.build().train()
    if not list(attention.parameters()):
        pytest.skip("no parameters")
    q, k, v, x = inputs()
    attention(q, k, v, mask("prefix"), x).square().sum().backward()
    idle = [name for name, p in attention.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle


@conformance("G9")
def test_G9_half_precision(case: Case):
    """bfloat16 inputs, autocast on, against float32, under every profile; no overflow at thirty
    times the scale."""
    for profile in case.cls.profiles:
        attention, same = (case.build(profile=profile).float() for _ in range(2))
        *tensors, x = (t.bfloat16() for t in inputs())
        m = mask("prefix")
        exact = attention(*(t.float() for t in tensors), m, x.float())
        with torch.autocast("cpu", torch.bfloat16):
            half = same(*tensors, m, x)  # another module: a profile may draw in every forward
            large = attention(*(30 * t for t in tensors), m, x)
        assert half.dtype == torch.bfloat16
        assert large.isfinite().all()
        assert (half.float() - exact).norm() < 2e-2 * exact.norm()


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
    assert torch.equal(off, on) != case.cls.uses_dropout


# ---------------------------------------------------------------------- cost


@conformance("flops")
def test_flops_grow_as_declared(case: Case):
    """Built on the meta device, as the compute gate does: nothing is allocated."""
    n = 2**16
    with torch.device("meta"):
        attention = luna.build(case.name, n_heads=H, head_dim=D, max_len=2 * n, **case.options)
    assert all(p.is_meta for p in attention.parameters())
    counts = [attention.flops(m) for m in (n, 2 * n)]
    assert all(type(c) is int for c in counts)
    growth = counts[1] / counts[0]
    assert 1.9 < growth < 2.2 if attention.linear_in_n else 3.8 < growth < 4.1
    assert attention.flops(n, 2 * D) > attention.flops(n, D) == attention.flops(n)
    assert case.build(n_heads=2 * H).flops(N) >= 2 * case.build().flops(N)


@conformance("memory")
def test_memory_grows_as_declared(case: Case):
    """The largest tensor of a training step and the most bytes alive at once, at twice the length.
    Of the quadratic methods only the fused softmax does without an n x n tensor."""
    largest, peaks = [], []
    for n in (1024, 2048):
        attention = case.build(n_heads=1, max_len=n).float().train()
        q, k, v, x = (t.float().requires_grad_() for t in inputs(n, batch=1, heads=1))

        with Sizes() as sizes:
            attention(q, k, v, mask_of("prefix", 1, n), x).sum().backward()
        largest.append(sizes.largest)
        peaks.append(sizes.peak)
    if case.cls.linear_in_n or case.name == "softmax":
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
    assert set(cls.exempt) <= {getattr(f, "conformance", None) for f in globals().values()}
    assert all(len(reason.split()) > 3 for reason in cls.exempt.values())


@conformance("profiles")
def test_every_profile_runs(case: Case):
    q, k, v, x = inputs(32)
    for profile in luna.base.PROFILES:
        attention = case.build(profile=profile)
        assert attention.profile in case.cls.profiles
        for m in (None, mask("prefix", 32)):
            assert attention(q, k, v, m, x).isfinite().all()
    with pytest.raises(LunaError, match="profile must be one of strict, published, official"):
        case.build(profile="lenient")


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler's own,
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # both
@pytest.mark.parametrize(("name", "profile"), TRAINED)
def test_compiled_graph_equals_eager(name: str, profile: str):
    """In one graph, but for the methods that declare a break: those must have one."""
    if (name, profile) in BREAKS:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled_step(name, profile, backend="aot_eager", fullgraph=True)
        compiled_step(name, profile, backend="aot_eager")
    else:
        compiled_step(name, profile, backend="aot_eager", fullgraph=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", INDUCTOR)
def test_compiled_equals_eager(name: str):
    """To machine code, for the methods whose speed the project argues about."""
    compiled_step(name, "strict", fullgraph=True)
