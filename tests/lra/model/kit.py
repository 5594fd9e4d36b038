"""Small networks in double precision that the tests of lra/model share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from lra.base.config import DataRules, Mask, Model, Pad, Pooling
from lra.data.arrays import Scale
from lra.model.build import build

from ..conftest import read_settings


@dataclass
class Task:
    classes: int = 3
    vocab: int = 11
    stack: int = 1
    per_token: bool = False
    dual: bool = False
    causal: bool = False
    grid: tuple[int, int] | None = None
    scale: Scale | None = None
    channels: int = 0


SKYFORMER = read_settings("skyformer", "listops")[0].style
OFFICIAL = read_settings("official", "listops")[0].style
CLEAN = replace(SKYFORMER, mask_output=False, pooling=Pooling.masked_mean)

TINY = Model(
    "tiny",
    n_layers=2,
    d_model=12,
    n_heads=3,
    qkv_dim=12,
    mlp_dim=10,
    dropout=0,
    attention_dropout=0,
)


NARROW = replace(TINY, qkv_dim=6)  # projections narrower than the residual stream, as on Image


def protocol(style=CLEAN, length=24, profile="strict", vocab=11):
    rules = DataRules(length, length, Pad.full, Mask.length, vocab)
    return replace(read_settings("luna", "listops")[0], style=style, data=rules, profile=profile)


def network(
    style=CLEAN, *, task=None, attention="softmax", model=TINY, length=24, profile="strict", seed=0
):
    """Double precision, evaluation mode, and no parameter at a value that hides a mistake."""
    torch.manual_seed(seed)
    attention = attention if isinstance(attention, dict) else {"name": attention, "dwc": "none"}
    net = build(task or Task(), attention, model, protocol(style, length, profile), seed)
    return net.double().eval()


def shake(net):
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) * 0.4)
    return net


def count(net):
    return sum(p.numel() for p in net.parameters())


def example(lengths, n=24, vocab=11, seed=0):
    """ids (B, n) with zeros behind the real tokens, which are not zero, and their mask."""
    torch.manual_seed(seed)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    return torch.randint(1, vocab, (len(lengths), n)) * mask, mask


def sinusoids(n, width):
    """One entry at a time, stored in float32."""
    table = torch.zeros(n, width, dtype=torch.float64)
    for pos in range(n):
        for i in range(0, width, 2):
            angle = pos * math.exp(-i * math.log(10_000) / width)
            table[pos, i] = math.sin(angle)
            if i + 1 < width:
                table[pos, i + 1] = math.cos(angle)
    return table.float().double()


def affine(x, state, name):
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out
