"""The encoder and its attention slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import luna
from lra.base.config import Pooling

from .kit import CLEAN, TINY, Task, count, example, network


def test_layers_have_random_streams_of_their_own():
    net = network(seed=7)
    assert [b.attention.attention.slot.seed for b in net.encoder.blocks] == [7, 8]


def test_dropout_is_where_both_lineages_have_it():
    model = replace(TINY, n_layers=1, dropout=0.25, attention_dropout=0.125)
    net = network(model=model)
    places = {name: m.p for name, m in net.named_modules() if isinstance(m, nn.Dropout)}
    ours = {k: p for k, p in places.items() if ".attention.attention" not in k}
    assert ours == {
        "embedding.dropout": 0.25,
        "encoder.blocks.0.dropout": 0.25,
        "encoder.blocks.0.mlp.2": 0.25,
        "encoder.blocks.0.mlp.4": 0.25,
    }
    assert net.encoder.blocks[0].attention.attention.slot.dropout == 0.125


def test_layers_are_tied_to_the_first(monkeypatch):
    seen = []
    monkeypatch.setattr(luna.Attention, "tie", lambda self, first: seen.append((self, first)))
    net = network()
    layers = [block.attention.attention for block in net.encoder.blocks]
    assert seen == [(layer, layers[0]) for layer in layers]


def test_hidden_states_go_to_the_methods_that_need_them(monkeypatch):
    hidden_states = []
    softmax = luna.get("softmax")
    forward = softmax.forward
    monkeypatch.setattr(
        softmax,
        "forward",
        lambda self, *a, **k: hidden_states.append(a[4]) or forward(self, *a, **k),
    )
    net = network(model=replace(TINY, n_layers=1))
    ids, mask = example([24, 9])
    net(ids, mask)
    assert hidden_states == [None]
    reads = softmax.declared.but(needs_x=True, cross_form=False)
    monkeypatch.setattr(softmax, "declared", reads)
    net = network(model=replace(TINY, n_layers=1))
    net(ids, mask)
    block = net.encoder.blocks[0]
    assert torch.equal(hidden_states[1], block.norm1(net.embedding(ids, mask)[0]))


@pytest.mark.parametrize(
    ("kind", "grid"), [("conv1d", None), ("conv2d", (4, 6)), ("conv1d_long", None)]
)
@pytest.mark.parametrize("pooling", [Pooling.masked_mean, Pooling.cls])
def test_local_branch_adds_a_convolution_of_the_values(kind, grid, pooling):
    style, facts = replace(CLEAN, pooling=pooling), Task(grid=grid)
    plain = network(style, task=facts)
    net = network(style, task=facts, attention={"name": "softmax", "dwc": kind})
    extra = {k: v for k, v in net.named_parameters() if ".local." in k}
    assert extra
    assert count(net) == count(plain) + sum(v.numel() for v in extra.values())
    net.load_state_dict(plain.state_dict(), strict=False)

    layer, bare = net.encoder.blocks[0].attention, plain.encoder.blocks[0].attention
    x, mask = net.embedding(*example([24, 9]))
    v = layer.qkv(x)[..., 24:].unflatten(-1, (3, 4)).transpose(1, 2)  # (B, H, n, d)
    conv = layer.local(v, mask).transpose(1, 2).flatten(2)
    assert conv.abs().max() > 0
    torch.testing.assert_close(
        layer(x, mask), bare(x, mask) + conv @ layer.out.weight.T, rtol=0, atol=1e-10
    )
    if pooling is Pooling.cls:
        assert not conv[:, 0].any()
