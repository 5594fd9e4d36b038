"""The backbone and the embedding, with weights that are formulas, so that no draw is in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import luna
from lra.base.config import (
    ClsMask,
    DataRules,
    Gelu,
    Init,
    Mask,
    Model,
    Pad,
    Pooling,
    Positions,
    Style,
)
from lra.data.arrays import Scale
from lra.model.build import build
from lra.model.embedding import Embedding
from lra.model.rotary import Rotary
from luna import qkv
from luna.dropout import Dropout, attend

from .compare import Numbers
from .made import in_float64, norm_of, small

LENGTHS, N, WIDTH, VOCAB = (9, 4, 1), 9, 8, 7
SIZES = Model(
    "made",
    n_layers=2,
    d_model=WIDTH,
    n_heads=2,
    qkv_dim=WIDTH,
    mlp_dim=6,
    dropout=0.2,
    attention_dropout=0.2,
)


@dataclass
class Shape:
    """What a network needs to know of a task."""

    classes: int = 3
    vocab: int = VOCAB
    stack: int = 1
    per_token: bool = False
    dual: bool = False
    causal: bool = False
    grid: tuple[int, int] | None = None
    scale: Scale | None = None
    channels: int = 0


def waves(*shape: int, shift: float = 0.0) -> Tensor:
    """Numbers between -1 and 1 that no generator draws."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) * 1.7 + shift).cos().view(shape)


def by_formula(network: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, (_, p) in enumerate(sorted(network.named_parameters())):
            p.copy_(0.4 * waves(*p.shape, shift=i) + 0.1)
    return network


def mask() -> Tensor:
    return torch.arange(N) < torch.tensor(LENGTHS)[:, None]


class Given(nn.Module):
    """In place of an embedding: vectors that are a formula of the ids."""

    def __init__(self, max_len: int):
        super().__init__()
        self.max_len = max_len

    def forward(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return waves(*ids.shape, WIDTH) + ids.unsqueeze(-1) / 10, mask


def style(**changes: object) -> Style:
    return replace(small().protocol.style, **changes)


BACKBONES: dict[str, tuple[Style, Shape]] = {
    "masked mean": (style(), Shape()),
    "mean": (style(pooling=Pooling.mean, mask_output=True, gelu=Gelu.tanh), Shape()),
    "first": (
        style(pooling=Pooling.first, qkv_bias=False, ln_eps=1e-2, init=Init.flax),
        Shape(),
    ),
    "tokens": (style(pooling=Pooling.none), Shape(per_token=True)),
    "pairs": (style(dual_hidden_layers=2), Shape(dual=True)),
}


def backbone() -> Numbers:
    """Logits and gradients of networks whose mixer is the plainest."""
    return {name: _network(*facts) for name, facts in BACKBONES.items()}


def _network(style: Style, shape: Shape) -> Numbers:
    rules = DataRules(N, N, Pad.full, Mask.length, VOCAB)
    protocol = replace(small().protocol, style=style, data=rules)
    attention = {"name": "uniform", "dwc": "conv1d"}
    torch.manual_seed(2)
    with in_float64():
        network = build(shape, attention, SIZES, protocol, seed=0)
    drawn = {name: norm_of([p]) for name, p in network.named_parameters() if name[0] != "e"}
    drawn["encoder"] = norm_of(network.encoder.parameters())
    by_formula(network)
    network.embedding = Given(N)  # type: ignore[assignment]
    ids = torch.arange(3 * N).view(3, N) % VOCAB
    real = mask()
    if shape.dual:
        ids, real = torch.stack((ids, ids.flip(0)), 1), torch.stack((real, real.flip(0)), 1)
    network.eval()
    logits = network(ids, real)
    (logits * waves(*logits.shape)).sum().backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    torch.manual_seed(3)
    network.train()
    return {
        "drawn": drawn,
        "logits": logits.flatten().tolist()[:12],
        "without padding": network.eval()(ids, None).flatten().tolist()[:6],
        "gradients": norm_of(gradients),
        "with dropout": network.train()(ids, real).flatten().tolist()[:6],
    }


AROUND: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow": {"style": qkv.Style(qkv_dim=4, qkv_bias=False, out_bias=False)},
    "convolution": {"dwc": "conv1d"},
    "on a grid": {"dwc": "conv2d", "style": qkv.Style(grid=(3, 3))},
    "surrounded": {"short_conv": 3, "head_norm": True, "gate": "full"},
    "gate of low rank": {"gate": "low_rank"},
}


def projections() -> Numbers:
    """Outputs and gradients of an attention between what may stand around it, and its dropout."""
    numbers = {name: _mixed(around, causal=False) for name, around in AROUND.items()}
    numbers["causal"] = _mixed(AROUND["surrounded"], causal=True)
    q, k, v = (waves(2, 2, 5, 4, shift=i) for i in range(3))
    torch.manual_seed(6)
    numbers["dropout"] = {
        "of outputs": norm_of([Dropout(0.3).train()(v)]),
        "of weights": norm_of([attend(q, k, v, None, 0.3, causal=True)]),
    }
    return numbers


def _mixed(around: dict[str, Any], *, causal: bool) -> Numbers:
    torch.manual_seed(7)
    with in_float64():
        place = {"d_model": WIDTH, "n_heads": 2, "max_len": N, "causal": causal}
        mixer = luna.mixer("linear" if causal else "uniform", **place, **around)
    drawn = norm_of(mixer.parameters())
    by_formula(mixer)
    x = waves(3, N, WIDTH).requires_grad_()
    out = mixer.train()(x, mask())
    (out * waves(*out.shape, shift=2)).sum().backward()
    gradients = [p.grad for p in (x, *mixer.parameters()) if p.grad is not None]
    return {"drawn": drawn, "out": out.flatten().tolist()[:16], "gradients": norm_of(gradients)}


EMBEDDINGS: dict[str, tuple[Style, int]] = {
    "learned": (style(positions=Positions.learned), 1),
    "fixed": (style(positions=Positions.fixed), 1),
    "none": (style(positions=Positions.none), 1),
    "stacked": (style(positions=Positions.fixed), 3),
    "cls": (style(pooling=Pooling.cls), 1),
    "cls as first": (style(pooling=Pooling.cls, cls_mask=ClsMask.first), 1),
}


def embedding() -> Numbers:
    """Vectors and masks, and queries that are turned by their positions."""
    numbers = {name: _embedded(*facts) for name, facts in EMBEDDINGS.items()}
    x = waves(1, 1, 6, 8)
    turned = Rotary(8, 6, None, cls=False)(x)
    on_grid = Rotary(8, 7, (2, 3), cls=True)(waves(1, 1, 7, 8))
    rotary = {"turned": turned.flatten().tolist()[8:24], "grid": on_grid.flatten().tolist()[8:32]}
    return numbers | {"rotary": rotary}


def _embedded(style: Style, stack: int) -> Numbers:
    torch.manual_seed(5)
    with in_float64():
        module = Embedding(VOCAB, WIDTH, N, style, 0.3, stack)
        drawn = {name: norm_of([p]) for name, p in module.named_parameters()}
    by_formula(module)
    ids = torch.arange(3 * N).view(3, N) % VOCAB
    real = mask()
    real[0, 0] = False  # which a CLS token may copy
    x, seen = module.eval()(ids, real)
    assert seen is not None
    torch.manual_seed(5)
    dropped, _ = module.train()(ids, real)
    return {
        "drawn": drawn,
        "vectors": x.flatten().tolist()[:20],
        "norm": norm_of([x]),
        "mask": seen.int().sum(0).tolist(),
        "with dropout": norm_of([dropped]),
    }
