"""Small networks in double precision that the tests of lra/model share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from lra.base.config import (
    Clip,
    ClsMask,
    DataRules,
    Dev,
    Evaluation,
    Gelu,
    Init,
    Interaction,
    Mask,
    Model,
    Pad,
    Pooling,
    Positions,
    Protocol,
    Recipe,
    Schedule,
    Select,
    Style,
)
from lra.model import build


@dataclass
class Task:
    classes: int = 3
    vocab: int = 11
    stack: int = 1
    per_token: bool = False
    dual: bool = False
    grid: tuple[int, int] | None = None


SKYFORMER = Style(
    positions=Positions.learned, position_std=0.02, embedding_std=0.02, init=Init.torch,
    qkv_bias=True, out_bias=True, gelu=Gelu.erf, ln_eps=1e-5, mask_output=True,
    pooling=Pooling.mean, cls_mask=ClsMask.real, interaction=Interaction.nli, dual_hidden_layers=1,
)  # fmt: skip
OFFICIAL = Style(
    positions=Positions.fixed, position_std=0.02, embedding_std=1.0, init=Init.flax,
    qkv_bias=False, out_bias=False, gelu=Gelu.tanh, ln_eps=1e-6, mask_output=False,
    pooling=Pooling.cls, cls_mask=ClsMask.first,
    interaction=Interaction.concat, dual_hidden_layers=2,
)  # fmt: skip
CLEAN = replace(SKYFORMER, mask_output=False, pooling=Pooling.masked_mean)

TINY = Model(
    "tiny", n_layers=2, d_model=12, n_heads=3, qkv_dim=12, mlp_dim=10,
    dropout=0, attention_dropout=0,
)  # fmt: skip


NARROW = replace(TINY, qkv_dim=6)  # projections narrower than the residual stream, as on Image


def protocol(style=CLEAN, length=24, profile="strict", vocab=11):
    return Protocol(
        name="test", version=1, profile=profile, precision="32-true",
        data=DataRules(length, length, Pad.full, Mask.length, vocab),
        style=style,
        recipe=Recipe(4, 10, 0, Schedule.constant, 1e-3, [0.9, 0.98], 1e-8, 0.0, Clip.none, 1.0),
        evaluation=Evaluation(5, -1, Dev.train, False, Select.last, 0.0),
        tasks={},
    )  # fmt: skip


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
