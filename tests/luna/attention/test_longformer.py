"""Longformer: the sliding window, global tokens, and agreement with the public implementation."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from ..kit import assert_defined, build, difference, mask_of, qkv


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


def test_the_default_window_is_the_arenas():
    attention = build("longformer", max_len=600, n_heads=1, head_dim=4)
    q, k, _ = qkv(1, 1, 600, 4)
    row = attention(q, k, torch.eye(600, dtype=q.dtype)[None, None])[0, 0, 300]
    assert row.nonzero().flatten().tolist() == list(range(300 - 255, 300 + 256 + 1))
    assert (row > 0).sum() == 512


@pytest.mark.parametrize("G", [(), (0,), (0, 17, 63), (64, 100)])
@pytest.mark.parametrize("n", [61, 100, 128])
def test_chunks_are_the_dense_definition_for_every_length(n: int, G: tuple):
    """A global token that lies in the window is counted once, one beyond the end is not there."""
    inside = [g for g in G if g < n]
    for left, right in ((3, 5), (30, 2), (0, 33)):
        attention = build("longformer", left=left, right=right, global_tokens=list(G))
        definition = partial(windowed, left=left, right=right, G=inside)
        assert_defined(attention, definition, n=n, d_v=7)


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
    for part in ("query", "key", "value"):  # global rows have projections of their own there
        getattr(layer, f"{part}_global").load_state_dict(getattr(layer, part).state_dict())
    with torch.no_grad():
        expected = layer(x, marks, ~mask, is_global, bool(G))[0]

        def heads(linear) -> Tensor:
            return linear(x).unflatten(-1, (2, 8)).transpose(1, 2)

        q, k, v = heads(layer.query), heads(layer.key), heads(layer.value)
        attention = build("longformer", head_dim=8, left=8, right=8, global_tokens=list(G))
        out = attention(q, k, v, mask)
    expected = expected.unflatten(-1, (2, 8)).transpose(1, 2)
    assert difference(out, expected, mask) < 1e-10
