"""Initial weights of the published codes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lra.base.config import Positions
from lra.model.build import build

from .kit import OFFICIAL, SKYFORMER, TINY, Task, protocol

# ---------------------------------------------------------------- how weights start

LARGE = replace(TINY, n_layers=1, d_model=96, n_heads=4, qkv_dim=64, mlp_dim=160)


def fresh(style, **kwargs):
    torch.manual_seed(0)
    return build(
        Task(), {"name": "softmax"}, LARGE, protocol(style, length=500, vocab=300, **kwargs), 0
    )


def test_flax_initialisation():
    net = fresh(replace(OFFICIAL, positions=Positions.learned))
    state = net.state_dict()
    E, qkv, F_ = LARGE.d_model, LARGE.qkv_dim, LARGE.mlp_dim

    def uniform(name, weight, fan_in, fan_out):
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert weight.abs().max() <= bound, name
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03), name

    block = "encoder.blocks.0"
    stacked = state[f"{block}.attention.qkv.weight"]
    assert stacked.shape == (3 * qkv, E)
    for part in stacked.chunk(3):  # each on its own: stacking must not shrink the range
        uniform("qkv", part, E, qkv)
    uniform("out", state[f"{block}.attention.out.weight"], qkv, E)
    uniform("up", state[f"{block}.mlp.0.weight"], E, F_)
    uniform("down", state[f"{block}.mlp.3.weight"], F_, E)
    for name in (f"{block}.mlp.0.bias", f"{block}.mlp.3.bias"):
        assert state[name].std().item() == pytest.approx(1e-6, rel=0.2)
    for name, fan_in in (("head.0.weight", E), ("head.2.weight", F_)):
        scaled = state[name] * math.sqrt(fan_in)
        assert scaled.std().item() == pytest.approx(1, rel=0.07)
        assert scaled.abs().max() <= 2 / 0.8796 + 1e-3  # a normal cut off at two of its own sigmas
        assert scaled.abs().max() > 2
    assert not state["head.0.bias"].any()
    assert not state["head.2.bias"].any()
    assert not state["embedding.cls"].any()
    assert state["embedding.token.weight"].std().item() == pytest.approx(1.0, rel=0.03)
    assert state["embedding.position.table"].std().item() == pytest.approx(0.02, rel=0.03)
    assert state["embedding.position.table"].shape == (501, E)
    assert not any(k.endswith(("qkv.bias", "out.bias")) for k in state)


def test_torch_initialisation():
    state = fresh(SKYFORMER).state_dict()
    for name, weight in state.items():
        if name.endswith("weight") and "norm" not in name and "embedding" not in name:
            bound = 1 / math.sqrt(weight.shape[1])
            for tensor in (weight, state[name.replace("weight", "bias")]):
                assert tensor.abs().max() <= bound, name
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.06), name
            assert state[name.replace("weight", "bias")].any(), name
    assert state["embedding.token.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    assert state["embedding.token.weight"][0].any()  # the padding row is drawn like the others
    assert state["embedding.position.table"].std().item() == pytest.approx(0.02, rel=0.03)
    assert state["encoder.norm.weight"].eq(1).all()
