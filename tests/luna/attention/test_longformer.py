"""Longformer: the sliding window, global tokens, and agreement with the public implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from luna import LunaError

from ..kit import MASKS, N, build, difference, mask_of, qkv, softmax_attention


def windowed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, left: int, right: int, G=()):
    """The definition with a dense mask: band, global columns, global rows."""
    n = q.shape[2]
    visible = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        visible[i, max(0, i - left) : i + right + 1] = True
    for g in G:
        visible[g, :] = True
        visible[:, g] = True
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
    return scores.softmax(-1).nan_to_num(0.0) @ v


@pytest.mark.parametrize("kind", MASKS)
def test_a_window_over_everything_is_masked_softmax(kind: str):
    q, k, v = qkv()
    mask = mask_of(kind)
    expected = softmax_attention(q, k, v, mask)
    for options in (
        {"left": 63, "right": 63},
        {"left": 500, "right": 63},
        {"left": 1, "right": 2, "global_tokens": list(range(64))},
    ):
        assert difference(build("longformer", **options)(q, k, v, mask), expected, mask) < 1e-12


@pytest.mark.parametrize("kind", MASKS)
def test_a_window_of_one_returns_the_values(kind: str):
    q, k, v = qkv()
    mask = mask_of(kind)
    out = build("longformer", left=0, right=0)(q, k, v, mask)
    assert difference(out, v, mask) == 0
    assert not out.masked_select(~mask[:, None, :, None]).any()


@pytest.mark.parametrize(("left", "right"), [(3, 5), (0, 7), (20, 1), (15, 16), (16, 16), (40, 40)])
@pytest.mark.parametrize("n", [64, 100, 127])
def test_gradient_pattern_is_the_band(left: int, right: int, n: int):
    attention = build("longformer", n_heads=1, left=left, right=right)
    q, k, _ = qkv(1, 1, n)
    values = torch.eye(n, dtype=q.dtype).expand(1, 1, n, n).clone().requires_grad_()
    k.requires_grad_()
    out = attention(q, k, values)
    t = torch.arange(n)
    offset = t[None, :] - t[:, None]
    band = (-left <= offset) & (offset <= right)
    assert torch.equal(out[0, 0] > 0, band)
    interior = slice(left, n - right)
    assert (band[interior].sum(-1) == left + 1 + right).all()
    (grad,) = torch.autograd.grad(out[0, 0, n // 2] @ t.to(out), k)
    assert torch.equal(grad[0, 0].abs().sum(-1) > 0, band[n // 2])


def test_the_default_window_has_255_keys_to_the_left_and_256_to_the_right():
    attention = build("longformer", max_len=600, n_heads=1, head_dim=4)
    q, k, _ = qkv(1, 1, 600, 4)
    row = attention(q, k, torch.eye(600, dtype=q.dtype)[None, None])[0, 0, 300]
    assert row.nonzero().flatten().tolist() == list(range(300 - 255, 300 + 256 + 1))
    assert (row > 0).sum() == 512


@pytest.mark.parametrize(("left", "right"), [(3, 5), (0, 7), (20, 4)])
def test_a_crop_gives_the_rows_whose_window_it_holds(left: int, right: int):
    q, k, v = qkv(n=128)
    attention = build("longformer", left=left, right=right)
    whole = attention(q, k, v)
    for a, b in ((0, 128), (5, 60), (17, 128), (30, 91)):
        crop = attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b])
        inner = slice(a + left, b - right)
        assert difference(whole[:, :, inner], crop[:, :, left : b - a - right]) < 1e-12
        if b < 128:  # the rows at the cut have lost keys
            assert difference(whole[:, :, b - right : b], crop[:, :, -right:]) > 0.1


@pytest.mark.parametrize("G", [(), (0,), (0, 17, 63), (64, 100)])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("n", [61, 100, 128])
def test_chunks_are_the_dense_definition_for_every_length(n: int, kind: str, G: tuple):
    """A global token that lies in the window is counted once, one beyond the end is not there."""
    q, k, v = qkv(n=n, d_v=7)
    mask = mask_of(kind, n=n)
    for left, right in ((3, 5), (30, 2), (0, 33)):
        attention = build("longformer", left=left, right=right, global_tokens=list(G))
        inside = [g for g in G if g < n]
        expected = windowed(q, k, v, mask, left, right, inside)
        assert difference(attention(q, k, v, mask), expected, mask) < 1e-12


@pytest.mark.parametrize("kind", MASKS)
def test_global_rows_may_have_projections_of_their_own(kind: str):
    """Only the rows: what others see of a global token is its ordinary key and value."""
    q, k, v = qkv()
    other = qkv(seed=1)
    mask, G = mask_of(kind), [1, 30]
    attention = build("longformer", left=3, right=3, global_tokens=G)
    plain = attention(q, k, v, mask)
    out = attention(q, k, v, mask, global_qkv=other)
    rows = torch.zeros(N, dtype=torch.bool)
    rows[G] = True
    assert torch.equal(out[:, :, ~rows], plain[:, :, ~rows])
    expected = softmax_attention(*other, mask)[:, :, rows]
    assert difference(out[:, :, rows], expected, mask[:, rows]) < 1e-12
    assert not out.masked_select(~mask[:, None, :, None]).any()
    assert torch.equal(attention(q, k, v, mask, global_qkv=(q, k, v)), plain)

    with pytest.raises(LunaError, match="no global_tokens"):
        build("longformer")(q, k, v, mask, global_qkv=other)


def test_global_projections_get_their_gradient_and_half_precision_stays_out():
    q, k, v = qkv()
    other = [t.requires_grad_() for t in qkv(seed=1)]
    attention = build("longformer", left=3, right=3, global_tokens=[0])
    attention(q, k, v, global_qkv=tuple(other)).square().sum().backward()
    assert [t.grad.abs().sum() > 0 for t in other] == [True] * 3
    assert not other[0].grad[:, :, 1:].any()

    half = [t.detach().bfloat16() for t in (q, k, v, *other)]
    exact = [t.float() for t in half]
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(*half[:3], global_qkv=tuple(half[3:]))
    expected = attention(*exact[:3], global_qkv=tuple(exact[3:]))
    assert torch.equal(out, expected.bfloat16())


def test_dropout_acts_in_training_only():
    q, k, v = qkv()
    options = {"left": 3, "right": 3, "global_tokens": [5]}
    attention = build("longformer", dropout=0.5, **options)
    assert torch.equal(attention(q, k, v), build("longformer", **options)(q, k, v))
    ones = attention.train()(q, k, torch.ones_like(v))
    for row in (5, 40):  # a global and an ordinary row
        assert (ones[:, :, row] - 1).abs().max() > 0.05


@pytest.mark.parametrize("G", [(), (0, 9)])
def test_equals_hugging_face(G: tuple, monkeypatch):
    """Its window of 16 is 8 to each side; its softmax is kept from casting to float32."""
    hf = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    from transformers import LongformerConfig

    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda t, dim, dtype=None: softmax(t, dim=dim)
    )
    config = LongformerConfig(
        hidden_size=16, num_attention_heads=2, attention_window=[16], attention_probs_dropout_prob=0
    )
    torch.manual_seed(0)
    layer = hf.LongformerSelfAttention(config, layer_id=0).double().eval()
    x = torch.randn(2, 64, 16, dtype=torch.float64)
    mask = mask_of("prefix")
    is_global = torch.zeros(2, 64, dtype=torch.bool)
    is_global[:, list(G)] = True
    marks = torch.where(is_global, 10000.0, torch.where(mask, 0.0, -10000.0)).double()
    with torch.no_grad():
        expected = layer(x, marks, ~mask, is_global, bool(G))[0]

        def heads(linear) -> Tensor:
            return linear(x).unflatten(-1, (2, 8)).transpose(1, 2)

        q, k, v = heads(layer.query), heads(layer.key), heads(layer.value)
        own = tuple(heads(t) for t in (layer.query_global, layer.key_global, layer.value_global))
        attention = build("longformer", head_dim=8, left=8, right=8, global_tokens=list(G))
        out = attention(q, k, v, mask, global_qkv=own if G else None)
    expected = expected.unflatten(-1, (2, 8)).transpose(1, 2)
    assert difference(out, expected, mask) < 1e-10
