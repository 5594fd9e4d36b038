"""Linformer: the projection along the sequence, its sharing and its three profiles."""

from __future__ import annotations

import math

import pytest
import torch

import luna

from ..kit import D, H, N, assert_defined, build, difference, qkv


def linformer(**options):
    """Projections of a size that matters in the fixture; float64."""
    return build("linformer", **({"k": 16, "init": "paper"} | options)).double()


def test_published_does_not():
    attention = linformer(profile="published")
    assert not list(attention.parameters())
    assert "E" in attention.state_dict()  # a resumed run must keep what it was trained with
    assert list(linformer(profile="published", trained=True).parameters())
    assert list(linformer(profile="official").parameters())
    assert not list(linformer(trained=False).parameters())


@pytest.mark.parametrize(
    ("share", "matrices"), [("none", 2 * H), ("kv", H), ("heads", 2), ("heads_kv", 1)]
)
def test_sharing(share, matrices):
    """Per head: softmax(q (E k)^T / sqrt(d)) F v with the E and F of that head."""
    attention = linformer(share=share, k=5)
    assert sum(p.numel() for p in attention.parameters()) == matrices * 5 * attention.max_len
    E, F = attention.E, attention.E if share in ("kv", "heads_kv") else attention.F
    assert not (share in ("none", "heads") and torch.equal(E, F))

    def expected(q, k, v, mask):
        k, v = (t.masked_fill(~mask[:, None, :, None], 0) for t in (k, v))
        return (q @ (E[..., :N] @ k).mT / D**0.5).softmax(-1) @ (F[..., :N] @ v)

    assert_defined(attention, expected, d_v=7)


def test_sharing_between_layers():
    options = {"share": "none", "share_layers": True}
    first, second = linformer(**options), linformer(**options)
    with pytest.raises(luna.LunaError, match="calls tie"):
        second(*qkv())
    for layer in (first, second):
        layer.tie(first)
    both = torch.nn.ModuleList([first, second])
    assert sum(p.numel() for p in both.parameters()) == 2 * H * 16 * first.max_len
    assert second.E is first.E
    assert second.F is first.F
    tensors = qkv()
    assert difference(first(*tensors), second(*tensors)) == 0

    apart = [linformer(), linformer()]
    for layer in apart:
        layer.tie(apart[0])
    assert not torch.equal(apart[0].E, apart[1].E)


@pytest.mark.parametrize(
    ("init", "std", "bound"),
    [
        ("normal", 0.02, None),
        ("paper", 64**-0.5, None),
        ("uniform", 64**-0.5 / 3**0.5, 64**-0.5),
        ("xavier", math.sqrt(2 / (64 + 512)), math.sqrt(6 / (64 + 512))),
    ],
)
def test_init(init, std, bound):
    torch.manual_seed(0)
    attention = build("linformer", n_heads=4, k=64, max_len=512, init=init)
    assert attention.E.shape == (4, 64, 512)
    for head in attention.E:  # every head is initialised, and alike
        assert head.std().item() == pytest.approx(std, rel=0.02)
        if bound:
            assert 0.99 * bound < head.abs().max() <= bound
    assert build("linformer", init_std=0.5).E.std().item() == pytest.approx(0.5, rel=0.02)
