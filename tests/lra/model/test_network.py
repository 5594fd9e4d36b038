"""The whole network: its size, and its forward pass written again from the published codes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lra import data
from lra.base.config import Interaction, Pooling, Positions
from lra.base.errors import UserError
from lra.model.build import build

from ..conftest import read_settings
from .kit import (
    CLEAN,
    NARROW,
    OFFICIAL,
    SKYFORMER,
    TINY,
    Task,
    affine,
    count,
    example,
    network,
    shake,
    sinusoids,
)

CIFAR = ("n_layers=1", "n_heads=1", "d_model=32", "qkv_dim=32", "mlp_dim=64")
SMALL = (
    ("listops", 209_802),
    ("text", 370_562),
    ("retrieval", 395_138),
    ("pathfinder", 173_954),
    ("image", 158_602),
)
SIZES = [((p, t, "small"), n) for p in ("skyformer", "lotformer", "luna") for t, n in SMALL]
SIZES += [(("official", "image", "official", *(f"model.{word}" for word in CIFAR)), 52_266)]


@pytest.mark.parametrize(("names", "expected"), SIZES)
def test_parameters_of_released_models(names, expected):
    protocol, model = read_settings(*names)
    with torch.device("meta"):
        net = build(data.get(names[1]), {"name": "softmax", "dwc": "none"}, model, protocol, 0)
    assert count(net) == expected


# ---------------------------------------------------------------- the forward pass, written again


def layer_norm(x, state, name, eps):
    mu = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mu * mu
    return (x - mu) / (variance + eps).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def erf_gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def heads_of(x, model):
    B, n, _ = x.shape
    return x.reshape(B, n, model.n_heads, model.qkv_dim // model.n_heads).permute(0, 2, 1, 3)


def official_weights(scores, mask):
    """-1e10 where query or key is masked: a masked query is left with equal weights for all."""
    both = (mask[:, :, None] & mask[:, None, :])[:, None]
    A = scores.masked_fill(~both, -torch.inf).softmax(-1)
    return torch.where(mask[:, None, :, None], A, torch.full_like(A, 1 / A.shape[-1]))


def skyformer_weights(scores, mask):
    return (scores - 1e6 * (~mask[:, None, None, :]).double()).softmax(-1)


def encoder(x, mask, state, model, weights, gelu, eps):
    """Pre-norm blocks on x (B, n, E) and the final LayerNorm."""
    B, n, _ = x.shape
    for layer in range(model.n_layers):
        block = f"encoder.blocks.{layer}"
        h = layer_norm(x, state, f"{block}.norm1", eps)
        q, k, v = affine(h, state, f"{block}.attention.qkv").split(model.qkv_dim, -1)
        q, k, v = (heads_of(t, model) for t in (q, k, v))
        scores = q / math.sqrt(model.qkv_dim // model.n_heads) @ k.transpose(2, 3)
        mixed = (weights(scores, mask) @ v).permute(0, 2, 1, 3).reshape(B, n, model.qkv_dim)
        x = x + affine(mixed, state, f"{block}.attention.out")
        h = layer_norm(x, state, f"{block}.norm2", eps)
        x = x + affine(gelu(affine(h, state, f"{block}.mlp.0")), state, f"{block}.mlp.3")
    return layer_norm(x, state, "encoder.norm", eps)


def official_vectors(ids, state, model, style):
    """The encoder of the 2020 code on one input, pooled."""
    mask = ids > 0
    x = state["embedding.token.weight"][ids]
    if style.pooling is Pooling.cls:
        cls = state["embedding.cls"].reshape(1, 1, -1).repeat(len(x), 1, 1)
        x = torch.cat([cls, x], 1)
        mask = torch.cat([mask[:, 0:1], mask], 1)
    n = x.shape[1]
    learned = style.positions is Positions.learned
    x = x + (state["embedding.position.table"][:n] if learned else sinusoids(n, x.shape[2]))
    x = encoder(x, mask, state, model, official_weights, tanh_gelu, 1e-6)
    return x.sum(1) / n if style.pooling is Pooling.mean else x[:, 0]


def official_logits(ids, state, model, style, head="head"):
    pooled = official_vectors(ids, state, model, style)
    return affine(affine(pooled, state, f"{head}.0").relu(), state, f"{head}.2")


@pytest.mark.parametrize(
    ("pooling", "positions", "n", "model"),
    [
        (Pooling.cls, Positions.learned, 24, NARROW),
        (Pooling.mean, Positions.fixed, 17, TINY),
        (Pooling.cls, Positions.fixed, 17, TINY),
        (Pooling.mean, Positions.learned, 24, NARROW),
    ],
)
def test_official_model(pooling, positions, n, model):
    style = replace(OFFICIAL, pooling=pooling, positions=positions)
    net = shake(network(style, model=model, profile="official"))
    ids, _ = example([n, 9, 1, 0], n)
    ids[0, 3] = 0  # a black pixel inside
    ids = torch.cat([ids, ids[:1].roll(-3, 1)])  # and one in front, which masks the CLS token
    torch.testing.assert_close(
        net(ids, ids > 0), official_logits(ids, net.state_dict(), model, style), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("interaction", list(Interaction))
def test_official_dual_encoder(interaction):
    style = replace(OFFICIAL, pooling=Pooling.first, interaction=interaction)
    net = shake(network(style, task=Task(2, dual=True), profile="official"))
    ids = torch.stack([example([24, 9, 5])[0], example([3, 24, 13], seed=1)[0]], 1)  # (B, 2, n)
    state = net.state_dict()
    a = official_vectors(ids[:, 0], state, TINY, style)
    b = official_vectors(ids[:, 1], state, TINY, style)
    features = [a, b] if interaction is Interaction.concat else [a, b, a * b, a - b]
    h = affine(torch.cat(features, -1), state, "head.classifier.0").relu()
    h = affine(h, state, "head.classifier.2").relu()
    assert h.shape[-1] == TINY.mlp_dim // 2
    expected = affine(h, state, "head.classifier.4")
    torch.testing.assert_close(net(ids, ids > 0), expected, rtol=0, atol=1e-10)


def skyformer_vectors(ids, mask, state):
    x = state["embedding.token.weight"][ids] + state["embedding.position.table"][: ids.shape[1]]
    x = encoder(x, mask, state, TINY, skyformer_weights, erf_gelu, 1e-5)
    return (x * mask[:, :, None]).sum(1) / ids.shape[1]


def test_skyformer_model():
    net = shake(network(SKYFORMER, profile="published"))
    ids, _ = example([24, 9, 1])
    ids[0, ::3] = 0
    mask, state = ids != 0, net.state_dict()
    pooled = skyformer_vectors(ids, mask, state)
    expected = affine(affine(pooled, state, "head.0").relu(), state, "head.2")
    torch.testing.assert_close(net(ids, mask), expected, rtol=0, atol=1e-10)


# ---------------------------------------------------------------- how it runs


@pytest.mark.parametrize("attention", ["softmax", "linear", "luna"])
def test_logits_stay_float32_under_autocast(attention):
    net = shake(network(attention=attention)).float()
    ids, mask = example([24, 9])
    exact = net(ids, mask)
    inside = []
    net.encoder.blocks[0].mlp[0].register_forward_hook(lambda m, i, out: inside.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(ids, mask)
    assert inside == [torch.bfloat16]
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("style", [CLEAN, OFFICIAL, SKYFORMER])
def test_compiles_in_one_graph(style, masked):
    net = shake(network(style, attention="linear"))
    ids, mask = example([24, 9])
    mask = mask if masked else None
    torch._dynamo.reset()  # what other tests compiled counts towards its limit of recompilations
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, mask), net(ids, mask), rtol=0, atol=1e-12)


def test_too_long_an_example():
    net = network(replace(CLEAN, pooling=Pooling.cls), length=8)
    net(torch.ones(2, 8, dtype=torch.long))
    with pytest.raises(UserError, match=r"9 ids, the network was built for 8"):
        net(torch.ones(2, 9, dtype=torch.long))
